"""What is read of a model provider's failure over the real wire: what it owes, what mends it, and whose words are told.

`tests/conformance/test_billing_table.py` has what is tried again and charged, by status.
"""

from __future__ import annotations

import base64
import json
import socket
from typing import Any, Literal

import pytest

from quintain.contracts.api_request import ApiName, json_text
from quintain.contracts.invoke import FaultReply, InvokeRequest, InvokeSettings
from quintain.contracts.quota import MAX_FAILURE_LENGTH, FailureCause, TryFailure, TryOutcome
from quintain.errors import BadRequest, Fault, ProviderError, ProviderFailed, ReplyTooLarge, TimedOut
from quintain_worker.attempt import with_charge
from quintain_worker.providers import model_api
from quintain_worker.providers.model_failures import MAX_MESSAGE_LENGTH, MAX_NAME_LENGTH
from quintain_worker.providers.provider import Billing, Delta, ProviderFailure
from support.model_calls import (
    CONVERSATIONS,
    QUESTION,
    api_provider,
    api_request,
    call,
    failed_call,
    text_of,
    whole_and_streamed,
    wires,
)
from support.model_server import ModelServer, ScriptedResponse, StreamedResponse
from support.model_streams import event
from support.model_wires import ANTHROPIC, CHAT, KEY, RESPONSES, Wire

#: Who asks: a conversation, and each API, in its own words and translated.
ASKERS = [QUESTION, *map(api_request, CONVERSATIONS)]


async def assert_in_doubt(
    server: ModelServer, wire: Wire, request: Any = QUESTION, heard: list[Delta] | None = None
) -> ProviderFailure:
    """The call fails, may have been billed, and nothing of the answer is told."""
    failed = await failed_call(wire.provider(server.url), request, heard)
    assert isinstance(failed.fault, ProviderFailed)
    assert (failed.billing, failed.retryable, failed.fault.charged) == (Billing.UNKNOWN, True, True)
    assert KEY not in failed.fault.message
    return failed


async def status_failure(
    server: ModelServer, wire: Wire, status: int, body: object, headers: dict[str, str] | None = None
) -> ProviderFailure:
    server.set_responses(ScriptedResponse(status=status, body=body, headers=headers or {}))
    return await failed_call(wire.provider(server.url))


def error(
    message: object = "It says no", code: object = None, kind: str = "invalid_request_error", param: object = None
) -> dict[str, Any]:
    return {"type": "error", "error": {"message": message, "type": kind, "param": param, "code": code}}


# Answers that are none.

NO_ANSWERS = [
    b"", b"{oops", b"\xff\xfe", b"[]", b"null", b"{}", b'"text"', b"data: {}\n\n", b"<html>It works!</html>",
    b'{"choices": []}', b'{"choices": [{"message": {"content": "Fi',
    b'{"output": "Fine.", "choices": "Fine.", "content": "Fine."}', b'{"choices": [5], "output": [5], "content": 5}',
    b'{"choices": [{"message": []}]}', b'{"usage": {}}', b'{"choices": [{"message": {"content": NaN}}]}',
    b"[" * 100_000, b"\x1f\x8b\x08\x00 no gzip",
]  # fmt: skip


@whole_and_streamed
@pytest.mark.parametrize("body", NO_ANSWERS, ids=lambda body: repr(body[:20]))
@wires
async def test_an_answer_that_is_none_is_in_doubt_and_not_quoted(
    server: ModelServer, wire: Wire, body: bytes, is_streamed: bool
) -> None:
    server.set_responses(ScriptedResponse(body=body))
    own: ApiName = "messages" if wire is ANTHROPIC else "responses" if wire is RESPONSES else "chat"
    for request in (QUESTION, api_request(own)):
        failed = await assert_in_doubt(server, wire, request, [] if is_streamed else None)
        assert "Fi" not in failed.fault.message


@pytest.mark.parametrize("framed", [True, False], ids=["chunked", "unframed"])
@pytest.mark.parametrize("then", ["end", "close", "reset"])
@wires
async def test_a_stream_without_its_end_is_in_doubt(
    server: ModelServer, wire: Wire, then: Literal["end", "close", "reset"], framed: bool
) -> None:
    events = wire.events(["one ", "two"])
    for count in (0, 1, wire.before_end(events)):
        server.set_responses(StreamedResponse(events=events, event_count=count, then=then, framed=framed))
        heard: list[Delta] = []
        asked = len(server.requests)
        await assert_in_doubt(server, wire, heard=heard)
        assert text_of(heard) == ("one two" if count > 1 else "")
        assert len(server.requests) == asked + 1


