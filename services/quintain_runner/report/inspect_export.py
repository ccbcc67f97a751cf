"""Writes a run as logs of Inspect: a file for each target, which its own reader and viewer open."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from quintain.contracts.agents import AgentStep
from quintain_runner.files import atomic_write
from quintain_runner.report.exports import asked_messages, to_json_line
from quintain_runner.report.run_file import RunFile
from quintain_runner.report.run_report import RunReport
from quintain_runner.results.agent_steps import steps_of
from quintain_runner.results.counts import has_cut_answer
from quintain_runner.results.row import GraderRow, Row, split_column
from quintain_runner.results.store import key_hash

JsonObject = dict[str, Any]

#: Why a model stopped: its provider's word (OpenAI's or Anthropic's) → Inspect's.
_STOP_REASONS: Final[Mapping[str | None, str]] = {
    "stop": "stop", "end_turn": "stop", "stop_sequence": "stop", "tool_calls": "tool_calls",
    "tool_use": "tool_calls", "content_filter": "content_filter", "refusal": "content_filter",
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
    for column in report.run.configuration.columns:
        # Inspect lists logs that are named after the time, the task and an id.
        task = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{report.run.name}-{column}")
        begun, number = report.run.started_at[:19].replace(":", "-"), key_hash(_eval_id(report.run, column))
        path = folder / f"{begun}_{task}_{number:016x}.json"
        _write_log(path, report, column)
        paths.append(path)
    return paths


def _write_log(path: Path, report: RunReport, column: str) -> None:
    """Write what is computed from all rows, then each sample: Inspect reads a log's header up to the samples."""
    header = {**_header(report, column), "results": _results(row for row in report.rows() if row.column == column)}
    with atomic_write(path, mode=0o666) as file:
        file.write(to_json_line(header)[:-1] + b',"samples":[')
        separator = b"\n"
        for row in report.rows():
            if row.column == column:
                file.write(separator + to_json_line(_sample(row)))
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


def _eval_id(run: RunFile, column: str) -> str:
    """Of several logs with one task id, Inspect takes all but the last for retried ones, and hides them."""
    return f"{run.name}-{column}-{run.started_at}"


