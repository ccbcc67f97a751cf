"""What `pip install quintain` brings: every command and service runs with the base dependencies alone."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from generate.checkout import REPOSITORY, tracked
from quintain_cli.__main__ import COMMANDS

OWN = {"quintain", *(path.parent.name for path in tracked("services/*/__init__.py"))}

#: What is imported without an extra: the module of every command, and what these import when they are used.
MODULES = [
    *sorted({f"quintain_cli.commands.{reference.partition(':')[0]}" for reference in COMMANDS.values()}),
    "quintain.client.http_transport",
    "quintain_gateway.app",
    "quintain_metadata.store.sqlite",
    "quintain_runner.graders.builtin",
    "quintain_worker.providers.model_api",
    "quintain_runner.report.report_files",
]

IMPORT_WITHOUT = """
import importlib, json, sys
blocked, modules = json.load(sys.stdin)
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
for module in modules:
    importlib.import_module(module)
"""


def base_distributions() -> set[str]:
    """The distributions that the lock has for an installation without extras."""
    script = REPOSITORY / "deploy" / "locked.py"
    lines = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout.splitlines()
    return {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line and line[0].isalnum()}


def test_every_command_is_imported_with_the_base_dependencies_alone() -> None:
    base = base_distributions()
    blocked = [
        module
        for module, distributions in packages_distributions().items()
        if module not in OWN and not {canonicalize_name(name) for name in distributions} & base
    ]
    assert "asyncpg" in blocked
    assert {"anthropic", "openai", "pydantic_ai"} <= set(blocked)
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_WITHOUT],
        input=json.dumps([blocked, MODULES]), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("extra", ["postgres", "otel", "pydantic-ai"])
def test_all_has_every_extra_that_fits_beside_the_others(extra: str) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert extra in Requirement(project["optional-dependencies"]["all"][0]).extras