@whole_and_streamed
@pytest.mark.parametrize("inner", ["1", '"\\ud800"'], ids=["plain", "half a character"])
@wires
async def test_an_answer_that_is_nested_too_deeply_is_in_doubt(
    server: ModelServer, wire: Wire, inner: str, is_streamed: bool
) -> None:
    deep = '{"a":' * 900 + inner + "}" * 900
    content = {"content": "Fine.", "own": "DEEP"}
    if is_streamed:
        first = {"type": "message_start", "message": content, "response": content, "choices": [{"delta": content}]}
        server.set_responses(StreamedResponse(events=[event(json.dumps(first).replace('"DEEP"', deep))]))
    else:
        whole = {"choices": [{"message": content}], "output": [content], "content": [content]}
        server.set_responses(ScriptedResponse(body=json.dumps(whole).replace('"DEEP"', deep).encode()))
    await assert_in_doubt(server, wire, heard=[] if is_streamed else None)


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip"])
async def test_a_content_encoding_that_cannot_be_decoded_is_named(server: ModelServer, coding: str) -> None:
    failed = await status_failure(server, CHAT, 200, b"{}", {"content-encoding": coding})
    assert (failed.billing, "content-encoding" in failed.fault.message) == (Billing.UNKNOWN, True)


@wires
async def test_what_is_too_large_is_read_up_to_its_limit(
    server: ModelServer, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_api, "MAX_STREAM_BYTES", 10_000)
    monkeypatch.setattr(model_api, "MAX_ANSWER_BYTES", 10_000)
    pings = [event({"type": "ping", "choices": []})] * 1_000
    server.set_responses(
        *(ScriptedResponse(status=status, body=wire.answer("x" * 20_000)) for status in (200, 500)),
        StreamedResponse(events=pings, then="stall"),
    )
    for heard in (None, None, list[Delta]()):
        failed = await failed_call(wire.provider(server.url), heard=heard)
        assert isinstance(failed.fault, ReplyTooLarge)
        assert failed.billing is Billing.BILLED
    failed = await status_failure(server, wire, 200, wire.answer("Fine."), {"x-padding": "x" * 100_000})
    assert failed.billing is Billing.UNKNOWN


# Answers of status 200 that say that they failed.

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
    *((wire, wire.error(f"invalid key {KEY}")) for wire in (CHAT, RESPONSES, ANTHROPIC)),
    *(
        (CHAT, event(error(KEY, code, "x")))
        for code in ("rate_limit_exceeded", "insufficient_quota", "invalid_api_key")  # no proof of anything
    ),
    (CHAT, event({"error": "It broke"})),
    (CHAT, event({"object": "error", "message": "It broke", "code": 400})),
    (CHAT, event({**CHUNK, "error": ERROR, "choices": [LAST]})),
    (CHAT, event({**CHUNK, "choices": [LAST | {"finish_reason": None, "error": ERROR}]})),
    (CHAT, event({**CHUNK, "choices": [LAST]})),
    (CHAT, event({**CHUNK, "choices": [LAST | {"finish_reason": "insufficient_system_resource"}]})),
    (CHAT, event({"message": "boom"}, "error")),
    (CHAT, b"event: error\ndata: boom\n\n"),
    (CHAT, b"event: error\n\n"),
    (RESPONSES, event({"type": "response.failed", "response": {"status": "failed", "error": ERROR}})),
    (RESPONSES, event({"type": "response.failed", "response": {"status": "failed"}})),
    (RESPONSES, event({"type": "response.completed", "response": RESPONSES.answer("par") | {"status": "failed"}})),
    (RESPONSES, event({"type": "response.completed", "response": RESPONSES.answer("par") | {"error": ERROR}})),
    (ANTHROPIC, event(error("It broke", kind="overloaded_error"))),
    (ANTHROPIC, event({"type": "message_delta", "delta": {"stop_reason": "error"}})),
    *(
        (wire, (b"event: content_block_delta\n" if wire is ANTHROPIC else b"") + garbage)
        for wire in (CHAT, RESPONSES, ANTHROPIC)
        for garbage in (b"data: {oops\n\n", b"data: \xff\xfe\n\n", b'data: "text"\n\n', b"data: 5\n\n")
    ),
]