def _header(report: RunReport, column: str) -> JsonObject:
    run, (target, prompt) = report.run, split_column(column)
    session = next(iter(reversed([each.session_id for each in run.sessions])), "")
    return {
        "version": 2,
        "status": "started" if run.ended_at is None else "success",
        "eval": {
            "created": run.started_at,
            "task": run.name,
            "task_id": _eval_id(run, column),
            "eval_id": _eval_id(run, column),
            "run_id": session,
            "dataset": {"name": run.name, "samples": report.summary.total.cases},
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
    messages += _turn_messages(row)
    if row.output is not None:
        if not row.turns():
            messages += _answer_messages(row.steps, row.output, row.target)
        stop_reason = (
            "max_tokens"
            if has_cut_answer(row)
            else _STOP_REASONS.get(None if answer is None else answer.finish_reason, "unknown")
        )
        choices.append({"message": messages[-1], "stop_reason": stop_reason})
        output["completion"] = row.output
    elif row.error is not None:
        messages += _messages_of_steps(row.error.steps or ())
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
        "model_usage": {row.target: output["usage"]},
        "scores": {name: _score(row, name) for name, grader in row.graders.items() if grader.score is not None},
        "metadata": _metadata(row),
        "total_time": row.duration_ms / 1000,
    }
    if row.error is not None:
        text = f"{row.error.code}: {row.error.error}"
        sample["error"] = {"message": text, "traceback": "", "traceback_ansi": ""}
    return sample


def _turn_messages(row: Row) -> Iterator[JsonObject]:
    """What was said in the turns of a conversation: by the user, and by the target with what it did."""
    for turn in row.turns():
        if turn.question is not None:
            yield {"role": "user", "content": turn.question}
        text = turn.output or ""
        steps = [] if turn.answer is None else steps_of(turn.answer.to_result(text, row.target))
        yield from _answer_messages(steps, text, row.target)


def _answer_messages(steps: Iterable[AgentStep], text: str, target: str) -> list[JsonObject]:
    """What a target did for an answer, and the answer, which is the last of them."""
    done = list(_messages_of_steps(steps))
    if not done or done[-1]["role"] != "assistant" or _text_in(done[-1]["content"]) != text:
        done.append({"role": "assistant", "content": text})
    done[-1] |= {"source": "generate", "model": target}
    return done


def _messages_of_steps(steps: Iterable[AgentStep]) -> Iterator[JsonObject]:
    """What an agent did as Inspect has it: messages of the assistant with calls of tools, and messages of the tools.

    A tool that ran without a call of the model is called by a message of its own.
    """
    called: list[JsonObject] = []
    for number, step in enumerate(steps, start=1):
        for message in step.messages or ():
            written = _message_object(message, f"step-{number}")
            called += written.get("tool_calls", ())
            yield written
        if step.operation != "execute_tool":
            continue
        names = ("id", step.tool_call_id) if step.tool_call_id is not None else ("function", step.tool)
        call = next((one for one in called if one[names[0]] == names[1]), None)
        if call is None:
            call = _tool_call(step.tool_call_id or f"step-{number}", step.tool, step.arguments)
            yield {"role": "assistant", "content": "", "tool_calls": [call]}
        else:
            called.remove(call)
        error = None if step.error_type is None else {"type": "unknown", "message": step.error_type}
        answered = {"tool_call_id": call["id"], "function": step.tool, "error": error}
        yield {"role": "tool", "content": _text(step.result), **answered, "metadata": {"durationMs": step.duration_ms}}


def _message_object(message: Mapping[str, Any], prefix: str) -> JsonObject:
    """One message of a step; what is no text, no reasoning and no call of a tool is text of its JSON."""
    content: list[JsonObject] = []
    calls: list[JsonObject] = []
    parts = message.get("parts")
    for part in parts if isinstance(parts, list) else ():
        kind, text = (part.get("type"), part.get("content")) if isinstance(part, dict) else (None, None)
        if kind == "tool_call":
            call_id = part.get("id")
            name = call_id if isinstance(call_id, str) else f"{prefix}-{len(calls)}"
            calls.append(_tool_call(name, part.get("name"), part.get("arguments")))
        elif kind == "reasoning" and isinstance(text, str):
            content.append({"type": "reasoning", "reasoning": text, "redacted": part.get("redacted") is True})
        else:
            content.append({"type": "text", "text": text if kind == "text" and isinstance(text, str) else _text(part)})
    role = message.get("role")
    said: JsonObject = {"role": role if role in {"system", "user"} else "assistant", "content": content}
    if role not in {"system", "user", "assistant"}:
        said["metadata"] = {"role": role, "name": message.get("name")}
    return {**said, "tool_calls": calls} if calls and said["role"] == "assistant" else said


def _tool_call(call_id: str, name: object, arguments: object) -> JsonObject:
    given = arguments if isinstance(arguments, dict) else {} if arguments is None else {"arguments": arguments}
    return {"id": call_id, "function": name if isinstance(name, str) else "", "arguments": given, "type": "function"}


def _text_in(content: str | list[JsonObject]) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _message_objects(row: Row) -> list[JsonObject]:
    return [{"role": role, "content": content} for role, content in asked_messages(row)]


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
        "metadata": {"pass": grader.passed, **_votes(grader)},
    }


def _votes(grader: GraderRow) -> JsonObject:
    """What each judge of a jury said; nothing of a grader that is none."""
    if not grader.votes:
        return {}
    kept = {"score", "passed", "reason", "error"}
    votes = {judge: vote.model_dump(by_alias=True, include=kept) for judge, vote in grader.votes.items()}
    return {"tied": grader.tied, "votes": votes}


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
