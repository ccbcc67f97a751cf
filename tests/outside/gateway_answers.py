"""Requests to a gateway over the targets of an input, and what is answered, in the same words for every API."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import yaml
from expected_values import MISSING, ApiName, Step, differences

from support.memory_fleet import memory_fleet
from support.model_server import ModelServer

#: What asks each API, and the fields of its smallest request.
APIS: Mapping[ApiName, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 100}),
    "responses": ("/v1/responses", {"input": "Hello"}),
}

#: How answers end, in the words of the chat API.
ENDS = {
    "end_turn": "stop",
    "completed": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "refusal": "content_filter",
}


def read_chat(bodies: list[Any]) -> dict[str, Any]:
    """What a chat answer says; of a stream, what its chunks say together."""
    text, reasoning, end, tools = "", "", None, dict[Any, dict[str, Any]]()
    for choice in [choice for body in bodies for choice in body.get("choices") or []]:
        message = choice.get("delta") or choice.get("message") or {}
        text += message.get("content") or ""
        reasoning += message.get("reasoning_content") or ""
        end = choice.get("finish_reason") or end
        for index, tool in enumerate(message.get("tool_calls") or []):
            kept = tools.setdefault(tool.get("index", index), {"id": tool.get("id"), "name": "", "arguments": ""})
            kept["id"] = kept["id"] or tool.get("id")
            for name in ("name", "arguments"):
                kept[name] += tool["function"].get(name) or ""
    return {"text": text, "reasoning": reasoning, "end": end, "tools": [*tools.values()]}


def read_messages(bodies: list[Any]) -> dict[str, Any]:
    """What a message says; of a stream, what its events say together."""
    blocks = [dict(block) for body in bodies for block in body.get("content") or []]
    end = None
    for body in bodies:
        end = body.get("stop_reason") or (body.get("delta") or {}).get("stop_reason") or end
        if body.get("type") == "content_block_start":
            blocks.append(dict(body["content_block"]))
        elif body.get("type") == "content_block_delta":
            delta = body["delta"]
            for name, key in {"text": "text", "thinking": "thinking", "partial_json": "json"}.items():
                blocks[-1][key] = blocks[-1].get(key, "") + delta.get(name, "")
    tools = [block for block in blocks if block["type"] == "tool_use"]
    return {
        "text": "".join(block.get("text", "") for block in blocks),
        "reasoning": "".join(block.get("thinking", "") for block in blocks),
        "end": end,
        "tools": [
            {"id": one["id"], "name": one["name"], "arguments": one.get("json") or one["input"]} for one in tools
        ],
    }


def read_responses(bodies: list[Any]) -> dict[str, Any]:
    """What a response says; of a stream, what the response of its last event says."""
    response = next((body["response"] for body in reversed(bodies) if "response" in body), bodies[-1])
    output = response.get("output") or []
    tools = [item for item in output if item["type"] == "function_call"]
    parts = {
        kind: [part["text"] for item in output if item["type"] == kind for part in item.get(of) or [] if "text" in part]
        for kind, of in {"message": "content", "reasoning": "summary"}.items()
    }
    ended = (response.get("incomplete_details") or {}).get("reason") or response.get("status")
    return {
        "text": "".join(parts["message"]),
        "reasoning": "".join(parts["reasoning"]),
        "end": "tool_calls" if tools and ended == "completed" else ended,
        "tools": [{"id": one["call_id"], "name": one["name"], "arguments": one["arguments"]} for one in tools],
    }


READERS = {"chat": read_chat, "messages": read_messages, "responses": read_responses}


def read_answer(api: ApiName | None, response: httpx2.Response, info: Any) -> dict[str, Any]:
    """An answer of the gateway in the same words for every API; ``error`` only where it says one."""
    text = response.content.decode()
    answer: dict[str, Any] = {"status": response.status_code, "headers": dict(response.headers), "info": info}
    if "event-stream" in response.headers.get("content-type", ""):
        data = re.findall(r"^data: ?(.*)$", text, re.MULTILINE)
        bodies = [json.loads(line) for line in data if line not in {"", "[DONE]"}]
        answer["done"] = "[DONE]" in data
    else:
        bodies = [json.loads(text) if text.startswith("{") else {}]
        answer["body"] = bodies[0]
    errors = [body.get("error") or (body.get("response") or {}).get("error") for body in bodies]
    if any(errors):
        answer["error"] = next(filter(None, errors))
    if api is not None and bodies:
        answer |= READERS[api](bodies)
        answer["end"] = ENDS.get(answer["end"], answer["end"])
        for tool in answer["tools"]:
            if isinstance(tool["arguments"], str):
                tool["arguments"] = json.loads(tool["arguments"] or "{}")
    return answer


def sent_by(step: Step, folder: Path) -> Iterator[tuple[str, ApiName | None, str, dict[str, Any]]]:
    """The requests of a step: a name, the API, the path and the rest of what httpx2 sends."""
    if step.request is not None:
        content = (folder / step.request.body).read_bytes() if step.request.body else None
        headers = {"authorization": "Bearer {token}", **step.request.headers}
        more = {"method": step.request.method, "headers": headers, "content": content}
        yield step.request.path, None, step.request.path, more
    if step.call is not None:
        for api, is_streamed in itertools.product(step.call.apis, step.call.stream):
            path, fields = APIS[api]
            body = {"model": step.call.target, "stream": is_streamed, **fields, **step.call.body}
            more = {"method": "POST", "headers": {"authorization": "Bearer {token}"}, "json": body}
            yield f"{api}{' streamed' if is_streamed else ''}", api, path, more


def differences_of_asked(step: Step, server: ModelServer) -> Iterator[str]:
    """Compare what the model server was asked, in any order."""
    if step.asked is not None:
        bodies = sorted((request.body for request in server.requests), key=json.dumps)
        yield from differences(step.asked, bodies, "asked")


async def differences_of_answers(steps: Iterable[Step], folder: Path, server: ModelServer) -> list[str]:
    """Send the requests of steps to a gateway over the targets of quintain.yaml, each in a session of its own."""
    found: list[str] = []
    config = (folder / "quintain.yaml").read_text()
    default_target = next(iter(yaml.safe_load(config)["targets"]))
    async with (
        memory_fleet(folder, config) as fleet,
        httpx2.AsyncClient(base_url=fleet.gateway_url, timeout=30) as client,
    ):
        for step, (place, api, path, more) in [(one, each) for one in steps for each in sent_by(one, folder)]:
            server.requests.clear()
            target = step.call.target if step.call else default_target
            token = (await fleet.open_session(target)).token
            more["headers"] = {name: value.replace("{token}", token) for name, value in more["headers"].items()}
            response = await client.request(url=path, **more)
            info = await client.get("/info", headers={"authorization": f"Bearer {token}"})
            answer = read_answer(api, response, info.json())
            expected = step.answer if step.call is None else {"error": MISSING, **step.answer}
            differs = [*differences(expected, answer, place), *differences_of_asked(step, server)]
            found += [f"{target}: {one}" for one in (*differs, f"{place}: {response.text}")] if differs else []
    return found
