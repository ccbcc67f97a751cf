"""Reads what the command lines of coding agents print as JSON: Claude Code, Codex, Gemini CLI and opencode.

Lines of other types than these are left out: a later version may print more.
"""

from __future__ import annotations

import math
from typing import Any

from quintain.apis.translation import objects
from quintain.config.program_targets import PresetName
from quintain.contracts.invoke import TokenUsage
from quintain_worker.providers.agents.lines import Line, PrintedAnswer, ReadLine, TurnReading

#: How much of the error of a tool is the class of its step.
_FAILED = "error"


def read_claude_line(line: Line, reading: TurnReading) -> None:
    """Read a line of ``claude -p --output-format stream-json --verbose``. Raises `ValueError`."""
    message = _object(line.get("message"))
    match line.get("type"):
        case "assistant":
            _read_claude_message(message, reading)
        case "user":
            for block in objects(message.get("content")):
                if block.get("type") == "tool_result":
                    reading.tool_ended(
                        str(block.get("tool_use_id")), block.get("content"), _failed(block.get("is_error"))
                    )
        case "result":
            result = line.get("result")
            if line.get("is_error") or not isinstance(result, str):
                reading.fail(result or line.get("subtype"), line)
            else:
                usage, cost = _claude_usage(_object(line.get("usage"))), line.get("total_cost_usd")
                reading.finish(PrintedAnswer(text=result, token_usage=usage, estimated_cost_usd=_amount(cost)))
        case _:
            pass


def _read_claude_message(message: Line, reading: TurnReading) -> None:
    parts: list[Line] = []
    calls: list[Line] = []
    for block in objects(message.get("content")):
        match block:
            case {"type": "text", "text": text}:
                parts.append({"type": "text", "content": text})
            case {"type": "thinking", "thinking": text}:
                parts.append({"type": "reasoning", "content": text})
            case {"type": "tool_use", "id": call_id, "name": name}:
                parts.append({"type": "tool_call", "id": call_id, "name": name, "arguments": block.get("input")})
                calls.append(block)
            case _:
                parts.append(block)
    model = message.get("model")
    reading.add_message(parts, model=model if isinstance(model, str) else None)
    for call in calls:
        reading.tool_started(str(call["id"]), str(call["name"]), call.get("input"))


def _claude_usage(usage: Line) -> TokenUsage | None:
    written, cached = _count(usage, "cache_creation_input_tokens"), _count(usage, "cache_read_input_tokens")
    total = _count(usage, "input_tokens") + written + cached
    return TokenUsage(input=total, output=_count(usage, "output_tokens"), cached=cached, cache_write=written)


def read_codex_line(line: Line, reading: TurnReading) -> None:
    """Read a line of ``codex exec --json``. Raises `ValueError`."""
    item = _object(line.get("item"))
    match line.get("type"):
        case "item.started" if item.get("type") in _CODEX_TOOLS:
            _start_codex_tool(item, reading)
        case "item.completed" if item.get("type") in _CODEX_TOOLS:
            _start_codex_tool(item, reading)
            failed = _failed(item.get("status") == "failed" or item.get("error"))
            reading.tool_ended(str(item.get("id")), _codex_result(item), failed)
        case "item.completed":
            _read_codex_item(item, reading)
        case "error":
            reading.add_log(str(line.get("message")))
        case "turn.failed":
            reading.fail(_object(line.get("error")).get("message"), line)
        case "turn.completed":
            usage = _object(line.get("usage"))
            tokens = TokenUsage(
                input=_count(usage, "input_tokens"),
                output=_count(usage, "output_tokens"),
                cached=_count(usage, "cached_input_tokens"),
            )
            reading.finish(PrintedAnswer(text=reading.last_text, token_usage=tokens))
        case _:
            pass


#: What Codex runs → the fields that say what it was asked.
_CODEX_TOOLS = {
    "command_execution": ("command",),
    "file_change": ("changes",),
    "mcp_tool_call": ("arguments",),
    "web_search": ("query",),
    "todo_list": ("items",),
}


