"""Answers of status 200 that say that they failed, in each vendor's words, whole and streamed: none is an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quintain.contracts.api_request import ApiName, ApiRequest, json_text
from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ProviderFailed
from quintain_worker.providers.provider import Billing, Delta, ProviderAnswer, ProviderFailure
from support.model_server import ModelServer, ScriptedResponse, StreamedResponse
from support.model_streams import event
from support.model_wires import ANTHROPIC, CHAT, RESPONSES, WIRES, Wire

QUESTION = InvokeRequest(question="q")
REQUESTS: dict[ApiName, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "q"}]},
    "responses": {"input": "q"},
    "messages": {"messages": [{"role": "user", "content": "q"}], "max_tokens": 9},
}
#: Who asks: a conversation, and each API, in its own words and translated.
ASKERS = [QUESTION, *(ApiRequest(api, json_text(body)) for api, body in REQUESTS.items())]

ERROR = {"message": "It broke", "code": 502}
CHOICE = {"index": 0, "message": {"role": "assistant", "content": "par"}, "finish_reason": "stop"}

WHOLE: list[tuple[Wire, dict[str, Any]]] = [
    (CHAT, {"error": ERROR}),
    (CHAT, {"error": "It broke"}),
    (CHAT, {"error": {"message": None, "code": 502}}),
    (CHAT, {"error": [ERROR]}),
    (CHAT, {"error": ERROR, "choices": []}),
    (CHAT, {"object": "error", "message": "It broke"}),
    (CHAT, {"choices": [CHOICE | {"error": ERROR}]}),
    (CHAT, {"choices": [CHOICE, CHOICE | {"index": 1, "error": ERROR}]}),
    *(
        (CHAT, {"choices": [CHOICE | {"finish_reason": reason}]})
        for reason in ("error", "ERROR", "insufficient_system_resource", "network_error", "abort")
    ),
    (RESPONSES, {"error": ERROR}),
    (RESPONSES, {"status": "failed"}),
    (RESPONSES, {"status": "cancelled"}),
    (RESPONSES, {"status": "incomplete", "error": ERROR}),
    (ANTHROPIC, {"type": "error"}),
    (ANTHROPIC, {"error": ERROR}),
    (ANTHROPIC, {"stop_reason": "error"}),
]

CHUNK = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
LAST = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}

STREAMED: list[tuple[Wire, bytes]] = [
    (CHAT, event({"error": ERROR})),
    (CHAT, event({"error": "It broke"})),
    (CHAT, event({"object": "error", "message": "It broke", "code": 400})),
    (CHAT, event({**CHUNK, "error": ERROR, "choices": [LAST]})),
    (CHAT, event({**CHUNK, "choices": [LAST | {"finish_reason": None, "error": ERROR}]})),
    (CHAT, event({**CHUNK, "choices": [LAST]})),
    (CHAT, event({**CHUNK, "choices": [LAST | {"finish_reason": "insufficient_system_resource"}]})),
    (CHAT, event({"message": "boom"}, "error")),
    (CHAT, b"event: error\ndata: boom\n\n"),
    (CHAT, b"event: error\n\n"),
    (RESPONSES, event({"type": "error", "code": "server_error", "message": "It broke"}, "error")),
    (RESPONSES, event({"type": "response.failed", "response": {"status": "failed", "error": ERROR}})),
    (RESPONSES, event({"type": "response.failed", "response": {"status": "failed"}})),
    (RESPONSES, event({"type": "response.completed", "response": RESPONSES.answer("par") | {"status": "failed"}})),
    (RESPONSES, event({"type": "response.completed", "response": RESPONSES.answer("par") | {"error": ERROR}})),
    (ANTHROPIC, event({"type": "error", "error": {"type": "overloaded_error", "message": "It broke"}}, "error")),
    (ANTHROPIC, event({"type": "error", "error": {"type": "overloaded_error", "message": "It broke"}})),
    (ANTHROPIC, event({"type": "message_delta", "delta": {"stop_reason": "error"}})),
]

#: What stands where an error does, and says nothing of one.
NOTHING = [None, "", {}, [], False, 0, {"message": None, "code": None}, {"message": "", "metadata": {"raw": None}}]


def named(value: object) -> str:
    return value.name if isinstance(value, Wire) else str(value)


async def answer_of(
    server: ModelServer, wire: Wire, request: InvokeRequest | ApiRequest, heard: list[Delta] | None
) -> ProviderAnswer:
    provider = wire.provider(server.url)
    try:
        listener = None if heard is None else heard.append
        return await provider.answer(request, timeout_seconds=10, on_text=listener)  # type: ignore[arg-type]
    finally:
        await provider.close()


async def assert_failed(
    server: ModelServer, wire: Wire, request: InvokeRequest | ApiRequest, heard: list[Delta] | None
) -> ProviderFailure:
    with pytest.raises(ProviderFailure) as caught:
        await answer_of(server, wire, request, heard)
    failed = caught.value
    assert isinstance(failed.fault, ProviderFailed)
    assert (failed.billing, failed.retryable, failed.fault.charged) == (Billing.UNKNOWN, True, True)
    assert "end_turn" not in str(heard)
    return failed


@pytest.mark.parametrize(("wire", "fields"), WHOLE, ids=named)
async def test_an_answer_that_says_that_it_failed_is_none(
    server: ModelServer, wire: Wire, fields: dict[str, Any]
) -> None:
    server.set_responses(ScriptedResponse(body=wire.answer("par") | fields))
    for request in ASKERS:
        await assert_failed(server, wire, request, None)
        # Some servers answer whole, whatever they are asked for.
        await assert_failed(server, wire, request, [])


@pytest.mark.parametrize(
    ("api", "answer"),
    [
        ("embeddings", {"data": [{"index": 0, "embedding": [0.5]}], "error": ERROR}),
        ("completions", {"choices": [{"index": 0, "text": "par", "finish_reason": "error"}]}),
        ("completions", {"choices": [{"index": 0, "text": "par", "finish_reason": "stop", "error": ERROR}]}),
    ],
)
async def test_embeddings_and_completions_say_that_they_failed(
    server: ModelServer, api: ApiName, answer: dict[str, Any]
) -> None:
    server.set_responses(ScriptedResponse(body=answer))
    provider = CHAT.provider(server.url, api=api)
    field = "input" if api == "embeddings" else "prompt"
    with pytest.raises(ProviderFailure) as caught:
        await provider.answer(ApiRequest(api, json_text({field: "q"})), timeout_seconds=10)  # type: ignore[arg-type]
    await provider.close()
    assert caught.value.billing is Billing.UNKNOWN


@pytest.mark.parametrize(("wire", "failed"), STREAMED, ids=named)
async def test_a_stream_that_says_that_it_failed_is_no_answer(server: ModelServer, wire: Wire, failed: bytes) -> None:
    events = wire.events(["par", "tial"])
    for at in (0, 3):
        server.set_responses(StreamedResponse(events=[*events[:at], failed, *events[at:]]))
        for request in ASKERS:
            await assert_failed(server, wire, request, [])


@pytest.mark.parametrize("nothing", NOTHING, ids=str)
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
async def test_an_error_that_says_nothing_is_none(server: ModelServer, wire: Wire, nothing: object) -> None:
    whole: Any = wire.answer("Fine.") | {"error": nothing}
    chunks = [json.loads(each.partition(b"data: ")[2]) for each in wire.events(["Fine."]) if b"[DONE]" not in each]
    for holder in (whole, *chunks):
        holder["error"] = nothing
        for choice in holder.get("choices", ()):
            choice["error"] = nothing
    server.set_responses(ScriptedResponse(body=whole), StreamedResponse(events=[event(each) for each in chunks]))
    assert (await answer_of(server, wire, QUESTION, None)).text == "Fine."
    assert (await answer_of(server, wire, QUESTION, [])).text == "Fine."


async def test_an_error_of_a_vendors_filter_is_no_error_of_the_answer(server: ModelServer) -> None:
    not_filtered = {"error": {"code": "content_filter_error", "message": "The contents are not filtered"}}
    choice = CHOICE | {"content_filter_results": not_filtered}
    server.set_responses(ScriptedResponse(body=CHAT.answer("") | {"choices": [choice]}))
    assert (await answer_of(server, CHAT, QUESTION, None)).text == "par"


@pytest.mark.parametrize("reason", ["content_filter", "length", "stop", "eos", "sensitive"])
async def test_an_answer_that_ended_otherwise_is_an_answer(server: ModelServer, reason: str) -> None:
    server.set_responses(ScriptedResponse(body=CHAT.answer("") | {"choices": [CHOICE | {"finish_reason": reason}]}))
    answer = await answer_of(server, CHAT, QUESTION, None)
    assert (answer.text, answer.finish_reason) == ("par", reason)


async def test_the_words_of_the_failure_are_the_callers(server: ModelServer) -> None:
    server.set_responses(ScriptedResponse(body=CHAT.answer("par") | {"error": ERROR}))
    failed = await assert_failed(server, CHAT, QUESTION, None)
    assert failed.fault.provider_error is not None
    assert (failed.fault.provider_error.code, failed.fault.provider_error.message) == ("502", "It broke")
    assert "par" not in failed.fault.message
