"""Writes the software bill of materials of Quintain with all its extras, as CycloneDX 1.6.

    python deploy/sbom.py > dist/quintain.cdx.json

The packages and versions are those of this environment, which requirements.lock pins. The hashes are those
of the lock: of each file of a package's version that may be installed.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

NAME = "quintain"

LOCK = Path(__file__).resolve().parent.parent / "requirements.lock"

#: A package of the lock: its name, version, and the options of its lines.
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)(?: ;[^\n]*?)?((?: \\\n +--hash=sha256:[0-9a-f]+)+)", re.MULTILINE)

_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)\s*(?:\[([A-Za-z0-9._,\s-]+)\])?[^;]*(?:;(.*))?$")
_EXTRA = re.compile(r"""extra\s*==\s*["']([A-Za-z0-9._-]+)["']""")


def canonical(name: str) -> str:
    """The normalized name of a package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the installed packages that a package with these extras needs, each with its extras."""
    for requirement in importlib.metadata.requires(name) or []:
        match = _REQUIREMENT.match(requirement)
        if match is None:
            continue
        wanted = _EXTRA.findall(match[3] or "")
        if wanted and not extras & set(wanted):
            continue
        needed = canonical(match[1])
        try:
            importlib.metadata.version(needed)
        except importlib.metadata.PackageNotFoundError:
            continue  # its marker names another system or Python
        yield needed, frozenset(each.strip() for each in (match[2] or "").split(",") if each.strip())


def closure() -> dict[str, set[str]]:
    """What Quintain with all extras needs: the direct needs of each package, by name."""
    needs: dict[str, set[str]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    queue = [(NAME, frozenset({"all"}))]
    for name, extras in queue:
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found = list(requirements(name, extras))
        needs.setdefault(name, set()).update(each for each, _ in found if each != name)
        queue += found
    return needs


def locked_hashes() -> dict[tuple[str, str], list[str]]:
    """The SHA-256 of each file of a package that the lock lets in, by the package's name and version."""
    found = _PINNED.findall(LOCK.read_text(encoding="utf-8"))
    return {(canonical(name), version): re.findall(r"[0-9a-f]{64}", options) for name, version, options in found}


def component(name: str, hashes: Mapping[tuple[str, str], list[str]]) -> dict[str, object]:
    """A package as a component of CycloneDX."""
    metadata = importlib.metadata.metadata(name)
    version = importlib.metadata.version(name)
    purl = f"pkg:pypi/{name}@{version}"
    made: dict[str, object] = {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}
    if files := hashes.get((name, version)):
        made["hashes"] = [{"alg": "SHA-256", "content": each} for each in files]
    licence = metadata.get("License-Expression")
    return made | ({"licenses": [{"expression": licence}]} if licence else {})


def main() -> None:
    """Print the bill of materials."""
    needs, hashes = closure(), locked_hashes()
    components = {name: component(name, hashes) for name in sorted(needs)}
    references = {name: str(each["bom-ref"]) for name, each in components.items()}
    root = {**components.pop(NAME), "type": "application"}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {"component": root},
        "components": list(components.values()),
        "dependencies": [
            {"ref": references[name], "dependsOn": [references[each] for each in sorted(needs[name])]}
            for name in sorted(needs)
        ],
    }
    json.dump(document, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
