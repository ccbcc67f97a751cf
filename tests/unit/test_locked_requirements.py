"""What of the lock goes into the services' images."""

from __future__ import annotations

import functools
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[2]


@functools.cache
def locked_requirements(*words: str) -> str:
    script = REPOSITORY / "deploy" / "locked.py"
    return subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=True).stdout


def requirement_names(lines: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+)==", lines, re.MULTILINE))


def test_all_extras_are_the_lock_without_the_tests_and_the_build() -> None:
    lock = (REPOSITORY / "requirements.lock").read_text()
    whole = locked_requirements("all")
    assert requirement_names(whole) < requirement_names(lock)
    groups = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["dependency-groups"]["dev"]
    tools = {re.split(r"[^A-Za-z0-9_.-]", tool)[0].lower() for tool in groups}
    tools -= {"markdown-it-py"}  # rich needs it too
    assert not requirement_names(whole) & (tools | {"hatchling", "editables"})


@pytest.mark.parametrize(
    ("extras", "has", "has_not"),
    [
        (
            [],
            {"aio-pika", "aiohttp", "apsw", "typer", "uvicorn"},
            {"asyncpg", "openai", "anthropic", "pydantic-ai-slim"},
        ),
        (["postgres"], {"asyncpg"}, {"pydantic-ai-slim"}),
        (["pydantic-ai"], {"pydantic-ai-slim"}, {"asyncpg", "openai", "anthropic"}),
    ],
)
def test_a_service_has_what_its_extras_ask_for(extras: list[str], has: set[str], has_not: set[str]) -> None:
    assert has <= requirement_names(locked_requirements(*extras))
    assert not has_not & requirement_names(locked_requirements(*extras))


def test_every_line_is_the_locks_own_with_its_hashes() -> None:
    lock = (REPOSITORY / "requirements.lock").read_text().splitlines()
    lines = locked_requirements("postgres").splitlines()
    assert set(lines) <= set(lock)
    assert len([line for line in lines if "--hash=sha256:" in line]) >= len(requirement_names("\n".join(lines)))


def test_nothing_is_missing_that_a_chosen_package_asks_for() -> None:
    chosen = requirement_names(locked_requirements("all"))
    for name in chosen:
        try:
            asked = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform than this one
        for requirement in map(Requirement, asked):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert canonicalize_name(requirement.name) in chosen, f"{name} asks for {requirement}"
