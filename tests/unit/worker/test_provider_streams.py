"""Models that are listened to: their answers piece by piece over the real wire, whole at the end, and broken off."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pytest

from quintain.apis.chat import join_texts
from quintain.contracts.invoke import InvokeRequest, OutputMessage, TokenUsage, ToolCall, ToolCallChunk
from quintain.contracts.values import replace_surrogates
from quintain.errors import BadRequest, ProviderFailed, TimedOut
from quintain_worker.providers.provider import JOIN_SECONDS, Billing, Delta, Provider, ProviderAnswer, ProviderFailure
from support.model_server import ModelServer, ScriptedResponse, StreamedResponse
from support.model_streams import chat_refusal_events, event
from support.model_wires import ANTHROPIC, CHAT, KEY, RESPONSES, WIRES, Wire

QUESTION = InvokeRequest(question="How are you?")

#: Pieces that libraries like to mend: white space alone, tags, chat-template tokens, joined characters.
PARTS = ["\n", " \n", "<think>", "aloud", "</think>", "<|im_start|>", "é\u200d", "🏇", " ", "fine.\r\n "]

wires = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


class TextRecorder:
    """Keeps what it hears; `enough` is set once the text has so many characters. How it is cut is nobody's concern."""

    def __init__(self, enough: int = 1) -> None:
        self.text = ""
        self.calls: list[ToolCallChunk] = []
        self.enough = asyncio.Event()
        self._enough = enough

    def __call__(self, piece: Delta) -> None:
        if isinstance(piece, ToolCallChunk):
            self.calls.append(piece)
            return
        assert isinstance(piece, str)
        self.text += piece
        if len(self.text) >= self._enough:
            self.enough.set()


async def stream_answer(
    provider: Provider, recorder: TextRecorder, request: InvokeRequest = QUESTION, *, seconds: float = 10
) -> ProviderAnswer:
    try:
        return await provider.answer(request, timeout_seconds=seconds, on_text=recorder)
    finally:
        await provider.close()


async def failure(wire: Wire, server: ModelServer, recorder: TextRecorder | None = None) -> ProviderFailure:
    with pytest.raises(ProviderFailure) as caught:
        await stream_answer(wire.provider(server.url), recorder or TextRecorder())
    return caught.value


def before_the_end(wire: Wire, events: list[bytes]) -> int:
    """How many events come before the one that says why the answer ended."""
    named = {"chat": b'"finish_reason": "stop"', "responses": b"response.completed", "anthropic": b"message_delta"}
    return next(index for index, each in enumerate(events) if named[wire.name] in each)


@pytest.mark.parametrize("framed", [True, False], ids=["chunked", "unframed"])
@wires
async def test_a_streamed_answer_is_heard_piece_by_piece_and_is_as_whole_as_any(
    server: ModelServer, wire: Wire, framed: bool
) -> None:
    server.set_responses(
        StreamedResponse(events=wire.events(PARTS), framed=framed), ScriptedResponse(body=wire.answer("".join(PARTS)))
    )
    ear = TextRecorder()
    streamed = await stream_answer(wire.provider(server.url, model="qwen3-think"), ear)
    assert ear.text == "".join(PARTS)
    assert (streamed.text, streamed.model) == ("".join(PARTS), "served-2026-01-01")
    assert streamed.finish_reason == "stop"
    reasoning = None if wire is ANTHROPIC else 3
    assert streamed.token_usage == TokenUsage(input=21, output=9, cached=4, reasoning=reasoning)
    unheard = wire.provider(server.url)
    assert await unheard.answer(QUESTION, timeout_seconds=10) == streamed
    await unheard.close()


@wires
async def test_a_stream_is_asked_for_only_where_somebody_listens(server: ModelServer, wire: Wire) -> None:
    server.set_responses(StreamedResponse(events=wire.events(["Fine."])), ScriptedResponse(body=wire.answer("Fine.")))
    provider = wire.provider(server.url)
    await provider.answer(QUESTION, timeout_seconds=10, on_text=TextRecorder())
    await provider.answer(QUESTION, timeout_seconds=10)
    await provider.close()
    streamed, plain = (asked.body for asked in server.requests)
    assert (streamed.pop("stream"), plain.pop("stream", False)) == (True, False)
    assert streamed.pop("stream_options", None) == ({"include_usage": True} if wire is CHAT else None)
    assert streamed == plain


