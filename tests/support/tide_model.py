"""A model that agents with a tool `tide` ask: it calls the tool for the question's port, and answers the result."""

from __future__ import annotations

import json
import re
from typing import Any

from support.model_server import ReceivedRequest, ScriptedResponse
from support.model_wires import chat_answer, chat_calls, responses_answer, responses_calls

_PORT, _TIME = re.compile(r"tide in (\w+)"), re.compile(r"\d\d:\d\d")


def answer_tides(request: ReceivedRequest) -> ScriptedResponse:
    """Answer a request of the chat or the Responses API."""
    body: Any = request.body
    if request.path.endswith("/responses"):
        return ScriptedResponse(body=_response(body))
    messages = body["messages"]
    if (asked := _last_user(messages)) is None:
        return ScriptedResponse(body=chat_answer("Which port?"))
    tools = [tool["function"]["name"] for tool in body.get("tools") or ()]
    # smolagents tells the model of a tool's result as a user.
    results = [text for message in messages[asked + 1 :] if _TIME.search(text := text_of(message))]
    if not results:
        port = _PORT.findall(text_of(messages[asked]))[-1]
        return ScriptedResponse(body=chat_calls([("call_1", "tide", json.dumps({"port": port}))]))
    time = _TIME.findall(results[-1])[-1]
    if "final_answer" in tools:
        return ScriptedResponse(body=chat_calls([("call_2", "final_answer", json.dumps({"answer": time}))]))
    return ScriptedResponse(body=chat_answer(time))


def text_of(message: dict[str, Any]) -> str:
    """The text of a message of the chat API."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _last_user(messages: list[dict[str, Any]]) -> int | None:
    asks = [index for index, one in enumerate(messages) if one.get("role") == "user" and _PORT.search(text_of(one))]
    return asks[-1] if asks else None


def _response(body: dict[str, Any]) -> dict[str, object]:
    items = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
    if (asked := _last_user(items)) is None:
        return responses_answer("Which port?")  # Inspect says hello to a server first
    results = [item["output"] for item in items[asked:] if item.get("type") == "function_call_output"]
    if results:
        return responses_answer(results[-1])
    port = _PORT.findall(text_of(items[asked]))[-1]
    return responses_calls([("call_1", "tide", json.dumps({"port": port}))])