def named(value: object) -> str:
    return value.name if isinstance(value, Wire) else str(value)


@pytest.mark.parametrize(("wire", "fields"), WHOLE, ids=named)
async def test_an_answer_that_says_that_it_failed_is_none(
    server: ModelServer, wire: Wire, fields: dict[str, Any]
) -> None:
    server.set_responses(ScriptedResponse(body=wire.answer("par") | fields))
    for request in ASKERS:
        await assert_in_doubt(server, wire, request)
        # Some servers answer whole, whatever they are asked for.
        await assert_in_doubt(server, wire, request, [])


@pytest.mark.parametrize(("wire", "failed"), STREAMED, ids=named)
async def test_a_stream_that_says_that_it_failed_is_no_answer(server: ModelServer, wire: Wire, failed: bytes) -> None:
    events = wire.events(["par", "tial"])
    for at in (0, 3):
        server.set_responses(StreamedResponse(events=[*events[:at], failed, *events[at:]]))
        for request in ASKERS:
            heard: list[Delta] = []
            await assert_in_doubt(server, wire, request, heard)
            assert "end_turn" not in str(heard)


@pytest.mark.parametrize(
    ("api", "answer"),
    [
        ("embeddings", {"data": [{"index": 0, "embedding": [0.5]}], "error": ERROR}),
        ("completions", {"choices": [{"index": 0, "text": "par", "finish_reason": "error"}]}),
        ("completions", {"choices": [{"index": 0, "text": "par", "finish_reason": "stop", "error": ERROR}]}),
        *(("completions", answer) for answer in ({}, {"choices": []}, [], b"<html>")),
        ("embeddings", {"object": "list", "data": []}),
    ],
)
async def test_embeddings_and_completions_that_failed_or_are_none_are_in_doubt(
    server: ModelServer, api: ApiName, answer: object
) -> None:
    server.set_responses(ScriptedResponse(body=answer))
    failed = await failed_call(api_provider(server.url, api), api_request(api))
    assert failed.billing is Billing.UNKNOWN


#: What stands where an error does, and says nothing of one.
NOTHING = [None, "", {}, [], False, 0, {"message": None, "code": None}, {"message": "", "metadata": {"raw": None}}]


@pytest.mark.parametrize("nothing", NOTHING, ids=str)
@wires
async def test_an_error_that_says_nothing_is_none(server: ModelServer, wire: Wire, nothing: object) -> None:
    whole: Any = wire.answer("Fine.") | {"error": nothing}
    chunks = [json.loads(each.partition(b"data: ")[2]) for each in wire.events(["Fine."]) if b"[DONE]" not in each]
    for holder in (whole, *chunks):
        holder["error"] = nothing
        for choice in holder.get("choices", ()):
            choice["error"] = nothing
    server.set_responses(ScriptedResponse(body=whole), StreamedResponse(events=[event(each) for each in chunks]))
    for heard in (None, list[Delta]()):
        assert (await call(wire.provider(server.url), heard=heard)).text == "Fine."


@pytest.mark.parametrize("reason", ["content_filter", "length", "stop", "eos", "sensitive"])
async def test_an_answer_that_ended_otherwise_is_an_answer(server: ModelServer, reason: str) -> None:
    not_filtered = {"error": {"code": "content_filter_error", "message": "The contents are not filtered"}}
    choice = CHOICE | {"finish_reason": reason, "content_filter_results": not_filtered}
    server.set_responses(ScriptedResponse(body=CHAT.answer("") | {"choices": [choice]}))
    answer = await call(CHAT.provider(server.url))
    assert (answer.text, answer.finish_reason) == ("par", reason)


# A provider's own words about a failure: which of them are kept, and what is masked in them.

TOO_LONG = "This model's maximum context length is 128000 tokens. However, your messages resulted in 128001 tokens."


