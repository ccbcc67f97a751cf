"""Writes a run as a run workspace of AgentV 4.42."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from quintain.contracts.invoke import content_text
from quintain.errors import QuintainError
from quintain_runner.files import atomic_write
from quintain_runner.report.run_report import RunReport
from quintain_runner.results.counts import UNCOMPARED_TEXT
from quintain_runner.results.row import GraderRow, Row, RowStatus

JsonObject = dict[str, object]

#: What AgentV calls the kind of a grader that is none of its own.
_GRADER_TYPE: Final = "quintain"


def write_agentv_run(folder: Path, report: RunReport) -> list[Path]:
    """Write a run workspace into ``folder``, below the time of the run's start, and return the path of its index.

    A row is a line of ``index.jsonl`` and a folder with its question, answer and grading; a repeat is a test of its
    own, and a target under a prompt a target. AgentV requires a score: that of a row without one is 0, and its status
    ``execution_error``. Raises `QuintainError` if a file cannot be written; then there is no index.

    Example::

        write_agentv_run(Path(".agentv/results/runs/quintain"), read_report(Path("runs/eval")))
    """
    started = datetime.fromisoformat(report.run.started_at).astimezone(UTC)
    workspace = folder / f"{started:%Y-%m-%dT%H-%M-%S}-{started.microsecond // 1000:03}Z"
    path = workspace / "index.jsonl"
    summary = _Summary()
    try:
        workspace.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, mode=0o666) as index:
            for number, row in enumerate(report.rows(), start=1):
                place = f"{report.run.name}/{number}"
                _write_row(workspace / place, row)
                index.write(to_json_line(_index_line(report, row, place)) + b"\n")
                summary.add(row)
            (workspace / "benchmark.json").write_bytes(to_json_line(summary.benchmark(report)))
    except OSError as error:
        raise QuintainError(f"{workspace}: cannot be written ({error.strerror})") from None
    return [path]


def _write_row(folder: Path, row: Row) -> None:
    (folder / "outputs").mkdir(parents=True, exist_ok=True)
    question = "\n\n".join(f"@[{role}]:\n{text}" for role, text in (*asked_messages(row), *_earlier_turns(row)))
    (folder / "input.md").write_text(question, encoding="utf-8", errors="replace")
    (folder / "outputs" / "answer.md").write_text(row.output or "", encoding="utf-8", errors="replace")
    checks = [check for grader in row.graders.values() for check in _assertions(grader)]
    passed = sum(check["passed"] is True for check in checks)
    grading = {
        "assertions": checks,
        "summary": {
            "passed": passed,
            "failed": len(checks) - passed,
            "total": len(checks),
            "pass_rate": passed / len(checks) if checks else 0,
        },
        "graders": _scores(row),
    }
    (folder / "grading.json").write_bytes(to_json_line(grading))


def _index_line(report: RunReport, row: Row, place: str) -> JsonObject:
    status = "execution_error" if row.score is None else "ok" if row.passed else "quality_failure"
    error = None if row.error is None else f"{row.error.code}: {row.error.error}"
    line: JsonObject = {
        "timestamp": report.run.ended_at or report.run.started_at,
        "test_id": row.case_id if report.run.configuration.repeats == 1 else f"{row.case_id}#{row.repeat}",
        "suite": report.run.name,
        "score": row.score or 0,
        "target": row.column,
        "token_usage": row.token_usage.model_dump(mode="json", exclude_none=True),
        "duration_ms": round(row.duration_ms),
        "scores": _scores(row),
        "execution_status": status,
        "artifact_dir": place,
        "grading_path": f"{place}/grading.json",
        "input_path": f"{place}/input.md",
        "output_path": f"{place}/outputs/answer.md",
        "answer_path": f"{place}/outputs/answer.md",
    }
    if row.status is RowStatus.UNCOMPARED:
        error = UNCOMPARED_TEXT
    if error is not None:
        line["error"] = error
    return line


def _scores(row: Row) -> list[JsonObject]:
    return [
        {
            "name": name,
            "type": _GRADER_TYPE,
            "score": grader.score or 0,
            "weight": grader.weight,
            "verdict": "pass" if _is_passed(grader) else "fail",
            "reasoning": grader.reason or grader.error or "",
            "assertions": _assertions(grader),
        }
        for name, grader in row.graders.items()
    ]


def _assertions(grader: GraderRow) -> list[JsonObject]:
    """The checks of a grader, or its verdict if it made none."""
    if not grader.checks:
        return [{"text": grader.reason or grader.error or "", "passed": _is_passed(grader), "evidence": ""}]
    return [
        {"text": check.text, "passed": check.passed, "evidence": check.evidence or check.reason or ""}
        for check in grader.checks
    ]


def _is_passed(grader: GraderRow) -> bool:
    return grader.passed if grader.passed is not None else (grader.score or 0) >= 0.5


def asked_messages(row: Row) -> list[tuple[str, str]]:
    """What was asked, as roles and texts; nothing if the run kept no texts."""
    if row.case is None:
        return []
    system = [("system", row.case.system_prompt)] if row.case.system_prompt is not None else []
    question = [("user", row.case.question)] if row.case.question is not None else []
    return [
        *system,
        *((message.role, content_text(message.content)) for message in row.case.messages or ()),
        *question,
    ]


def _earlier_turns(row: Row) -> Iterator[tuple[str, str]]:
    """What was said in a conversation after what was asked first, without the row's answer, as roles and texts."""
    turns = row.turns()
    for number, turn in enumerate(turns, start=1):
        if turn.question is not None:
            yield "user", turn.question
        if turn.output and (number < len(turns) or row.output is None):
            yield "assistant", turn.output


class _Summary:
    """The numbers of ``benchmark.json``: of each target, and of each grader."""

    def __init__(self) -> None:
        self._targets: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._graders: dict[str, list[float]] = defaultdict(list)

    def add(self, row: Row) -> None:
        """Count a row."""
        figures = self._targets[row.column]
        figures["pass_rate"].append(float(row.score is not None and row.passed))
        figures["time_seconds"].append(row.duration_ms / 1000)
        figures["tokens"].append(row.token_usage.input + row.token_usage.output)
        for name, grader in row.graders.items():
            if grader.score is not None:
                self._graders[f"{name}:{_GRADER_TYPE}"].append(grader.score)

    def benchmark(self, report: RunReport) -> JsonObject:
        """The content of the file."""
        targets = {name: _statistics_of(figures.items()) for name, figures in self._targets.items()}
        metadata = {
            "eval_file": report.run.configuration.evaluation,
            "timestamp": report.run.ended_at or report.run.started_at,
            "targets": report.run.configuration.columns,
            "planned_test_count": report.summary.total.cases * report.run.configuration.repeats,
        }
        graders = _statistics_of(self._graders.items())
        return {"metadata": metadata, "run_summary": targets, "per_grader_summary": graders, "notes": []}


def _statistics_of(figures: Iterable[tuple[str, Sequence[float]]]) -> dict[str, JsonObject]:
    """The mean and the standard deviation of each list of numbers."""
    found: dict[str, JsonObject] = {}
    for name, values in figures:
        mean = sum(values) / len(values)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
        found[name] = {"mean": round(mean, 3), "stddev": round(deviation, 3)}
    return found


def to_json_line(value: object) -> bytes:
    """Return a value as JSON in ASCII, without a line end."""
    return json.dumps(value).encode()
