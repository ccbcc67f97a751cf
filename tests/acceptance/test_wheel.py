"""The wheel, installed in an environment of its own, outside the checkout."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

from support.command_line import clean_environment

REPOSITORY = Path(__file__).parents[2]


def test_the_wheel_gives_a_command_that_works_in_an_empty_folder(tmp_path: Path) -> None:
    def run(*command: str | Path, folder: Path = tmp_path) -> str:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path, ".", folder=REPOSITORY)
    (wheel,) = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    # The pinned dependencies are those of this environment; its editable checkout is not on this path.
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    quintain = tmp_path / "venv" / "bin" / "quintain"
    imported = run(python, "-c", "import quintain, quintain_cli; print(quintain.__file__, quintain_cli.__file__)")
    assert all(Path(path).is_relative_to(tmp_path) for path in imported.split())
    folder = tmp_path / "empty"
    folder.mkdir()
    run(quintain, "init", folder=folder)
    run(quintain, "check", "eval.yaml", folder=folder)
    totals = json.loads(run(quintain, "run", "eval.yaml", "--json", folder=folder))["totals"]
    assert (totals["graded"], totals["errors"]) == (5, 0)
