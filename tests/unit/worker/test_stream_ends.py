"""The end of a streamed answer: it is complete once it says so, whatever its connection does then."""

from __future__ import annotations

import copy
import json
import time
from typing import Literal

import pytest

from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ProviderFailed
from quintain_worker.providers import model_api
from quintain_worker.providers.provider import Billing, Delta, ProviderAnswer, ProviderFailure
from support.model_server import ModelServer, ScriptedResponse, StreamedResponse
from support.model_streams import event
from support.model_wires import ANTHROPIC, CHAT, RESPONSES, WIRES, Wire

Then = Literal["end", "close", "reset", "stall"]

wires = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


async def answer_of(
    server: ModelServer, wire: Wire, response: ScriptedResponse | StreamedResponse, *, is_streamed: bool = True
) -> tuple[ProviderAnswer, list[Delta]]:
    server.set_responses(response)
    provider, heard = wire.provider(server.url), list[Delta]()
    try:
        listener = heard.append if is_streamed else None
        answer = await provider.answer(InvokeRequest(question="q"), timeout_seconds=10, on_text=listener)
    finally:
        await provider.close()
    return answer, heard


@pytest.mark.parametrize("then", ["end", "close", "reset", "stall"])
@wires
async def test_a_stream_that_had_its_end_mark_is_complete(server: ModelServer, wire: Wire, then: Then) -> None:
    began = time.monotonic()
    answer, heard = await answer_of(server, wire, StreamedResponse(events=wire.events(["Fi", "ne."]), then=then))
    assert (answer.text, "".join(map(str, heard)), answer.finish_reason) == ("Fine.", "Fine.", "stop")
    assert answer.token_usage is not None
    assert time.monotonic() - began < 5


@wires
async def test_what_comes_after_the_end_mark_is_not_read(server: ModelServer, wire: Wire) -> None:
    answer, _ = await answer_of(server, wire, StreamedResponse(events=[*wire.events(["Fine."]), b"data: {oops\n\n"]))
    assert answer.text == "Fine."


@pytest.mark.parametrize("then", ["end", "close", "reset", "stall"])
async def test_a_chat_completion_is_complete_once_it_says_why_it_ended(
    server: ModelServer, then: Then, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_api, "USAGE_SECONDS", 0.2)
    *events, _usage, _done = CHAT.events(["Fine."])
    answer, _ = await answer_of(server, CHAT, StreamedResponse(events=events, then=then))
    assert (answer.text, answer.finish_reason, answer.token_usage) == ("Fine.", "stop", None)


async def test_a_chat_completion_with_its_end_mark_may_lack_the_reason(server: ModelServer) -> None:
    events = [each for each in CHAT.events(["Fine."]) if b'"finish_reason": "stop"' not in each]
    answer, _ = await answer_of(server, CHAT, StreamedResponse(events=events))
    assert (answer.text, answer.finish_reason) == ("Fine.", None)


@pytest.mark.parametrize("then", ["end", "close", "reset"])
@pytest.mark.parametrize(
    ("wire", "mark"),
    [(CHAT, b'"finish_reason": "stop"'), (RESPONSES, b"response.completed"), (ANTHROPIC, b"message_stop")],
    ids=lambda value: getattr(value, "name", ""),
)
async def test_a_stream_without_its_end_is_in_doubt(server: ModelServer, wire: Wire, mark: bytes, then: Then) -> None:
    events = wire.events(["Fine."])
    count = next(index for index, each in enumerate(events) if mark in each)
    with pytest.raises(ProviderFailure) as caught:
        await answer_of(server, wire, StreamedResponse(events=events, event_count=count, then=then))
    assert isinstance(caught.value.fault, ProviderFailed)
    assert caught.value.billing is Billing.UNKNOWN


@pytest.mark.parametrize("nothing", ["null", "", "[]", "{}", "ping", '"ping"', '{"type": "ping"}', ": a comment"])
@wires
async def test_events_that_say_nothing_are_passed_over(server: ModelServer, wire: Wire, nothing: str) -> None:
    silent = event(nothing) if nothing[:1] != ":" else f"{nothing}\n\n".encode()
    events = [piece for each in wire.events(["Fi", "ne."]) for piece in (silent, each)]
    answer, heard = await answer_of(server, wire, StreamedResponse(events=events))
    assert (answer.text, "".join(map(str, heard))) == ("Fine.", "Fine.")


@pytest.mark.parametrize("status", [201, 202, 203])
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@wires
async def test_another_status_of_success_is_judged_as_what_it_holds(
    server: ModelServer, wire: Wire, status: int, *, is_streamed: bool
) -> None:
    whole = ScriptedResponse(status=status, body=wire.answer("Fine."))
    answer, _ = await answer_of(server, wire, whole, is_streamed=is_streamed)
    assert answer.text == "Fine."
    with pytest.raises(ProviderFailure):
        await answer_of(server, wire, ScriptedResponse(status=status, body=b""), is_streamed=is_streamed)


@pytest.mark.parametrize("status", ["queued", "in_progress"])
async def test_a_response_that_is_not_there_yet_is_no_answer(server: ModelServer, status: str) -> None:
    body = RESPONSES.answer("") | {"status": status, "output": []}
    with pytest.raises(ProviderFailure) as caught:
        await answer_of(server, RESPONSES, ScriptedResponse(status=202, body=body), is_streamed=False)
    assert status in caught.value.fault.message


@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream", "application/json", "text/html"])
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@wires
async def test_a_whole_answer_is_read_whatever_its_type_says(
    server: ModelServer, wire: Wire, kind: str, *, is_streamed: bool
) -> None:
    whole = ScriptedResponse(body=wire.answer("Fine."), headers={"content-type": kind})
    answer, heard = await answer_of(server, wire, whole, is_streamed=is_streamed)
    assert (answer.text, "".join(map(str, heard))) == ("Fine.", "Fine." if is_streamed else "")


@wires
async def test_a_stream_that_nobody_asked_for_is_an_answer(server: ModelServer, wire: Wire) -> None:
    answer, heard = await answer_of(server, wire, StreamedResponse(events=wire.events(["Fine."])), is_streamed=False)
    assert (answer.text, heard) == ("Fine.", [])


@pytest.mark.parametrize(
    ("number", "place"),
    [("1e400", "usage.prompt_tokens"), ("NaN", "choices.0.index"), ("-Infinity", "created"), ("-1e999", "own.0.a")],
)
async def test_a_number_that_is_none_is_named(server: ModelServer, number: str, place: str) -> None:
    *path, name = place.split(".")
    body = copy.deepcopy(CHAT.answer("Fine.")) | {"own": [{"a": 1}]}
    holder = body
    for key in path:
        holder = holder[int(key) if key.isdigit() else key]  # type: ignore[index, assignment]
    holder[name] = "NUMBER"
    written = json.dumps(body).replace('"NUMBER"', number).encode()
    with pytest.raises(ProviderFailure) as caught:
        await answer_of(server, CHAT, ScriptedResponse(body=written), is_streamed=False)
    assert place in caught.value.fault.message
    assert caught.value.billing is Billing.UNKNOWN
