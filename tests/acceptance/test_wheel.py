"""The wheel, installed in an environment of its own, outside the checkout; `make pythons` has it in other Pythons."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from support.installed_wheel import InstalledWheel, build_wheel, first_commands, run
from support.view_client import open_page


@pytest.fixture(scope="module")
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def test_the_first_commands_of_the_readme_lead_to_a_graded_table_and_an_opened_page(
    wheel_file: Path, tmp_path: Path
) -> None:
    wheel = InstalledWheel.create(sys.executable, wheel_file, tmp_path / "venv", with_dependencies=False)
    # The pinned dependencies are those of this environment; its editable checkout is not on this path.
    (wheel.packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    imported = run([wheel.python, "-c", "import quintain, quintain_cli; print(quintain.__path__[0])"], tmp_path)
    assert Path(imported.strip()).is_relative_to(tmp_path)
    folder = tmp_path / "empty"
    folder.mkdir()
    *commands, view = first_commands()
    assert len(commands) == 2
    printed = [wheel.quintain(*words[1:], folder=folder) for words in commands]
    assert re.search(r"^│ model +│ +\d/5 │", printed[-1], re.MULTILINE)
    rows = [json.loads(line) for line in (folder / "runs" / "eval" / "results.jsonl").read_text().splitlines()]
    assert len([row for row in rows if isinstance(row["score"], float)]) == 5
    with wheel.opened_page(view[1:], folder) as address:
        deadline = time.monotonic() + 60
        while 'class="matrix"' not in open_page(address, "/run/eval"):  # until the rows are indexed
            assert time.monotonic() < deadline


@pytest.mark.parametrize(("version", "code"), [("3.10", 1), ("3.11", 0)])
def test_an_older_python_is_refused_by_pip_with_the_version_that_is_needed(
    wheel_file: Path, tmp_path: Path, version: str, code: int
) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--disable-pip-version-check"]
    words = ["--only-binary", ":all:", "--python-version", version, "--target", str(tmp_path), "--dry-run"]
    done = subprocess.run([*pip, *words, str(wheel_file)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done
    assert ("'>=3.11'" in done.stderr) is (code != 0)