def _start_codex_tool(item: Line, reading: TurnReading) -> None:
    kind = str(item.get("type"))
    asked = {field: item.get(field) for field in _CODEX_TOOLS[kind]}
    name = f"{item.get('server')}.{item.get('tool')}" if kind == "mcp_tool_call" else kind
    reading.tool_started(str(item.get("id")), name, asked.get("arguments", asked))


def _codex_result(item: Line) -> Any:
    if item.get("type") == "command_execution":
        return {"output": item.get("aggregated_output"), "exit_code": item.get("exit_code")}
    return item.get("error") or item.get("result")


def _read_codex_item(item: Line, reading: TurnReading) -> None:
    text = str(item.get("text"))
    match item.get("type"):
        case "agent_message":
            reading.add_message([{"type": "text", "content": text}])
        case "reasoning":
            reading.add_message([{"type": "reasoning", "content": text}])
        case "error":
            reading.add_log(str(item.get("message")))
        case _:
            pass


def read_gemini_line(line: Line, reading: TurnReading) -> None:
    """Read a line of ``gemini --output-format stream-json``. Raises `ValueError`."""
    call_id = str(line.get("tool_id"))
    match line.get("type"):
        case "message" if line.get("role") == "assistant":
            reading.add_message(
                [{"type": "text", "content": str(line.get("content"))}], goes_on=bool(line.get("delta"))
            )
        case "tool_use":
            reading.tool_started(call_id, str(line.get("tool_name")), line.get("parameters"))
        case "tool_result":
            failed = _failed(line.get("status") == "error")
            reading.tool_ended(call_id, line.get("output") if failed is None else line.get("error"), failed)
        case "error":
            reading.add_log(str(line.get("message")))
        case "result" if line.get("status") == "success":
            stats = _object(line.get("stats"))
            tokens = TokenUsage(
                input=_count(stats, "input_tokens"),
                output=_count(stats, "output_tokens"),
                cached=_count(stats, "cached"),
            )
            reading.finish(PrintedAnswer(text=reading.last_text, token_usage=tokens))
        case "result":
            reading.fail(_object(line.get("error")).get("message"), line)
        case _:
            pass


def read_opencode_line(line: Line, reading: TurnReading) -> None:
    """Read a line of ``opencode run --format json``. Raises `ValueError`."""
    part = _object(line.get("part"))
    match line.get("type"):
        case "text":
            reading.add_message([{"type": "text", "content": str(part.get("text"))}])
        case "reasoning":
            reading.add_message([{"type": "reasoning", "content": str(part.get("text"))}])
        case "tool_use":
            call_id, state = str(part.get("callID")), _object(part.get("state"))
            reading.tool_started(call_id, str(part.get("tool")), state.get("input"))
            failed, times = _failed(state.get("status") == "error"), _object(state.get("time"))
            took = _count(times, "end") - _count(times, "start")
            result = state.get("output") if failed is None else state.get("error")
            reading.tool_ended(call_id, result, failed, duration_ms=max(0, took))
        case "step_finish":
            tokens = _object(part.get("tokens"))
            cached, written = (_count(_object(tokens.get("cache")), name) for name in ("read", "write"))
            reading.add_tokens(
                input=_count(tokens, "input") + cached + written,
                output=_count(tokens, "output") + _count(tokens, "reasoning"),
                cached=cached,
                cache_write=written,
            )
            # It goes on after its tools have run.
            if part.get("reason") != "tool-calls":
                reading.finish(PrintedAnswer(text=reading.last_text, token_usage=reading.tokens))
        case "error":
            error = _object(line.get("error"))
            reading.fail(_object(error.get("data")).get("message") or error.get("name"), line)
        case _:
            pass


#: The preset of a target → what reads its lines.
PRESET_READERS: dict[PresetName, ReadLine] = {
    "claude-code": read_claude_line,
    "codex": read_codex_line,
    "gemini": read_gemini_line,
    "opencode": read_opencode_line,
}


def _object(value: object) -> Line:
    return value if isinstance(value, dict) else {}


def _count(usage: Line, name: str) -> int:
    count = usage.get(name)
    return count if isinstance(count, int) and count >= 0 else 0


def _amount(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value < math.inf else None


def _failed(is_error: object) -> str | None:
    return _FAILED if is_error else None
