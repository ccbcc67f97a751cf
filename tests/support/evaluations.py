"""Evaluations for the command line: the repository's own example, and small ones that a test writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

CAPITALS = Path(__file__).parents[2] / "examples" / "capitals"

#: The targets of the example; `scholar` and `guesser` are under test.
CAPITALS_TARGETS = ("scholar", "guesser", "judge")

Json = dict[str, object]


def copy_capitals(folder: Path) -> None:
    """The example, in this folder."""
    for name in ("bot.py", "cases.jsonl", "eval.yaml", "judge.py", "quintain.yaml"):
        shutil.copyfile(CAPITALS / name, folder / name)


def write_files(folder: Path, *, cases: int = 3, **files: str) -> None:
    """A dataset of so many cases that an echo answers rightly, and ``name_ending="text"`` as ``name.ending``."""
    rows = ({"id": f"case-{n}", "question": f"q{n}", "expected": f"q{n}"} for n in range(1, cases + 1))
    (folder / "cases.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)


def rows_of(output: Path) -> list[Json]:
    """The rows of a run so far; a line that is still being written is none."""
    path = output / "results.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def rows_by_trial(output: Path) -> dict[tuple[str, str], Json]:
    """The rows of a run by case and target, without what differs from run to run: how long it took, and the sessions of
    its graders.
    """
    rows = {(str(row["caseId"]), str(row["target"])): row for row in rows_of(output)}
    for row in rows.values():
        graders = row["graders"]
        assert isinstance(graders, dict)
        for verdict in graders.values():
            verdict.pop("sessionId", None)
    assert len(rows) == len(rows_of(output)), "no row twice"
    return {trial: {key: value for key, value in row.items() if key != "durationMs"} for trial, row in rows.items()}


def totals_of(output: Path) -> Json:
    """The totals of a run's record."""
    totals = json.loads((output / "run.json").read_text())["totals"]
    assert isinstance(totals, dict)
    return totals
