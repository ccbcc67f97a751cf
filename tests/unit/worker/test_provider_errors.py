"""A provider's own words about a failure: which of them are kept, and what is masked in them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from quintain.contracts.invoke import FaultReply, InvokeRequest
from quintain.errors import Fault, ProviderError
from quintain_worker.attempt import with_charge
from quintain_worker.providers.model_failures import MAX_MESSAGE_LENGTH, MAX_NAME_LENGTH
from quintain_worker.providers.provider import ProviderFailure
from support.model_server import ModelServer, ScriptedResponse
from support.model_wires import ANTHROPIC, CHAT, KEY, RESPONSES, WIRES, Wire

wires = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


async def fault_of(server: ModelServer, wire: Wire, status: int, body: object) -> Fault:
    server.set_responses(ScriptedResponse(status=status, body=body))
    provider = wire.provider(server.url)
    with pytest.raises(ProviderFailure) as caught:
        await provider.answer(InvokeRequest(question="q"), timeout_seconds=10)
    await provider.close()
    return caught.value.fault


def error(
    message: str, code: object = None, kind: str = "invalid_request_error", param: object = None
) -> dict[str, Any]:
    return {"type": "error", "error": {"message": message, "type": kind, "param": param, "code": code}}


TOO_LONG = "This model's maximum context length is 128000 tokens. However, your messages resulted in 128001 tokens."


@pytest.mark.parametrize(
    ("wire", "status", "body", "expected"),
    [
        (
            CHAT, 400, error(TOO_LONG, "context_length_exceeded", param="messages"),
            ProviderError(
                status=400, code="context_length_exceeded", type="invalid_request_error", parameter="messages",
                message=TOO_LONG,
            ),
        ),
        (
            RESPONSES, 404, error("The model `x` does not exist", "model_not_found"),
            ProviderError(
                status=404, code="model_not_found", type="invalid_request_error",
                message="The model `x` does not exist",
            ),
        ),
        (
            ANTHROPIC, 400, {"type": "error", "error": {"type": "invalid_request_error", "message": "top_k: too big"}},
            ProviderError(status=400, type="invalid_request_error", message="top_k: too big"),
        ),
        # vLLM counts its codes; Ollama, FastAPI and plain proxies have shapes of their own.
        (
            CHAT, 400, {"object": "error", "message": "no such role", "type": "BadRequestError", "code": 400},
            ProviderError(status=400, code="400", type="BadRequestError", message="no such role"),
        ),
        (CHAT, 404, {"error": "model 'x' not found"}, ProviderError(status=404, message="model 'x' not found")),
        (CHAT, 400, {"detail": "no"}, ProviderError(status=400, message="no")),
        (CHAT, 503, b"upstream connect error", ProviderError(status=503, message="upstream connect error")),
        (CHAT, 502, b"<html><h1>Bad gateway</h1></html>", None),
        (CHAT, 500, b"", None),
        (CHAT, 500, {"error": {"message": {"a": 1}, "type": None}}, None),
    ],
)  # fmt: skip
async def test_the_providers_words_are_kept(
    server: ModelServer, wire: Wire, status: int, body: object, expected: ProviderError | None
) -> None:
    fault = await fault_of(server, wire, status, body)
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


@wires
@pytest.mark.parametrize("secret", SECRETS)
async def test_secrets_are_masked_wherever_a_provider_repeats_them(
    server: ModelServer, wire: Wire, secret: str
) -> None:
    fault = await fault_of(server, wire, 400, error(f"you sent {secret} to us", secret, secret, secret))
    shown = f"{fault!r} {fault.message} {fault.provider_error}"
    assert secret not in shown
    assert not {"hunter2", "abcdef123"} & set(shown.replace("=", " ").split())
    assert "you sent" in shown


@wires
async def test_what_is_said_to_a_refused_key_is_not_repeated(server: ModelServer, wire: Wire) -> None:
    fault = await fault_of(server, wire, 401, error("Your key ends in wxyz", "invalid_api_key"))
    assert fault.provider_error is not None
    assert (fault.provider_error.message, "wxyz" in fault.message) == (None, False)
    assert fault.provider_error.code == "invalid_api_key"


@wires
async def test_a_long_error_is_shortened_and_on_one_line(server: ModelServer, wire: Wire) -> None:
    fault = await fault_of(server, wire, 400, error("a\nb\0\ud83c " + "x" * 100_000, "c" * 1_000, "t" * 1_000))
    words = fault.provider_error
    assert words is not None
    assert words.message is not None
    assert len(words.message) == MAX_MESSAGE_LENGTH + 1
    assert words.message.startswith("a b ")
    assert {len(word) for word in (words.code, words.type) if word is not None} == {MAX_NAME_LENGTH}
    assert FaultReply.from_fault(fault).to_wire()


async def test_an_error_in_an_answer_of_status_200_has_the_providers_words_too(server: ModelServer) -> None:
    broken = {"status": "failed", "error": {"code": "server_error", "message": "It broke"}, "output": []}
    fault = await fault_of(server, RESPONSES, 200, RESPONSES.answer("") | broken)
    assert fault.provider_error == ProviderError(code="server_error", message="It broke")
