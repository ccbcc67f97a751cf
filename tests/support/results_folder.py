"""A results folder without a run: the rows that a test wants, and the record that `quintain run` would have written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from quintain.contracts.invoke import TokenUsage
from quintain_runner.report.progress import ProgressState
from quintain_runner.report.run_file import open_run, write_run
from quintain_runner.report.run_report import RunReport, read_report
from quintain_runner.report.summary import summarize
from quintain_runner.results.counts import Cost
from quintain_runner.results.row import GraderRow, Row, RowError, RowFingerprints, RowStatus
from quintain_runner.results.store import read_resume_state
from quintain_runner.spec.evaluation import load_evaluation
from quintain_runner.statistics.analysis import analyse
from quintain_runner.statistics.frame import build_frames
from support.evaluation_folder import EXACT, cases, write_evaluation

#: The fingerprints of rows whose fingerprints matter to no test.
MADE_OF = RowFingerprints(input="asked", grading="expected")


def graded_row(case_id: str, score: float, *, target: str = "bot", repeat: int = 1, output: str = "answer") -> Row:
    """A row that one grader, ``same``, scored; it passes from a half on."""
    return Row(
        fingerprints=MADE_OF,
        case_id=case_id,
        target=target,
        repeat=repeat,
        status=RowStatus.GRADED,
        output=output,
        score=score,
        graders={"same": GraderRow(score=score, passed=score >= 0.5)},
        calls=1,
        token_usage=TokenUsage(input=10, output=2),
        duration_ms=1500.0,
    )


def errored_row(case_id: str, *, target: str = "bot", repeat: int = 1, status: RowStatus = RowStatus.ERROR) -> Row:
    """A row without a score."""
    error = RowError(code="provider_error", error="it broke")
    return Row(fingerprints=MADE_OF, case_id=case_id, target=target, repeat=repeat, status=status, error=error, calls=1)


def write_results(
    folder: Path,
    rows: Sequence[Row],
    *,
    targets: Sequence[str] = ("bot",),
    repeats: int = 1,
    dataset: str = "d" * 64,
    graders: Sequence[dict[str, object]] = (EXACT,),
    cost: Cost | None = None,
    ended: bool = True,
) -> RunReport:
    """Write the folder, and give its report. ``dataset`` is the hash of what was asked, also in rows of `MADE_OF`."""
    folder.mkdir(parents=True)
    asked = MADE_OF.model_copy(update={"input": dataset})
    rows = [row.model_copy(update={"fingerprints": asked}) if row.fingerprints is MADE_OF else row for row in rows]
    evaluation = load_evaluation(write_evaluation(folder, cases(1), list(graders), repeats=repeats, threshold=0.5))
    record = open_run(folder, evaluation, targets, dataset)
    (folder / "results.jsonl").write_text("".join(f"{row.model_dump_json(by_alias=True)}\n" for row in rows))
    count = len({row.case_id for row in rows})
    board = ProgressState(targets, cases=count, repeats=repeats, resume_state=read_resume_state(folder))
    board.budget.update(board.calls_in_rows, 100)
    summary = summarize(board, threshold=0.5, is_budget_spent=False, results=folder / "results.jsonl")
    record = record.with_summary(summary)
    if ended:
        record = record.with_fields(statistics=analyse(build_frames(rows, targets, repeats=repeats)), cost=cost)
    write_run(folder, record, ended=ended)
    return read_report(folder)
