"""What is read of a provider's failure, over the real wire; `tests/conformance/test_billing_table.py` has the table."""

from __future__ import annotations

import socket

import pytest

from quintain.contracts.invoke import InvokeRequest, InvokeSettings
from quintain.contracts.quota import RateFigures, RateReport, TryOutcome
from quintain.errors import BadRequest, ProviderFailed, TimedOut
from quintain_worker.providers.provider import Billing, ProviderFailure
from support.model_server import ModelServer, ScriptedResponse
from support.model_wires import ANTHROPIC, KEY, RESPONSES, WIRES, Wire

#: What providers quote in their errors, and nobody may repeat.
CANARY = f"invalid key {KEY}"

wires = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


async def failure(wire: Wire, url: str) -> ProviderFailure:
    provider = wire.provider(url)
    with pytest.raises(ProviderFailure) as caught:
        await provider.answer(InvokeRequest(question="q"), timeout_seconds=10)
    await provider.close()
    return caught.value


def error_body(code: str | None = None, kind: str = "some_error") -> dict[str, object]:
    return {"type": "error", "error": {"type": kind, "code": code, "message": CANARY}}


@wires
async def test_a_failure_names_the_provider_the_status_and_the_request(server: ModelServer, wire: Wire) -> None:
    header = "request-id" if wire is ANTHROPIC else "x-request-id"
    server.set_responses(ScriptedResponse(status=408, body=error_body(), headers={header: "req_42"}))
    failed = await failure(wire, server.url)
    assert isinstance(failed.fault, TimedOut)
    assert (failed.billing, failed.retryable, failed.retry_after_seconds) == (Billing.UNKNOWN, False, None)
    provider = "anthropic" if wire is ANTHROPIC else "openai"
    assert failed.fault.message.startswith(f"{provider} ")
    assert "HTTP 408, request id req_42)" in failed.fault.message
    assert KEY not in failed.fault.message
    assert failed.fault.provider_error is not None
    assert (failed.fault.provider_error.status, failed.fault.provider_error.type) == (408, "some_error")


@wires
async def test_a_refused_key_is_never_repeated(server: ModelServer, wire: Wire) -> None:
    server.set_responses(ScriptedResponse(status=401, body=error_body(), headers={"x-request-id": f"<{KEY}>"}))
    failed = await failure(wire, server.url)
    assert KEY not in f"{failed} {failed!r} {failed.fault.message}"
    assert failed.__cause__ is None
    assert failed.__suppress_context__


@wires
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after": "600"}, 600.0),
        ({"retry-after": "soon"}, None),
    ],
)
async def test_a_throttled_call_says_when_to_come_back_and_is_not_slept_over(
    server: ModelServer, wire: Wire, headers: dict[str, str], seconds: float | None
) -> None:
    server.set_responses(ScriptedResponse(status=429, body=error_body(), headers=headers))
    failed = await failure(wire, server.url)
    assert failed.retry_after_seconds == seconds
    assert failed.fault.retry_after_ms == (None if seconds is None else seconds * 1000)
    assert len(server.requests) == 1


@wires
@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        (429, None, TryOutcome.THROTTLED),
        (429, "insufficient_quota", TryOutcome.REFUSED),
        (401, None, TryOutcome.REFUSED),
        (402, None, TryOutcome.REFUSED),
        (403, None, TryOutcome.REFUSED),
        (404, None, TryOutcome.ANSWERED),
        (400, None, TryOutcome.ANSWERED),
        (408, None, TryOutcome.FAILED),
        (500, None, TryOutcome.FAILED),
        (503, None, TryOutcome.FAILED),
        (529, None, TryOutcome.FAILED),
    ],
)
async def test_a_refused_key_a_throttle_and_a_failure_are_told_apart(
    server: ModelServer, wire: Wire, status: int, code: str | None, outcome: TryOutcome
) -> None:
    server.set_responses(ScriptedResponse(status=status, body=error_body(code)))
    assert (await failure(wire, server.url)).outcome is outcome


LIMIT_HEADERS = {
    "x-ratelimit-limit-requests": "60",
    "x-ratelimit-remaining-requests": "3",
    "x-ratelimit-reset-requests": "57s",
}


@wires
async def test_an_answer_says_what_its_headers_say_of_the_limits(server: ModelServer, wire: Wire) -> None:
    told = RateReport(requests=RateFigures(limit=60, remaining=3, reset_seconds=57))
    provider = wire.provider(server.url)
    for headers, rates in ((LIMIT_HEADERS, told), ({}, None)):
        server.set_responses(ScriptedResponse(body=wire.answer("Fine."), headers=headers))
        answer = await provider.answer(InvokeRequest(question="q"), timeout_seconds=10)
        assert answer.rates == rates
    await provider.close()


@wires
async def test_a_server_that_broke_is_charged_though_it_calls_itself_overloaded(
    server: ModelServer, wire: Wire
) -> None:
    server.set_responses(ScriptedResponse(status=500, body=error_body("overloaded", "overloaded_error")))
    failed = await failure(wire, server.url)
    assert (failed.billing, failed.fault.charged) == (Billing.BILLED, True)


async def test_an_error_inside_an_answer_is_in_doubt(server: ModelServer) -> None:
    broken = {"status": "failed", "error": {"code": "rate_limit_exceeded", "message": CANARY}, "output": []}
    server.set_responses(ScriptedResponse(body=RESPONSES.answer("") | broken))
    failed = await failure(RESPONSES, server.url)
    assert_in_doubt(failed)
    assert KEY not in failed.fault.message


GARBAGE = [b"", b"{oops", b"\xff\xfe", b"[]", b"null", b"{}", b'{"choices": []}', b'"text"']


@wires
@pytest.mark.parametrize("body", GARBAGE)
async def test_garbage_after_sending_is_in_doubt(server: ModelServer, wire: Wire, body: bytes) -> None:
    server.set_responses(ScriptedResponse(body=body))
    assert_in_doubt(await failure(wire, server.url))


def assert_in_doubt(failed: ProviderFailure) -> None:
    assert isinstance(failed.fault, ProviderFailed)
    assert (failed.billing, failed.retryable, failed.fault.charged) == (Billing.UNKNOWN, True, True)


@wires
async def test_a_server_that_cannot_be_reached_costs_nothing(wire: Wire) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    failed = await failure(wire, f"http://127.0.0.1:{port}")
    assert isinstance(failed.fault, ProviderFailed)
    assert (failed.billing, failed.retryable, failed.fault.charged) == (Billing.UNBILLED, True, False)
    base_url = f"http://127.0.0.1:{port}{'' if wire is ANTHROPIC else '/v1'}"
    assert f"({base_url}, Connection refused)" in failed.fault.message
    assert failed.fault.provider_error is None


@wires
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_request_that_the_library_cannot_write_is_refunded(
    server: ModelServer, wire: Wire, stream: bool
) -> None:
    provider = wire.provider(server.url)
    settings = InvokeSettings.model_construct(temperature=float("nan"))
    request = InvokeRequest(question="q").model_copy(update={"settings": settings})
    with pytest.raises(ProviderFailure) as caught:
        await provider.answer(request, timeout_seconds=10, on_text=(lambda _: None) if stream else None)
    await provider.close()
    assert server.requests == []
    assert isinstance(caught.value.fault, BadRequest)
    assert (caught.value.billing, caught.value.retryable) == (Billing.UNBILLED, False)
