"""superred's own environment, made at test time: its litellm pins an older openai than the one this environment has.

It is kept beneath `.venv` and used again while what it is made of stays the same. superred's tests come from its
source distribution on PyPI, and are never copied into this repository.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from quintain.settings import environment
from support.command_line import clean_environment

REPOSITORY = Path(__file__).parents[2]

SUPERRED = "superred==0.3.0"

#: What its tests and ours need beside it, as pinned for this environment.
TOOLS = [f"{name}=={version(name)}" for name in ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis")]

#: A target that somebody else published for superred.
CHATBOT = "superred-target-chatbot"

#: Installing is 360 MB of downloads, the first time.
INSTALL_SECONDS = 900


@dataclass(frozen=True)
class SuperredEnvironment:
    """An interpreter that has superred and this checkout, and superred's unpacked source."""

    python: Path
    source: Path

    def pytest(
        self, args: Sequence[str], folder: Path, *, env: Mapping[str, str], seconds: float
    ) -> subprocess.CompletedProcess[str]:
        """pytest in that environment, to its end."""
        return subprocess.run(
            [str(self.python), "-m", "pytest", "-p", "no:cacheprovider", *args],
            cwd=folder,
            # litellm would fetch its price map from the network.
            env={**clean_environment(), "LITELLM_LOCAL_MODEL_COST_MAP": "True", **env},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )


def find_superred_environment() -> SuperredEnvironment:
    """The environment; made, where there is none that fits. Two that want one wait for each other."""
    home = REPOSITORY / ".venv" / "superred"
    home.parent.mkdir(exist_ok=True)
    stamp, recipe = home / ".ready", recipe_hash(REPOSITORY / "pyproject.toml")
    with (home.parent / "superred.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != recipe:
            create_environment(home)
            stamp.write_text(recipe)
    return SuperredEnvironment(home / "bin" / "python", home / "source" / SUPERRED.replace("==", "-"))


def recipe_hash(pyproject: Path) -> str:
    """What the environment is made of, in short."""
    project = tomllib.loads(pyproject.read_text())["project"]
    needs = [project["dependencies"], project["optional-dependencies"], SUPERRED, CHATBOT, TOOLS, sys.version]
    return hashlib.sha256(json.dumps(needs).encode()).hexdigest()


def create_environment(home: Path) -> None:
    """Make the environment in this folder."""
    shutil.rmtree(home, ignore_errors=True)
    run_step([sys.executable, "-m", "venv", "--without-pip", str(home)], "making an environment for superred")
    source = home / "source"
    # Without isolation: only the metadata is made, by the hatchling of this environment.
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    download = [*pip, "download", "--no-deps", "--no-build-isolation", "--no-binary", "superred"]
    run_step([*download, "--dest", str(source), SUPERRED], f"downloading the source of {SUPERRED}")
    with tarfile.open(next(source.glob("*.tar.gz"))) as archive:
        archive.extractall(source, filter="data")
    install = [str(REPOSITORY / "deploy" / "install"), str(home / "bin" / "python")]
    packages = [SUPERRED, CHATBOT, *TOOLS, "--editable", f"{REPOSITORY}[postgres,superred]"]
    run_step([*install, *packages], f"installing {SUPERRED}")


def run_step(args: list[str], description: str) -> None:
    """Run a step of the making; says what it needs where it fails."""
    done = subprocess.run(args, env=environment(), capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode != 0:
        raise AssertionError(
            f"{description} failed: these tests need PyPI (or an index that PIP_INDEX_URL names) the first time.\n"
            f"{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
