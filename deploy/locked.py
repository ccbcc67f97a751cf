"""Prints the part of requirements.lock that some extras need, without test packages, for the images of the services.

    python deploy/locked.py postgres otel > requirements.txt
    python deploy/locked.py --build > requirements.txt   # what builds the wheel

The lock says of every package who asked for it (``# via``), and pyproject.toml which of them an extra asks for. A
package's own extras are not told apart: what only an extra that was not chosen asks for stays away by its name.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRAS = re.compile(r"quintain\[([a-z,-]+)\]")


def canonical(requirement: str) -> str:
    """The normalized name of a requirement."""
    match = _NAME.match(requirement)
    if match is None:
        raise ValueError(f"{requirement!r} names no package")
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def wanted_by(project: Mapping[str, object], extras: Iterable[str]) -> set[str]:
    """The direct requirements of these extras. Raises `KeyError` for an unknown extra."""
    optional: dict[str, list[str]] = project["optional-dependencies"]  # type: ignore[assignment]
    dependencies: list[str] = project["dependencies"]  # type: ignore[assignment]
    asked, todo, seen = {canonical(one) for one in dependencies}, list(extras), set[str]()
    while todo:
        extra = todo.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for requirement in optional[extra]:
            ours = _EXTRAS.match(requirement)
            if ours is None:
                asked.add(canonical(requirement))
            else:
                todo += ours[1].split(",")
    return asked


def entries_of(lock: str) -> dict[str, str]:
    """Every package of the lock, with its lines."""
    blocks = re.split(r"\n(?=[A-Za-z0-9])", "\n".join(line for line in lock.splitlines() if not line.startswith("#")))
    return {canonical(block): block for block in blocks if _NAME.match(block)}


def askers_of(entry: str) -> set[str]:
    """The packages that require the package of these lines."""
    told = [line.strip().removeprefix("#").strip() for line in entry.splitlines() if line.strip().startswith("#")]
    names = [line.removeprefix("via").strip() for line in told]
    return {canonical(name) for name in names if name}


def closure(entries: Mapping[str, str], roots: Iterable[str], excluded: Iterable[str] = ()) -> list[str]:
    """The roots and all their dependencies but the excluded ones, in the lock's order."""
    chosen, excluded = set(roots), set(excluded)
    grown = True
    while grown:
        more = {name for name, entry in entries.items() if name not in chosen | excluded and askers_of(entry) & chosen}
        chosen |= more
        grown = bool(more)
    return [name for name in entries if name in chosen]


def main(extras: list[str]) -> None:
    """Print the lock's lines for these extras, or for the build."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    entries = entries_of((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    if extras == ["--build"]:
        roots = {canonical(one) for one in told["build-system"]["requires"]}
    else:
        roots = wanted_by(told["project"], extras)
    excluded = wanted_by(told["project"], told["project"]["optional-dependencies"]) - roots
    sys.stdout.writelines(f"{entries[name]}\n" for name in closure(entries, roots, excluded))


if __name__ == "__main__":
    main(sys.argv[1:])
