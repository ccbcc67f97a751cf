"""Writes a run as logs of Inspect (JSON, version 2), a file for each target: ``inspect view`` and its API read them."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from quintain_runner.report.agentv_run import JsonObject, _messages, _to_json
from quintain_runner.report.run_report import RunReport
from quintain_runner.results.atomic_file import atomic_write
from quintain_runner.results.row import Row, split_column

#: Why a model stopped: its provider's word (OpenAI's or Anthropic's) → Inspect's.
_STOP_REASONS: Final[Mapping[str | None, str]] = {
    "stop": "stop", "end_turn": "stop", "stop_sequence": "stop", "length": "max_tokens", "max_tokens": "max_tokens",
    "tool_calls": "tool_calls", "tool_use": "tool_calls", "content_filter": "content_filter",
    "refusal": "content_filter",
}  # fmt: skip


def write_inspect_logs(folder: Path, report: RunReport) -> list[Path]:
    """Write a log for each target, under each prompt, into ``folder``, and return the paths of the files.

    A row is a sample, a repeat an epoch and a grader a scorer. What Inspect has no field for is in the sample's
    metadata. Raises `QuintainError` if a file cannot be written.

    Example::

        write_inspect_logs(Path("logs"), read_report(Path("runs/eval")))
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, column in enumerate(report.run.configuration.columns, start=1):
        path = folder / f"{report.run.name}-{number}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', column)}.json"
        _write_log(path, report, column)
        paths.append(path)
    return paths


def _write_log(path: Path, report: RunReport, column: str) -> None:
    """Write what is computed from all rows, then each sample: Inspect reads a log's header up to the samples."""
    header = {**_header(report, column), "results": _results(row for row in report.rows() if row.column == column)}
    with atomic_write(path, mode=0o666) as file:
        file.write(_to_json(header)[:-1] + b',"samples":[')
        separator = b"\n"
        for row in report.rows():
            if row.column == column:
                file.write(separator + _to_json(_sample(row)))
                separator = b",\n"
        file.write(b"\n]}\n")


def _results(rows: Iterable[Row]) -> JsonObject:
    scores: dict[str, list[float]] = defaultdict(list)
    total = completed = 0
    for row in rows:
        total, completed = total + 1, completed + (row.error is None)
        for name, grader in row.graders.items():
            if grader.score is not None:
                scores[name].append(grader.score)
    return {
        "total_samples": total,
        "completed_samples": completed,
        "scores": [_mean_score(name, values, total) for name, values in scores.items()],
    }


def _header(report: RunReport, column: str) -> JsonObject:
    run, (target, prompt) = report.run, split_column(column)
    session = next(iter(reversed([each.session_id for each in run.sessions])), "")
    return {
        "version": 2,
        "status": "started" if run.ended_at is None else "success",
        "eval": {
            "created": run.started_at,
            "task": run.name,
            "task_id": run.name,
            "eval_id": f"{session}-{column}",
            "run_id": session,
            "dataset": {"name": run.name, "samples": report.summary.cases},
            "model": target,
            "config": {"epochs": run.configuration.repeats},
            "packages": {"quintain": importlib.metadata.version("quintain")},
            "metadata": {"target": target, "prompt": prompt, "evaluation": run.configuration.evaluation},
        },
        "plan": {"name": "plan", "steps": [], "config": {}},
        "stats": {"started_at": run.started_at, "completed_at": run.ended_at or ""},
    }


def _sample(row: Row) -> JsonObject:
    asked, answer = row.case, row.answer
    messages = [] if asked is None else _message_objects(row)
    choices: list[JsonObject] = []
    output: JsonObject = {"model": row.target if answer is None else answer.model or row.target, "choices": choices}
    if row.output is not None:
        said: JsonObject = {"role": "assistant", "content": row.output, "source": "generate", "model": row.target}
        stop_reason = _STOP_REASONS.get(None if answer is None else answer.finish_reason, "unknown")
        choices.append({"message": said, "stop_reason": stop_reason})
        output["completion"] = row.output
        messages.append(said)
    usage = row.token_usage
    output["usage"] = {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
    }
    sample: JsonObject = {
        "id": row.case_id,
        "epoch": row.repeat,
        "input": asked.question if asked is not None and asked.question is not None else _message_objects(row) or "",
        "target": "" if asked is None else _text(asked.expected),
        "messages": messages,
        "output": output,
        "scores": {name: _score(row, name) for name, grader in row.graders.items() if grader.score is not None},
        "metadata": _metadata(row),
        "total_time": row.duration_ms / 1000,
    }
    if row.error is not None:
        text = f"{row.error.code}: {row.error.error}"
        sample["error"] = {"message": text, "traceback": "", "traceback_ansi": ""}
    return sample


def _message_objects(row: Row) -> list[JsonObject]:
    return [{"role": role, "content": content} for role, content in _messages(row)]


def _metadata(row: Row) -> JsonObject:
    """The rest of the row, under the names of ``results.jsonl``: parts of messages, grader errors, tries and marks."""
    left_out = {"case_id", "repeat", "target", "output", "score", "token_usage", "duration_ms", "schema_version"}
    return row.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=left_out)


def _score(row: Row, name: str) -> JsonObject:
    grader = row.graders[name]
    return {
        "value": grader.score,
        "answer": row.output,
        "explanation": grader.reason,
        "metadata": {"pass": grader.passed},
    }


def _mean_score(name: str, scored: Sequence[float], total: int) -> JsonObject:
    mean = sum(scored) / len(scored)
    return {
        "name": name,
        "scorer": name,
        "scored_samples": len(scored),
        "unscored_samples": total - len(scored),
        "metrics": {"mean": {"name": "mean", "value": mean}},
    }


def _text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