@wires
async def test_a_piece_is_heard_before_the_next_one_comes(server: ModelServer, wire: Wire) -> None:
    events = wire.events(["one ", "two"])
    server.set_responses(StreamedResponse(events=events, event_count=before_the_end(wire, events), then="stall"))
    ear = TextRecorder(len("one two"))
    call = asyncio.create_task(stream_answer(wire.provider(server.url), ear))
    await asyncio.wait_for(ear.enough.wait(), 10)
    assert (ear.text, call.done(), server.disconnected.is_set()) == ("one two", False, False)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.wait_for(server.disconnected.wait(), 10)


async def test_pieces_that_come_shortly_after_each_other_are_heard_together(server: ModelServer) -> None:
    server.set_responses(StreamedResponse(events=CHAT.events(["x"] * 50), apart_seconds=0.004))
    heard: list[Delta] = []
    provider, began = CHAT.provider(server.url), time.monotonic()
    answer = await provider.answer(QUESTION, timeout_seconds=10, on_text=heard.append)
    joins = (time.monotonic() - began) / JOIN_SECONDS
    await provider.close()
    assert (answer.text, "".join(map(str, heard))) == ("x" * 50, "x" * 50)
    assert 2 <= len(heard) <= joins + 2


def chunk(delta: object, index: int = 0, **fields: object) -> dict[str, Any]:
    return {"id": "1", "choices": [{"index": index, "delta": delta, "finish_reason": None}], **fields}


@pytest.mark.parametrize(
    ("chunks", "joined"),
    [
        ([chunk({"content": "a"}), chunk({"content": "b"}), chunk({"content": "c"})], [chunk({"content": "abc"})]),
        (
            [chunk({"content": "a"}, usage={"x": 1}), chunk({"content": "b"}, usage=None, tier="t")],
            [chunk({"content": "ab"}, usage={"x": 1}, tier="t")],
        ),
    ],
)
def test_chunks_that_only_add_to_a_text_are_joined(chunks: list[dict[str, Any]], joined: list[dict[str, Any]]) -> None:
    assert join_texts(chunks) == joined


