"""What is read of a model's answer over the real wire: whole or heard piece by piece, it is the same answer."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any, Literal

import pytest

from quintain.apis.chat import join_texts
from quintain.apis.streams import STREAMS
from quintain.contracts.api_request import ApiName
from quintain.contracts.invoke import (
    OutputMessage,
    Reasoning,
    ReasoningChunk,
    TokenUsage,
    ToolCall,
    ToolCallChunk,
)
from quintain.contracts.quota import RateFigures, RateReport
from quintain.contracts.values import replace_surrogates
from quintain_worker.providers import model_api
from quintain_worker.providers.provider import JOIN_SECONDS, Delta, ProviderAnswer
from support.model_calls import api_request, call, failed_call, text_of, whole_and_streamed, wires
from support.model_server import ModelServer, ScriptedResponse, StreamedResponse
from support.model_streams import (
    anthropic_thinking_events,
    chat_reasoning_events,
    chat_refusal_events,
    event,
    responses_reasoning_events,
)
from support.model_wires import ANTHROPIC, CHAT, RESPONSES, Wire

Script = ScriptedResponse | StreamedResponse

#: Pieces that libraries like to mend: white space alone, tags, chat-template tokens, joined characters.
PARTS = ["\n", " \n", "<think>", "aloud", "</think>", "<|im_start|>", "é\u200d", "🏇", " ", "fine.\r\n "]


async def read(
    server: ModelServer, wire: Wire, response: Script, *, is_streamed: bool | None = None
) -> tuple[ProviderAnswer, list[Delta]]:
    """The answer to a question and what was heard of it; it is asked for as it is answered, unless it is said."""
    server.set_responses(response)
    heard: list[Delta] = []
    listens = isinstance(response, StreamedResponse) if is_streamed is None else is_streamed
    return await call(wire.provider(server.url), heard=heard if listens else None), heard


@pytest.mark.parametrize("framed", [True, False], ids=["chunked", "unframed"])
@wires
async def test_a_streamed_answer_is_heard_piece_by_piece_and_is_as_whole_as_any(
    server: ModelServer, wire: Wire, framed: bool
) -> None:
    streamed, heard = await read(server, wire, StreamedResponse(events=wire.events(PARTS), framed=framed))
    whole, unheard = await read(server, wire, ScriptedResponse(body=wire.answer("".join(PARTS))))
    assert (text_of(heard), unheard, whole) == ("".join(PARTS), [], streamed)
    assert (whole.text, whole.model, whole.finish_reason) == ("".join(PARTS), "served-2026-01-01", "stop")
    reasoning = None if wire is ANTHROPIC else 3
    assert whole.token_usage == TokenUsage(input=21, output=9, cached=4, reasoning=reasoning)
    assert whole.output is None
    # A stream is asked for only where somebody listens.
    as_stream, plain = (asked.body for asked in server.requests)
    assert (as_stream.pop("stream"), plain.pop("stream", False)) == (True, False)
    assert as_stream.pop("stream_options", None) == ({"include_usage": True} if wire is CHAT else None)
    assert as_stream == plain


@wires
async def test_an_answer_says_what_its_headers_say_of_the_limits(server: ModelServer, wire: Wire) -> None:
    words = {"limit": "60", "remaining": "3", "reset": "57s"}
    headers = {f"x-ratelimit-{word}-requests": text for word, text in words.items()}
    told = RateReport(requests=RateFigures(limit=60, remaining=3, reset_seconds=57))
    for said, rates in ((headers, told), ({}, None)):
        answer, _ = await read(server, wire, ScriptedResponse(body=wire.answer("Fine."), headers=said))
        assert answer.rates == rates


@wires
async def test_a_piece_is_heard_before_the_next_one_comes(server: ModelServer, wire: Wire) -> None:
    events = wire.events(["one ", "two"])
    server.set_responses(StreamedResponse(events=events, event_count=wire.before_end(events), then="stall"))
    heard: list[Delta] = []
    calling = asyncio.create_task(call(wire.provider(server.url), heard=heard))
    async with asyncio.timeout(10):
        while text_of(heard) != "one two":
            await asyncio.sleep(0.005)
    assert (calling.done(), server.disconnected.is_set()) == (False, False)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await asyncio.wait_for(server.disconnected.wait(), 10)


async def test_pieces_that_come_shortly_after_each_other_are_heard_together(server: ModelServer) -> None:
    began = time.monotonic()
    response = StreamedResponse(events=CHAT.events(["x"] * 50), apart_seconds=0.004)
    answer, heard = await read(server, CHAT, response)
    joins = (time.monotonic() - began) / JOIN_SECONDS
    assert (answer.text, text_of(heard)) == ("x" * 50, "x" * 50)
    assert 2 <= len(heard) <= joins + 2


def chunk(delta: object, index: int = 0, **fields: object) -> dict[str, Any]:
    return {"id": "1", "choices": [{"index": index, "delta": delta, "finish_reason": None}], **fields}


def test_chunks_that_only_add_to_a_text_are_joined() -> None:
    assert join_texts([chunk({"content": each}) for each in "abc"]) == [chunk({"content": "abc"})]
    counted = [chunk({"content": "a"}, usage={"x": 1}), chunk({"content": "b"}, usage=None, tier="t")]
    assert join_texts(counted) == [chunk({"content": "ab"}, usage={"x": 1}, tier="t")]


@pytest.mark.parametrize(
    "other",
    [
        chunk({"content": "b"}, index=1),
        chunk({"content": "b", "role": "assistant"}),
        chunk({"content": None}),
        chunk({"tool_calls": []}),
        chunk("b"),
        {"choices": [*chunk({"content": "b"})["choices"]] * 2},
        *(
            {"choices": [{"index": 0, "delta": {"content": "b"}, **more}]}
            for more in ({"finish_reason": "stop"}, {"logprobs": {"content": []}}, {"seed": 1})
        ),
        {"choices": [], "usage": {}},
        {"choices": ["b"]},
        {},
    ],
)
def test_other_chunks_are_not_joined(other: dict[str, Any]) -> None:
    chunks = [chunk({"content": "a"}), other, chunk({"content": "c"})]
    assert join_texts(chunks) == chunks


@wires
async def test_the_calls_of_an_answer_have_the_models_own_arguments(server: ModelServer, wire: Wire) -> None:
    odd = ['{ "ci', 'ty" :\n', ' "F\\u00e8s"', " }"]
    streamed_calls = wire.call_events([("call_1", "weather", odd), ("call_2", "clock", ["{}"])])
    streamed, heard = await read(server, wire, StreamedResponse(events=streamed_calls))
    calls = wire.calls([("call_1", "weather", "".join(odd)), ("call_2", "clock", "{}")])
    whole, _ = await read(server, wire, ScriptedResponse(body=calls))
    pieces = [piece for piece in heard if isinstance(piece, ToolCallChunk)]
    heads = [(piece.index, piece.id, piece.name) for piece in pieces if piece.id is not None]
    assert heads == [(0, "call_1", "weather"), (1, "call_2", "clock")]
    assert [piece.arguments for piece in pieces if piece.arguments] == [*odd, "{}"]
    # Whole, Anthropic's API answers with an object, not with the model's text.
    for answer, arguments in (
        (streamed, "".join(odd)),
        (whole, '{"city":"Fès"}' if wire is ANTHROPIC else "".join(odd)),
    ):
        weather = ToolCall(id="call_1", name="weather", arguments=arguments)
        clock = ToolCall(id="call_2", name="clock", arguments="{}")
        assert (answer.text, answer.finish_reason) == ("", "tool_calls")
        assert answer.output == [OutputMessage(content="", tool_calls=[weather, clock])]
        assert answer.token_usage is not None


def calls_in(answer: ProviderAnswer) -> list[ToolCall]:
    assert answer.output is not None
    return answer.output[0].tool_calls or []


async def test_odd_calls_are_kept_as_they_are_and_have_what_others_need(server: ModelServer) -> None:
    no_json = CHAT.calls([("call_1", "weather", "{city: Rome"), ("call_2", "clock", "")])
    answer, _ = await read(server, CHAT, ScriptedResponse(body=no_json))
    assert [each.arguments for each in calls_in(answer)] == ["{city: Rome", ""]
    answer, _ = await read(server, ANTHROPIC, StreamedResponse(events=ANTHROPIC.call_events([("c", "clock", [])])))
    assert calls_in(answer) == [ToolCall(id="c", name="clock", arguments="{}")]
    whole, _ = await read(server, CHAT, ScriptedResponse(body=CHAT.calls([("", "clock", "{}")] * 2)))
    events = CHAT.call_events([("", "clock", ["{}"]), ("", "clock", ["{}"])])
    streamed, heard = await read(server, CHAT, StreamedResponse(events=events))
    ids = [each.id for each in calls_in(whole)]
    assert (len({*ids, ""}), calls_in(streamed)) == (3, calls_in(whole))
    assert [piece.id for piece in heard if isinstance(piece, ToolCallChunk) and piece.id is not None] == ids
    beside = ANTHROPIC.calls([("call_1", "clock", "{}")])
    beside["content"] = [{"type": "text", "text": "Let me see."}, *beside["content"]]  # type: ignore[misc]
    answer, _ = await read(server, ANTHROPIC, ScriptedResponse(body=beside))
    assert [answer.text, *(message.content for message in answer.output or [])] == ["Let me see."] * 2


async def test_nulls_of_a_call_are_left_out_for_clients_that_join_what_comes(server: ModelServer) -> None:
    calls = [
        {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 0, "id": None, "type": None, "function": {"name": None, "arguments": "{}"}},
    ]
    first, *rest = CHAT.call_events([])
    server.set_responses(
        StreamedResponse(events=[first, *(event(chunk({"tool_calls": [one]})) for one in calls), *rest])
    )
    heard: list[Any] = []
    await call(CHAT.provider(server.url), api_request("chat"), heard)
    parts = [each["choices"][0]["delta"].get("tool_calls") for each in heard if each.get("choices")]
    assert [part for part in parts if part][1] == [{"index": 0, "function": {"arguments": "{}"}}]


#: What vendors ran for an answer, in their own words, and its steps.
RAN: dict[ApiName, tuple[str, list[dict[str, Any]], list[tuple[object, ...]]]] = {
    "messages": (
        "content",
        [
            {"type": "server_tool_use", "id": "s_1", "name": "web_search", "input": {"query": "tides"}},
            {"type": "web_search_tool_result", "tool_use_id": "s_1", "content": [{"url": "https://tides.example"}]},
            {"type": "mcp_tool_use", "id": "m_1", "name": "clock", "server_name": "time", "input": {}},
            {"type": "mcp_tool_result", "tool_use_id": "m_1", "is_error": True, "content": [{"text": "no"}]},
        ],
        [
            ("web_search", "s_1", {"query": "tides"}, [{"url": "https://tides.example"}], None),
            ("clock", "m_1", {}, [{"text": "no"}], "_OTHER"),
        ],
    ),
    "responses": (
        "output",
        [
            {"type": "web_search_call", "id": "s_1", "status": "completed", "action": {"query": "tides"}},
            {"type": "mcp_call", "id": "m_1", "name": "clock", "server_label": "t", "arguments": "{}", "error": "no"},
            {"type": "file_search_call", "id": "f_1", "queries": ["tides"], "results": [{"text": "12:40"}]},
        ],
        [
            ("web_search", "s_1", {"action": {"query": "tides"}}, None, None),
            ("clock", "m_1", {}, "no", "_OTHER"),
            ("file_search", "f_1", {"queries": ["tides"]}, [{"text": "12:40"}], None),
        ],
    ),
}


@whole_and_streamed
@pytest.mark.parametrize("api", RAN)
async def test_what_a_vendor_ran_for_an_answer_is_its_steps(
    server: ModelServer, api: ApiName, is_streamed: bool
) -> None:
    wire = ANTHROPIC if api == "messages" else RESPONSES
    field, items, ran = RAN[api]
    body: Any = wire.answer("At 12:40.")
    body[field] = [*items, *body[field]]
    events = [event(one, str(one["type"])) for one in STREAMS[api]().rest_of(body)]
    answer, _ = await read(
        server, wire, StreamedResponse(events=events) if is_streamed else ScriptedResponse(body=body)
    )
    assert answer.text == "At 12:40."
    assert {step.operation for step in answer.steps} == {"execute_tool"}
    said = [(step.tool, step.tool_call_id, step.arguments, step.result, step.error_type) for step in answer.steps]
    assert said == ran


async def test_a_refusal_is_what_the_model_said(server: ModelServer) -> None:
    body: Any = CHAT.answer("")
    body["choices"][0]["message"] = {"role": "assistant", "refusal": "I will not."}
    whole, _ = await read(server, CHAT, ScriptedResponse(body=body))
    streamed, heard = await read(server, CHAT, StreamedResponse(events=chat_refusal_events(["I will ", "not."])))
    # It is no text of the answer, which only its end shows: what is streamed as text cannot be taken back.
    assert heard == []
    for answer in (whole, streamed):
        assert (answer.text, answer.finish_reason) == ("I will not.", "content_filter")
        assert answer.output == [OutputMessage(content="I will not.", refusal="I will not.")]


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
    answer, deltas = await read(server, wire, StreamedResponse(events=wire.events(pieces)))
    assert (text_of(deltas), replace_surrogates(answer.text)) == (heard, heard)


@wires
async def test_an_answer_cut_short_by_its_limit_is_an_answer(server: ModelServer, wire: Wire) -> None:
    details = b'"incomplete_details": {"reason": "max_output_tokens"}, "status": "incomplete", "output"'
    words = {
        "chat": (b'"finish_reason": "stop"', b'"finish_reason": "length"'),
        "responses": (b'"status": "completed", "output"', details),
        "anthropic": (b'"end_turn"', b'"max_tokens"'),
    }
    events = [each.replace(*words[wire.name]) for each in wire.events(["Fi"])]
    events[-1] = re.sub(rb"response\.completed", b"response.incomplete", events[-1])
    answer, _ = await read(server, wire, StreamedResponse(events=events))
    assert (answer.text, answer.finish_reason) == ("Fi", "length")


TOKEN: dict[str, Any] = {
    "token": "Yes", "logprob": -0.25, "bytes": [89, 101, 115],
    "top_logprobs": [{"token": "No", "logprob": -1.5, "bytes": [78, 111]}],
}  # fmt: skip


async def test_log_probabilities_come_back_as_the_provider_sent_them(server: ModelServer) -> None:
    of_chat: Any = CHAT.answer("Yes")
    of_chat["choices"][0]["logprobs"] = {"content": [TOKEN], "refusal": None}
    of_responses: Any = RESPONSES.answer("Yes")
    of_responses["output"][0]["content"][0]["logprobs"] = [TOKEN]
    for wire, body in ((CHAT, of_chat), (RESPONSES, of_responses)):
        answer, _ = await read(server, wire, ScriptedResponse(body=body))
        assert answer.output == [OutputMessage(content="Yes", logprobs=[TOKEN])]


def thinking(wire: Wire, **fields: object) -> ScriptedResponse:
    """A whole answer with these fields of reasoning."""
    body: Any = wire.answer("Yes")
    if wire is CHAT:
        body["choices"][0]["message"] |= fields
    elif wire is ANTHROPIC:
        blocks = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "redacted_thinking", "data": "r"}]
        body["content"][:0] = blocks
    else:
        summary = [{"type": "summary_text", "text": "Hm."}]
        body["output"].insert(0, {"type": "reasoning", "id": "rs_1", "summary": summary})
    return ScriptedResponse(body=body)


HM = [Reasoning(text="Hm.")]
SIGNED = [Reasoning(text="Hm.", signature="s"), Reasoning(redacted="r")]
SUMMARIES = [["H", "m."], ["Ye", "s."]]
REASONED: dict[str, tuple[Wire, Script, list[Reasoning]]] = {
    "vLLM": (CHAT, thinking(CHAT, reasoning="Hm."), HM),
    "DeepSeek": (CHAT, thinking(CHAT, reasoning_content="Hm."), HM),
    "Anthropic": (ANTHROPIC, thinking(ANTHROPIC), SIGNED),
    "Responses": (RESPONSES, thinking(RESPONSES), HM),
    "chat streamed": (CHAT, StreamedResponse(events=chat_reasoning_events(["H", "m."], ["Ye", "s"])), HM),
    "Anthropic streamed": (
        ANTHROPIC, StreamedResponse(events=anthropic_thinking_events(["H", "m."], "s", "r", "Yes")), SIGNED,
    ),
    "Responses streamed": (
        RESPONSES, StreamedResponse(events=responses_reasoning_events(SUMMARIES, "e")),
        [Reasoning(text="Hm.", signature="e"), Reasoning(text="Yes.")],
    ),
    "encrypted": (RESPONSES, StreamedResponse(events=responses_reasoning_events([], "e")), [Reasoning(redacted="e")]),
}  # fmt: skip


@pytest.mark.parametrize("name", REASONED)
async def test_reasoning_comes_back_and_is_heard(server: ModelServer, name: str) -> None:
    wire, response, reasoning = REASONED[name]
    answer, heard = await read(server, wire, response)
    assert answer.output is not None
    assert answer.output[0].reasoning == reasoning
    streamed: dict[int, Reasoning] = {}
    for delta in heard:
        if isinstance(delta, ReasoningChunk):
            sent = streamed.get(delta.index, Reasoning())
            signature, redacted = sent.signature or delta.signature, delta.redacted
            streamed[delta.index] = Reasoning(text=sent.text + delta.text, signature=signature, redacted=redacted)
    assert streamed == (dict(enumerate(reasoning)) if isinstance(response, StreamedResponse) else {})


Then = Literal["end", "close", "reset", "stall"]


@pytest.mark.parametrize("then", ["end", "close", "reset", "stall"])
@wires
async def test_a_stream_that_had_its_end_mark_is_complete_and_no_more_is_read(
    server: ModelServer, wire: Wire, then: Then, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = wire.events(["Fi", "ne."])
    answer, heard = await read(server, wire, StreamedResponse(events=[*events, b"data: {oops\n\n"], then=then))
    assert (answer.text, text_of(heard), answer.finish_reason) == ("Fine.", "Fine.", "stop")
    assert answer.token_usage is not None
    if wire is CHAT:  # it is complete once it says why it ended, and may lack that where it has its mark
        monkeypatch.setattr(model_api, "USAGE_SECONDS", 0.2)
        answer, _ = await read(server, CHAT, StreamedResponse(events=events[:-2], then=then))
        assert (answer.text, answer.finish_reason, answer.token_usage) == ("Fine.", "stop", None)
        no_reason = [each for each in events if b'"finish_reason": "stop"' not in each]
        answer, _ = await read(server, CHAT, StreamedResponse(events=no_reason, then=then))
        assert (answer.text, answer.finish_reason) == ("Fine.", None)


@pytest.mark.parametrize("nothing", ["null", "", "[]", "{}", "ping", '"ping"', '{"type": "ping"}', ": a comment"])
@wires
async def test_events_that_say_nothing_are_passed_over(server: ModelServer, wire: Wire, nothing: str) -> None:
    silent = event(nothing) if nothing[:1] != ":" else f"{nothing}\n\n".encode()
    events = [piece for each in wire.events(["Fi", "ne."]) for piece in (silent, each)]
    answer, heard = await read(server, wire, StreamedResponse(events=events))
    assert (answer.text, text_of(heard)) == ("Fine.", "Fine.")


@whole_and_streamed
@wires
async def test_an_answer_is_judged_by_what_it_holds_whatever_its_status_and_type_say(
    server: ModelServer, wire: Wire, is_streamed: bool
) -> None:
    kinds = ("text/plain", "application/octet-stream", "application/json", "text/html")
    for status, kind in [*((status, kinds[2]) for status in (201, 202, 203)), *((200, kind) for kind in kinds)]:
        whole = ScriptedResponse(status=status, body=wire.answer("Fine."), headers={"content-type": kind})
        answer, heard = await read(server, wire, whole, is_streamed=is_streamed)
        assert (answer.text, text_of(heard)) == ("Fine.", "Fine." if is_streamed else "")
    if not is_streamed:  # a stream that nobody asked for is an answer too
        answer, _ = await read(server, wire, StreamedResponse(events=wire.events(["Fine."])), is_streamed=False)
        assert answer.text == "Fine."


@pytest.mark.parametrize("status", ["queued", "in_progress"])
async def test_a_response_that_is_not_there_yet_is_no_answer(server: ModelServer, status: str) -> None:
    body = RESPONSES.answer("") | {"status": status, "output": []}
    server.set_responses(ScriptedResponse(status=202, body=body))
    assert status in (await failed_call(RESPONSES.provider(server.url))).fault.message
