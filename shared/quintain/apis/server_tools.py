"""The tools that a vendor ran for an answer of its model, such as a search: what was asked and found. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from quintain.apis.answer_json import parse_object
from quintain.apis.translation import Json, objects
from quintain.contracts.agents import AgentStep

#: Calls in OpenAI's responses that the caller runs itself.
_CALLERS_OWN: Final = frozenset(
    {"function_call", "custom_tool_call", "computer_call", "local_shell_call", "shell_call", "apply_patch_call"}
)

#: Where the items of OpenAI's responses have what a tool found.
_RESULTS: Final = ("output", "outputs", "results", "result")


def server_tool_steps(api: str, answer: Json) -> tuple[AgentStep, ...]:
    """Return a step for each tool that a vendor ran for a whole answer of this API."""
    if api == "messages":
        return tuple(_of_blocks(objects(answer.get("content"))))
    return tuple(_of_items(objects(answer.get("output")))) if api == "responses" else ()


def _of_blocks(blocks: list[Json]) -> Iterator[AgentStep]:
    """What Anthropic ran: a block with the call, and one with its result."""
    found = {str(block["tool_use_id"]): block for block in blocks if "tool_use_id" in block}
    for block in blocks:
        if block.get("type") in {"server_tool_use", "mcp_tool_use"}:
            result = found.get(str(block.get("id")), {})
            content = result.get("content")
            is_error = result.get("is_error") is True or (isinstance(content, dict) and "error_code" in content)
            yield AgentStep(
                operation="execute_tool",
                tool=str(block.get("name")),
                tool_call_id=str(block.get("id")),
                arguments=block.get("input"),
                result=content,
                error_type="_OTHER" if is_error else None,
            )


def _of_items(items: list[Json]) -> Iterator[AgentStep]:
    """What OpenAI ran: an item has the call and its result."""
    for item in items:
        kind = str(item.get("type"))
        if kind.endswith("_call") and kind not in _CALLERS_OWN:
            given = {key: item[key] for key in item if key not in {"type", "id", "status", "name", "error", *_RESULTS}}
            arguments = parse_object(item.get("arguments"))
            yield AgentStep(
                operation="execute_tool",
                tool=str(item.get("name") or kind.removesuffix("_call")),
                tool_call_id=str(item.get("id")),
                arguments=given if arguments is None else arguments,
                result=next((item[name] for name in _RESULTS if item.get(name) is not None), item.get("error")),
                error_type="_OTHER" if item.get("error") or item.get("status") == "failed" else None,
            )