def kept(
    status: int | None, message: str, code: str | None = None, kind: str | None = None, **more: str
) -> ProviderError:
    return ProviderError(status=status, code=code, type=kind, message=message, **more)


@pytest.mark.parametrize(
    ("wire", "status", "body", "expected"),
    [
        (
            CHAT, 400, error(TOO_LONG, "context_length_exceeded", param="messages"),
            kept(400, TOO_LONG, "context_length_exceeded", "invalid_request_error", parameter="messages"),
        ),
        (
            RESPONSES, 404, error("The model `x` does not exist", "model_not_found"),
            kept(404, "The model `x` does not exist", "model_not_found", "invalid_request_error"),
        ),
        (ANTHROPIC, 400, error("top_k: too big"), kept(400, "top_k: too big", kind="invalid_request_error")),
        # vLLM counts its codes; Ollama, FastAPI and plain proxies have shapes of their own.
        (
            CHAT, 400, {"object": "error", "message": "no such role", "type": "BadRequestError", "code": 400},
            kept(400, "no such role", "400", "BadRequestError"),
        ),
        (CHAT, 404, {"error": "model 'x' not found"}, kept(404, "model 'x' not found")),
        (CHAT, 400, {"detail": "no"}, kept(400, "no")),
        (CHAT, 503, b"upstream connect error", kept(503, "upstream connect error")),
        (CHAT, 502, b"<html><h1>Bad gateway</h1></html>", None),
        (CHAT, 500, b"", None),
        (CHAT, 500, {"error": {"message": {"a": 1}, "type": None}}, None),
        # In an answer of status 200 too.
        (
            RESPONSES, 200, RESPONSES.answer("") | {"status": "failed", "error": {"code": "c", "message": "It broke"}},
            kept(None, "It broke", "c"),
        ),
        (CHAT, 200, CHAT.answer("par") | {"error": ERROR}, kept(None, "It broke", "502")),
    ],
)  # fmt: skip
async def test_the_providers_words_are_kept(
    server: ModelServer, wire: Wire, status: int, body: object, expected: ProviderError | None
) -> None:
    fault = (await status_failure(server, wire, status, body)).fault
    assert fault.provider_error == expected
    if expected is not None:
        assert fault.message.endswith(f": {expected.message}")
    # The same over the wire, and where the ledger's charge differs from the provider's.
    assert FaultReply.from_wire(FaultReply.from_fault(fault).to_wire()).to_fault().provider_error == expected
    assert with_charge(fault, charged=not fault.charged).provider_error == expected


SECRETS = [
    KEY,
    base64.b64encode(KEY.encode()).decode(),
    "sk-proj-abcdefghijklmnopqrstuvwxyz",
    "sk-...wxyz",
    "Bearer abc.def",
    "qtn_session_abcdefghijkl_abcdefghijklmnopqrstuvwxyz",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
    "AKIAIOSFODNN7EXAMPLE",
    "api_key=abcdef123",
    "password: hunter2",
]


def shown(fault: Fault) -> str:
    return f"{fault!r} {fault.message} {fault.provider_error}"


@pytest.mark.parametrize("secret", SECRETS)
@wires
async def test_secrets_are_masked_wherever_a_provider_repeats_them(
    server: ModelServer, wire: Wire, secret: str
) -> None:
    failed = await status_failure(server, wire, 400, error(f"you sent {secret} to us", secret, secret, secret))
    words = shown(failed.fault)
    assert secret not in words
    assert not {"hunter2", "abcdef123"} & set(words.replace("=", " ").split())
    assert "you sent" in words


@wires
async def test_a_refused_key_is_never_repeated_nor_what_is_said_to_it(server: ModelServer, wire: Wire) -> None:
    body, headers = error(f"Your key ends in wxyz: {KEY}", "invalid_api_key"), {"x-request-id": f"<{KEY}>"}
    failed = await status_failure(server, wire, 401, body, headers)
    assert KEY not in f"{failed} {failed!r} {shown(failed.fault)}"
    assert (failed.__cause__, failed.__suppress_context__) == (None, True)
    assert failed.fault.provider_error is not None
    assert (failed.fault.provider_error.message, "wxyz" in failed.fault.message) == (None, False)
    assert failed.fault.provider_error.code == "invalid_api_key"


