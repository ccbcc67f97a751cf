"""The wheel in each supported Python of this machine, with its dependencies from the index: ``make pythons``.

An interpreter is taken where ``python3.N`` on the PATH runs. At the end each version is named, with what was seen.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
import tomllib
from pathlib import Path

import pytest

from quintain.settings import environment
from support.installed_wheel import REPOSITORY, InstalledWheel, build_wheel, first_commands, run
from support.summary import Summary
from support.view_client import open_page

pytestmark = pytest.mark.timeout(900)

VERSIONS = ("3.11", "3.12", "3.13", "3.14")

#: The processor time of the install and the first commands, with a warm cache of packages. How long a user waits
#: depends on the machine's other work too.
FIRST_SECONDS = 120.0

IMPORT_ALL = """
import importlib, json, pkgutil, sys, warnings
warnings.simplefilter("error")
of_extras = set(json.load(sys.stdin))
for name in [one.name for one in pkgutil.iter_modules() if one.name.startswith("quintain")]:
    for module in pkgutil.walk_packages([importlib.import_module(name).__path__[0]], f"{name}."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name.partition(".")[0] not in of_extras:
                raise
"""

#: What extras bring.
OF_EXTRAS = ("asyncpg", "opentelemetry", "pydantic_ai", "superred")


def find_python(version: str) -> Path | None:
    """The first ``python3.N`` on the PATH that runs: a version manager's wrapper may have no interpreter behind it."""
    for folder in environment().get("PATH", os.defpath).split(os.pathsep):
        program = Path(folder) / f"python{version}"
        if program.is_file() and not program.is_relative_to(REPOSITORY):
            done = subprocess.run([program, "-c", "import venv"], capture_output=True, check=False, timeout=60)
            if done.returncode == 0:
                return program
    return None


def used_seconds() -> float:
    """The processor time of all programs that ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.fixture(scope="module")
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_works(version: str, wheel_file: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    summary = pytestconfig.pluginmanager.getplugin("quintain-summary")
    assert isinstance(summary, Summary)
    python = find_python(version)
    if python is None:
        summary.add("pythons", f"{version}: not on this machine")
        pytest.skip(f"no python{version} on the PATH runs")
    began, began_used = time.monotonic(), used_seconds()
    wheel = InstalledWheel.create(python, wheel_file, tmp_path / "venv", with_dependencies=True)
    folder = tmp_path / "empty"
    folder.mkdir()
    *commands, view = first_commands()
    for words in commands:
        wheel.quintain(*words[1:], folder=folder)
    with wheel.opened_page(view[1:], folder) as address:
        assert "model" in open_page(address, "/run/eval")
    seconds, used = time.monotonic() - began, used_seconds() - began_used

    wheel.quintain("check", "eval.yaml", folder=folder)
    assert len((folder / "runs" / "eval" / "results.jsonl").read_text().splitlines()) == 5
    assert json.loads(wheel.quintain("demo", "--json", folder=folder))["totals"]["graded"] == 24
    done = subprocess.run(
        [wheel.python, "-c", IMPORT_ALL], input=json.dumps(OF_EXTRAS), cwd=folder,
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    megabytes = sum(path.stat().st_size for path in wheel.packages.rglob("*") if path.is_file()) / 1e6
    exact = run([wheel.python, "--version"], folder).split()[1]
    distributions = len(list(wheel.packages.glob("*.dist-info")))
    summary.add(
        "pythons",
        f"{exact}: {seconds:.0f} s to an opened page ({used:.0f} s of processor time); {distributions} packages, "
        f"{megabytes:.0f} MB",
    )
    assert used < FIRST_SECONDS


def test_the_classifiers_name_the_versions_that_are_tried() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    named = {one.rpartition(" ")[2] for one in project["classifiers"] if "Python :: 3." in one}
    assert named == set(VERSIONS)