@pytest.mark.parametrize(
    "other",
    [
        chunk({"content": "b"}, index=1),
        chunk({"content": "b", "role": "assistant"}),
        chunk({"content": None}),
        chunk({"tool_calls": []}),
        chunk("b"),
        {"choices": [*chunk({"content": "b"})["choices"]] * 2},
        {"choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}]},
        {"choices": [{"index": 0, "delta": {"content": "b"}, "logprobs": {"content": []}}]},
        {"choices": [{"index": 0, "delta": {"content": "b"}, "seed": 1}]},
        {"choices": [], "usage": {}},
        {"choices": ["b"]},
        {},
    ],
)
def test_other_chunks_are_not_joined(other: dict[str, Any]) -> None:
    chunks = [chunk({"content": "a"}), other, chunk({"content": "c"})]
    assert join_texts(chunks) == chunks


@wires
async def test_the_calls_of_a_streamed_answer_are_put_together_in_the_models_own_words(
    server: ModelServer, wire: Wire
) -> None:
    odd = ['{ "ci', 'ty" :\n', ' "F\\u00e8s"', " }"]
    server.set_responses(
        StreamedResponse(events=wire.call_events([("call_1", "weather", odd), ("call_2", "clock", ["{}"])]))
    )
    ear = TextRecorder()
    answer = await stream_answer(wire.provider(server.url), ear)
    assert (ear.text, answer.text, answer.finish_reason) == ("", "", "tool_calls")
    heads = [(piece.index, piece.id, piece.name) for piece in ear.calls if piece.id is not None]
    assert heads == [(0, "call_1", "weather"), (1, "call_2", "clock")]
    assert [piece.arguments for piece in ear.calls if piece.arguments] == [*odd, "{}"]
    calls = [
        ToolCall(id="call_1", name="weather", arguments="".join(odd)),
        ToolCall(id="call_2", name="clock", arguments="{}"),
    ]
    assert answer.output == [OutputMessage(content="", tool_calls=calls)]
    assert answer.token_usage is not None


async def test_a_call_without_arguments_streams_an_empty_object(server: ModelServer) -> None:
    server.set_responses(StreamedResponse(events=ANTHROPIC.call_events([("call_1", "clock", [])])))
    answer = await stream_answer(ANTHROPIC.provider(server.url), TextRecorder())
    assert answer.output is not None
    assert answer.output[0].tool_calls == [ToolCall(id="call_1", name="clock", arguments="{}")]


async def test_a_streamed_refusal_is_what_the_model_said(server: ModelServer) -> None:
    server.set_responses(StreamedResponse(events=chat_refusal_events(["I will ", "not."])))
    ear = TextRecorder()
    answer = await stream_answer(CHAT.provider(server.url), ear)
    assert (answer.text, answer.finish_reason) == ("I will not.", "content_filter")
    # It is no text of the answer, which only its end shows: what is streamed as text cannot be taken back.
    assert (ear.text, answer.output) == ("", [OutputMessage(content="I will not.", refusal="I will not.")])


@pytest.mark.parametrize(
    ("pieces", "heard"),
    [
        (["a\ud83c", "\udfc7b", "c"], "a🏇bc"),
        (["\ud83c", "\udfc7"], "🏇"),
        (["a\ud83c", "b"], "a\ufffdb"),
        (["a", "\ud83c"], "a\ufffd"),
        (["\udfc7"], "\ufffd"),
    ],
)
@wires
async def test_a_character_that_comes_in_halves_is_heard_whole(
    server: ModelServer, wire: Wire, pieces: list[str], heard: str
) -> None:
    server.set_responses(StreamedResponse(events=wire.events(pieces)))
    ear = TextRecorder()
    answer = await stream_answer(wire.provider(server.url), ear)
    assert (ear.text, replace_surrogates(answer.text)) == (heard, heard)


@wires
async def test_an_answer_cut_short_by_its_limit_is_an_answer(server: ModelServer, wire: Wire) -> None:
    words = {
        "chat": (b'"finish_reason": "stop"', b'"finish_reason": "length"'),
        "responses": (
            b'"status": "completed", "output"',
            b'"incomplete_details": {"reason": "max_output_tokens"}, "status": "incomplete", "output"',
        ),
        "anthropic": (b'"end_turn"', b'"max_tokens"'),
    }
    events = [each.replace(*words[wire.name]) for each in wire.events(["Fi"])]
    if wire is RESPONSES:
        events[-1] = re.sub(rb"response\.completed", b"response.incomplete", events[-1])
    server.set_responses(StreamedResponse(events=events))
    answer = await stream_answer(wire.provider(server.url), TextRecorder())
    assert (answer.text, answer.finish_reason) == ("Fi", "length")


@wires
async def test_connections_are_kept_after_a_stream(server: ModelServer, wire: Wire) -> None:
    server.set_responses(StreamedResponse(events=wire.events(["Fine."])))
    provider = wire.provider(server.url)
    for _ in range(5):
        await provider.answer(QUESTION, timeout_seconds=10, on_text=TextRecorder())
    await provider.close()
    assert (len(server.requests), server.connections) == (5, 1)


def assert_in_doubt(failed: ProviderFailure) -> None:
    assert isinstance(failed.fault, ProviderFailed)
    assert (failed.billing, failed.retryable, failed.fault.charged) == (Billing.UNKNOWN, True, True)
    assert KEY not in failed.fault.message


@pytest.mark.parametrize("framed", [True, False], ids=["chunked", "unframed"])
@wires
async def test_a_stream_that_closes_half_way_is_in_doubt(server: ModelServer, wire: Wire, framed: bool) -> None:
    events = wire.events(["one ", "two"])
    server.set_responses(
        StreamedResponse(events=events, event_count=before_the_end(wire, events), then="close", framed=framed)
    )
    ear = TextRecorder()
    assert_in_doubt(await failure(wire, server, ear))
    assert ear.text == "one two"
    assert len(server.requests) == 1


@pytest.mark.parametrize("sent", [0, 1], ids=lambda sent: f"after {sent} events")
@pytest.mark.parametrize("then", ["end", "close"])
@wires
async def test_a_stream_that_hardly_began_is_in_doubt(server: ModelServer, wire: Wire, sent: int, then: str) -> None:
    server.set_responses(StreamedResponse(events=wire.events(["one"]), event_count=sent, then=then))  # type: ignore[arg-type]
    assert_in_doubt(await failure(wire, server))


GARBAGE = [b"data: {oops\n\n", b"data: \xff\xfe\n\n", b"data: []\n\n", b'data: "text"\n\n', b"data: 5\n\n"]


@pytest.mark.parametrize("garbage", GARBAGE)
@wires
async def test_garbage_in_a_stream_is_in_doubt(server: ModelServer, wire: Wire, garbage: bytes) -> None:
    events = wire.events(["one ", "two"])
    named = b"event: content_block_delta\n" if wire is ANTHROPIC else b""
    at = before_the_end(wire, events)
    server.set_responses(StreamedResponse(events=[*events[:at], named + garbage]))
    ear = TextRecorder()
    assert_in_doubt(await failure(wire, server, ear))
    assert ear.text == "one two"


@wires
async def test_a_whole_answer_where_a_stream_was_asked_for_is_taken_as_it_is(server: ModelServer, wire: Wire) -> None:
    server.set_responses(ScriptedResponse(body=wire.answer("Fine.")))
    recorder = TextRecorder()
    streamed = await stream_answer(wire.provider(server.url), recorder)
    assert recorder.text == streamed.text == "Fine."
    unheard = wire.provider(server.url)
    assert await unheard.answer(QUESTION, timeout_seconds=10) == streamed
    await unheard.close()


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"choices": [], "output": 1, "content": {}}', b"data: {}\n\n"])
@wires
async def test_json_that_is_no_answer_is_in_doubt_where_a_stream_was_asked_for(
    server: ModelServer, wire: Wire, body: bytes
) -> None:
    server.set_responses(ScriptedResponse(body=body))
    assert_in_doubt(await failure(wire, server))


