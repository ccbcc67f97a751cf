"""The wheel, installed in an environment of its own, outside the checkout; `make pythons` has it in other Pythons."""

from __future__ import annotations

import json
import re
import sys
import sysconfig
import time
import zipfile
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


def test_pip_is_told_which_python_is_needed(wheel_file: Path) -> None:
    with zipfile.ZipFile(wheel_file) as wheel:
        (metadata,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        assert b"\nRequires-Python: >=3.11\n" in wheel.read(metadata)
