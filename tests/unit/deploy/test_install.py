"""What `deploy/install` gives to uv and to pip; programs that write down how they were called stand for both."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

INSTALL = Path(__file__).parents[3] / "deploy" / "install"

#: Answers as pip does where its configuration file names an index.
PIP = """#!/bin/sh
if [ "$3 $4" = "config get" ]; then echo configured; else echo "pip $*" >> called; fi
"""

UV = """#!/bin/sh
echo "uv $* from $UV_DEFAULT_INDEX" >> called
exit {code}
"""


def called(folder: Path, uv_code: int, variables: dict[str, str]) -> list[str]:
    """Install into an environment named ``there``; how uv and pip were called."""
    for path, text in {"deploy/install": "", ".venv/bin/python": PIP, ".venv/bin/uv": UV.format(code=uv_code)}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
        (folder / path).chmod(0o755)
    shutil.copy(INSTALL, folder / "deploy" / "install")
    words = ["deploy/install", "there", "--require-hashes", "-r", "a file"]
    subprocess.run(words, cwd=folder, env={"PATH": "/usr/bin:/bin", **variables}, capture_output=True, check=True)
    return (folder / "called").read_text().splitlines()


@pytest.mark.parametrize(
    ("variables", "index"),
    [
        ({}, "configured"),
        ({"PIP_INDEX_URL": "of pip"}, "of pip"),
        ({"PIP_INDEX_URL": "of pip", "UV_DEFAULT_INDEX": "of uv"}, "of uv"),
    ],
)
def test_uv_takes_the_index_of_pip(tmp_path: Path, variables: dict[str, str], index: str) -> None:
    (line,) = called(tmp_path, 0, variables)
    assert line.endswith(f"--python there --require-hashes -r a file from {index}")


def test_pip_installs_the_same_where_uv_cannot(tmp_path: Path) -> None:
    _, line = called(tmp_path, 1, {})
    assert line.endswith("--python there install -qq --require-hashes -r a file")