@pytest.mark.parametrize("sent", [0, 3], ids=lambda sent: f"after {sent} events")
@wires
async def test_an_error_in_a_stream_is_in_doubt_and_is_not_quoted(server: ModelServer, wire: Wire, sent: int) -> None:
    events = wire.events(["one ", "two"])
    server.set_responses(StreamedResponse(events=[*events[:sent], wire.error(f"invalid key {KEY}"), *events[sent:]]))
    failed = await failure(wire, server)
    assert_in_doubt(failed)
    assert "broke off in the middle of its answer" in failed.fault.message
    assert len(server.requests) == 1


@pytest.mark.parametrize("code", ["rate_limit_exceeded", "insufficient_quota", "invalid_api_key"])
async def test_a_status_named_in_a_stream_is_no_proof_of_anything(server: ModelServer, code: str) -> None:
    error = event({"error": {"message": KEY, "type": "x", "code": code}})
    server.set_responses(StreamedResponse(events=[*CHAT.events(["one"])[:2], error]))
    assert_in_doubt(await failure(CHAT, server))


@wires
async def test_a_stream_that_stalls_is_ended_at_the_deadline(server: ModelServer, wire: Wire) -> None:
    events = wire.events(["one ", "two"])
    stalled = StreamedResponse(events=events, event_count=before_the_end(wire, events), then="stall")
    server.set_responses(StreamedResponse(events=events), stalled)
    provider, ear = wire.provider(server.url), TextRecorder()
    # The libraries import much of themselves at a process's first call, which may outlast the deadline unsent.
    await provider.answer(QUESTION, timeout_seconds=10, on_text=TextRecorder())
    with pytest.raises(ProviderFailure) as caught:
        await stream_answer(provider, ear, seconds=1)
    assert isinstance(caught.value.fault, TimedOut)
    assert (caught.value.billing, caught.value.retryable) == (Billing.UNKNOWN, False)
    assert ear.text == "one two"
    await asyncio.wait_for(server.disconnected.wait(), 10)
    assert len(server.requests) == 2


@wires
async def test_cancelling_before_the_first_event_closes_the_request(server: ModelServer, wire: Wire) -> None:
    server.set_responses(StreamedResponse(events=[], then="stall"))
    call = asyncio.create_task(stream_answer(wire.provider(server.url), TextRecorder()))
    await asyncio.wait_for(server.arrived.wait(), 10)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.wait_for(server.disconnected.wait(), 10)


@wires
async def test_what_cannot_be_asked_is_refused_before_any_stream(server: ModelServer, wire: Wire) -> None:
    request = InvokeRequest.model_validate({"question": "q", "settings": {"toolChoice": "auto"}})
    with pytest.raises(ProviderFailure) as caught:
        await stream_answer(wire.provider(server.url), TextRecorder(), request)
    assert isinstance(caught.value.fault, BadRequest)
    assert server.requests == []