@wires
async def test_a_long_error_is_shortened_and_on_one_line(server: ModelServer, wire: Wire) -> None:
    body = error("a\nb\0\ud83c " + "x" * 100_000, "c" * 1_000, "t" * 1_000)
    fault = (await status_failure(server, wire, 400, body)).fault
    assert fault.provider_error is not None
    words = fault.provider_error.message or ""
    assert (len(words), words[:4]) == (MAX_MESSAGE_LENGTH + 1, "a b ")
    assert {len(name or "") for name in (fault.provider_error.code, fault.provider_error.type)} == {MAX_NAME_LENGTH}
    assert FaultReply.from_fault(fault).to_wire()


@wires
async def test_a_failure_names_the_provider_the_status_and_the_request(server: ModelServer, wire: Wire) -> None:
    header = "request-id" if wire is ANTHROPIC else "x-request-id"
    failed = await status_failure(server, wire, 408, error(KEY), {header: "req_42"})
    assert isinstance(failed.fault, TimedOut)
    assert (failed.billing, failed.retryable, failed.retry_after_seconds) == (Billing.UNKNOWN, False, None)
    assert failed.fault.message.startswith("anthropic " if wire is ANTHROPIC else "openai ")
    assert "HTTP 408, request id req_42)" in failed.fault.message


@pytest.mark.parametrize(
    ("status", "code", "outcome", "cause"),
    [
        (429, None, TryOutcome.THROTTLED, None),
        (429, "insufficient_quota", TryOutcome.REFUSED, None),
        *((status, None, TryOutcome.REFUSED, None) for status in (401, 402, 403)),
        (404, None, TryOutcome.ANSWERED, FailureCause.NOT_FOUND),
        (400, None, TryOutcome.ANSWERED, None),
        (408, None, TryOutcome.FAILED, None),
        (500, "overloaded", TryOutcome.FAILED, None),
        (503, None, TryOutcome.FAILED, FailureCause.NOT_TAKEN),
        (529, None, TryOutcome.FAILED, FailureCause.NOT_TAKEN),
    ],
)
@wires
async def test_a_status_says_what_the_try_was_and_what_mends_it_in_printable_words(
    server: ModelServer, wire: Wire, status: int, code: str | None, outcome: TryOutcome, cause: FailureCause | None
) -> None:
    words = json_text(error(f"\x1b[2J{KEY}\u202e gone" + 5000 * "!", code, "overloaded_error" if code else "x"))
    failed = await status_failure(server, wire, status, words)
    assert (failed.outcome, failed.cause) == (outcome, cause)
    told = TryFailure.of(failed.fault.message, failed.cause)
    assert told.words.isprintable()
    assert KEY not in told.words
    assert len(told.words) <= MAX_FAILURE_LENGTH
    if status == 500:  # it broke, although it calls itself overloaded
        assert (failed.billing, failed.fault.charged) == (Billing.BILLED, True)


@wires
async def test_what_cannot_be_reached_costs_nothing_and_is_told_with_its_url_and_cause(wire: Wire) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    urls = {f"http://127.0.0.1:{port}": FailureCause.NOT_TAKEN, "http://no-such.invalid": FailureCause.WRONG_ADDRESS}
    for url, cause in urls.items():
        failed = await failed_call(wire.provider(url))
        assert isinstance(failed.fault, ProviderFailed)
        assert (failed.billing, failed.retryable, failed.fault.charged) == (Billing.UNBILLED, True, False)
        assert (failed.cause, failed.fault.provider_error) == (cause, None)
        assert f"({url}{'' if wire is ANTHROPIC else '/v1'}, " in failed.fault.message


@whole_and_streamed
@wires
async def test_a_request_that_cannot_be_asked_is_refunded_before_it_is_sent(
    server: ModelServer, wire: Wire, is_streamed: bool
) -> None:
    for settings in (
        InvokeSettings.model_construct(temperature=float("nan")),
        InvokeSettings.model_validate({"toolChoice": "auto"}),
    ):
        request = InvokeRequest(question="q").model_copy(update={"settings": settings})
        failed = await failed_call(wire.provider(server.url), request, [] if is_streamed else None)
        assert isinstance(failed.fault, BadRequest)
        assert (failed.billing, failed.retryable, server.requests) == (Billing.UNBILLED, False, [])
