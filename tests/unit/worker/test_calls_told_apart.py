"""Calls of tools in streams whose servers count them wrongly, or not at all: each is itself in every API."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from quintain.contracts.api_request import ApiName, ApiRequest, json_text
from quintain_worker.providers.provider import Delta
from support.model_server import ModelServer, StreamedResponse
from support.model_streams import event
from support.model_wires import ANTHROPIC, CHAT, RESPONSES, Wire

REQUESTS: dict[ApiName, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "q"}]},
    "responses": {"input": "q"},
    "messages": {"messages": [{"role": "user", "content": "q"}], "max_tokens": 9},
}

#: What a server does with the place of a part.
WRONG: dict[str, Callable[[dict[str, Any], str], object]] = {
    "all the same": lambda holder, name: holder.update({name: 0}) if name in holder else None,
    "none": lambda holder, name: holder.pop(name, None),
    "null": lambda holder, name: holder.update({name: None}) if name in holder else None,
}


def written_by(events: list[bytes], change: Callable[[dict[str, Any]], object]) -> StreamedResponse:
    """These events, each of which the server writes in its own way."""
    written = []
    for each in events:
        head, _, data = each.partition(b"data: ")
        if b"[DONE]" not in data:
            fields = json.loads(data)
            change(fields)
            data = json.dumps(fields).encode() + b"\n\n"
        written.append(head + b"data: " + data)
    return StreamedResponse(events=written)


async def calls_of(server: ModelServer, wire: Wire, api: ApiName, response: StreamedResponse) -> list[Any]:
    """The id, the name and the arguments of each call in the answer."""
    server.set_responses(response)
    provider, heard = wire.provider(server.url), list[Delta]()
    try:
        request = ApiRequest(api, json_text(REQUESTS[api]))
        body: Any = (await provider.answer(request, timeout_seconds=10, on_text=heard.append)).body  # type: ignore[arg-type]
    finally:
        await provider.close()
    if api == "messages":
        return [[item["id"], item["name"], item["input"]] for item in body["content"] if item["type"] == "tool_use"]
    if api == "responses":
        items = [item for item in body["output"] if item["type"] == "function_call"]
        return [[item["call_id"], item["name"], json.loads(item["arguments"])] for item in items]
    calls = body["choices"][0]["message"]["tool_calls"]
    return [[call.get("id"), call["function"]["name"], json.loads(call["function"]["arguments"])] for call in calls]


CALLS = [["a", "f", {"x": 1}], ["b", "g", {"y": 2}]]
STREAMED = [("a", "f", ['{"x"', ":1}"]), ("b", "g", ['{"y"', ":2}"])]

apis = pytest.mark.parametrize("api", REQUESTS)


@pytest.mark.parametrize("way", WRONG)
@apis
async def test_the_blocks_of_a_message_are_told_apart(server: ModelServer, api: ApiName, way: str) -> None:
    response = written_by(ANTHROPIC.call_events(STREAMED), lambda fields: WRONG[way](fields, "index"))
    assert await calls_of(server, ANTHROPIC, api, response) == CALLS


@pytest.mark.parametrize("way", WRONG)
@apis
async def test_the_items_of_a_response_are_told_apart(server: ModelServer, api: ApiName, way: str) -> None:
    response = written_by(RESPONSES.call_events(STREAMED), lambda fields: WRONG[way](fields, "output_index"))
    assert await calls_of(server, RESPONSES, api, response) == CALLS


def deltas(*calls: dict[str, Any]) -> StreamedResponse:
    """A chat completion with these pieces of calls, one in each chunk."""
    events = CHAT.call_events([])
    chunks = [event({"id": "1", "choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}) for call in calls]
    return StreamedResponse(events=[events[0], *chunks, *events[1:]])


def piece(
    index: int | None, call_id: str | None = None, name: str | None = None, arguments: str = ""
) -> dict[str, Any]:
    fields = {"index": index, "id": call_id, "function": {"name": name, "arguments": arguments}}
    return {key: value for key, value in fields.items() if value is not None}


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(0, "a", "f", '{"x":1}'), piece(0, "b", "g", '{"y":2}')],
        [piece(None, "a", "f", '{"x":1}'), piece(None, "b", "g", '{"y":2}')],
        [piece(0, "a", "f"), piece(0, "b", "g"), piece(0, "b", None, '{"y":2}'), piece(0, "a", None, '{"x":1}')],
        [piece(0, "a"), piece(0, None, "f"), piece(0, None, None, '{"x":1}'), piece(1, "b", "g", '{"y":2}')],
        [piece(0, None, "f"), piece(0, "a", None, '{"x":1}'), piece(1, None, "g"), piece(1, "b", None, '{"y":2}')],
        [piece(0, "a", "f", "{"), piece(0, "a", "f", '"x":1}'), piece(0, "b", "g", "{"), piece(0, "b", "g", '"y":2}')],
        [piece(7, "a", "f", '{"x":1}'), piece(3, "b", "g", '{"y":2}')],
    ],
    ids=["one index", "no index", "in turns", "id before name", "name before id", "said again", "any index"],
)
@apis
async def test_the_calls_of_a_chat_completion_are_told_apart(
    server: ModelServer, api: ApiName, pieces: list[dict[str, Any]]
) -> None:
    assert await calls_of(server, CHAT, api, deltas(*pieces)) == CALLS


async def test_nulls_of_a_call_are_left_out_for_clients_that_join_what_comes(server: ModelServer) -> None:
    calls = [
        {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 0, "id": None, "type": None, "function": {"name": None, "arguments": "{}"}},
    ]
    server.set_responses(deltas(*calls))
    provider, heard = CHAT.provider(server.url), list[Delta]()
    request = ApiRequest("chat", json_text(REQUESTS["chat"]))
    await provider.answer(request, timeout_seconds=10, on_text=heard.append)  # type: ignore[arg-type]
    await provider.close()
    parts: Any = [event["choices"][0]["delta"].get("tool_calls") for event in heard if event.get("choices")]  # type: ignore[union-attr]
    assert [part for part in parts if part][1] == [{"index": 0, "function": {"arguments": "{}"}}]


@apis
async def test_a_name_may_come_in_pieces(server: ModelServer, api: ApiName) -> None:
    pieces = [piece(0, "a", "get_"), piece(0, None, "weather"), piece(0, None, None, "{}"), piece(1, "b", "g", "{}")]
    assert await calls_of(server, CHAT, api, deltas(*pieces)) == [["a", "get_weather", {}], ["b", "g", {}]]


@apis
async def test_without_ids_a_name_begins_the_next_call(server: ModelServer, api: ApiName) -> None:
    pieces = [piece(0, None, "f", '{"x":'), piece(0, None, "f", "1}"), piece(0, None, "f", '{"x":2}')]
    (one, *first), (other, *second) = await calls_of(server, CHAT, api, deltas(*pieces))
    assert (first, second, one != other or api == "chat") == (["f", {"x": 1}], ["f", {"x": 2}], True)
