"""Through how many files of runner and command line a run passes, from its command to its first row.

    python benchmarks/way_of_a_run.py [--list]

One case, one check, a target that answers at once. A file counts when a function of it is called; imports do not count.
"""

from __future__ import annotations

import collections
import contextlib
import io
import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import quintain_cli
import quintain_runner
from quintain_cli.__main__ import COMMANDS, LazyCommand, app
from quintain_runner.results.row import Row
from quintain_runner.results.store import ResultFile

FOLDERS = tuple(str(Path(str(package.__file__)).parent) for package in (quintain_cli, quintain_runner))


def traced_run(folder: Path) -> collections.Counter[str]:
    """How often functions of each file were called until the first row was written."""
    called: collections.Counter[str] = collections.Counter()
    is_over = threading.Event()
    append = ResultFile.append

    async def appended(results: ResultFile, row: Row, *, supersedes: bool = False) -> None:
        await append(results, row, supersedes=supersedes)
        is_over.set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and not is_over.is_set():
            code = frame.f_code
            if code.co_filename.startswith(FOLDERS):
                called[os.path.relpath(code.co_filename, Path(FOLDERS[0]).parent)] += 1

    ResultFile.append = appended  # type: ignore[method-assign, assignment]
    LazyCommand("run", COMMANDS["run"]).load_command()
    os.chdir(folder)
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            app(["run", "eval.yaml"], standalone_mode=False)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return called


def main() -> None:
    """Trace and show."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "quintain.yaml").write_text('targets: {m: {provider: mock, response: "4"}}')
        (folder / "eval.yaml").write_text("dataset: cases.jsonl\ngraders: [{name: same, builtin: exact}]")
        (folder / "cases.jsonl").write_text(json.dumps({"id": "1", "question": "2 + 2?", "expected": "4"}))
        called = traced_run(folder)
    print(f"{len(called)} files of runner and command line, {sum(called.values())} calls")
    if "--list" in sys.argv:
        for path, count in called.most_common():
            print(f"{count:6} {path}")


if __name__ == "__main__":
    main()
