"""Providers that misbehave over real sockets: nothing is kept of them, followed to elsewhere, or read without limit."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from quintain.contracts.api_request import ApiRequest, json_text
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.quota import MAX_FAILURE_LENGTH, FailureCause, TryFailure
from quintain.errors import ConfigError, ProviderFailed, ReplyTooLarge, TimedOut
from quintain_worker.providers import model_api
from quintain_worker.providers.factory import build_provider
from quintain_worker.providers.provider import Billing, Provider, ProviderAnswer, ProviderContext, ProviderFailure
from support.model_server import ModelServer, ScriptedResponse, StreamedResponse, model_server
from support.model_streams import event
from support.model_wires import ANTHROPIC, CHAT, KEY, RESPONSES, WIRES, Wire

QUESTION = InvokeRequest(question="q")
REQUESTS = {
    CHAT.name: ApiRequest("chat", json_text({"messages": [{"role": "user", "content": "q"}]})),
    RESPONSES.name: ApiRequest("responses", json_text({"input": "q"})),
    ANTHROPIC.name: ApiRequest(
        "messages", json_text({"messages": [{"role": "user", "content": "q"}], "max_tokens": 9})
    ),
}

wires = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
ways = pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])


def provider_with(wire: Wire, url: str, env: Mapping[str, str], **target: object) -> Provider:
    options = {"api_key": SecretStr(KEY), "model": "m", **target}
    return build_provider("it", wire.target(url, **options), ProviderContext(Path.cwd(), env))


async def answer_of(
    provider: Provider,
    request: InvokeRequest | ApiRequest = QUESTION,
    *,
    is_streamed: bool = False,
    seconds: float = 10,
) -> ProviderAnswer:
    listener = (lambda _: None) if is_streamed else None
    try:
        return await provider.answer(request, timeout_seconds=seconds, on_text=listener)  # type: ignore[arg-type]
    finally:
        await provider.close()


async def failure_of(
    provider: Provider,
    request: InvokeRequest | ApiRequest = QUESTION,
    *,
    is_streamed: bool = False,
    seconds: float = 10,
) -> ProviderFailure:
    with pytest.raises(ProviderFailure) as caught:
        await answer_of(provider, request, is_streamed=is_streamed, seconds=seconds)
    return caught.value


GARBAGE = [
    b"<html><body>It works!</body></html>",
    b'{"choices": [{"message": {"content": "Fi',
    b'{"output": "Fine.", "choices": "Fine.", "content": "Fine."}',
    b'{"choices": [5], "output": [5], "content": 5}',
    b'{"choices": [{"message": []}]}',
    b'{"usage": {}}',
    b'{"choices": [{"message": {"content": NaN}}]}',
    b"[" * 100_000,
    b"\x1f\x8b\x08\x00 no gzip",
]


@wires
@ways
@pytest.mark.parametrize("body", GARBAGE, ids=lambda body: repr(body[:20]))
async def test_an_answer_that_is_none_is_in_doubt_and_not_quoted(
    server: ModelServer, wire: Wire, is_streamed: bool, body: bytes
) -> None:
    server.set_responses(ScriptedResponse(body=body))
    failed = await failure_of(wire.provider(server.url), REQUESTS[wire.name], is_streamed=is_streamed)
    assert isinstance(failed.fault, ProviderFailed)
    assert (failed.billing, failed.fault.charged) == (Billing.UNKNOWN, True)
    assert "Fi" not in failed.fault.message


@wires
@ways
@pytest.mark.parametrize("inner", ["1", '"\\ud800"'], ids=["plain", "half a character"])
async def test_an_answer_that_is_nested_too_deeply_is_in_doubt(
    server: ModelServer, wire: Wire, is_streamed: bool, inner: str
) -> None:
    deep = '{"a":' * 900 + inner + "}" * 900
    content = {"content": "Fine.", "own": "DEEP"}
    whole = {"choices": [{"message": content}], "output": [content], "content": [content]}
    if is_streamed:
        first = {"type": "message_start", "message": content, "response": content, "choices": [{"delta": content}]}
        text = json.dumps(first).replace('"DEEP"', deep)
        server.set_responses(StreamedResponse(events=[f"data: {text}\n\n".encode()]))
    else:
        server.set_responses(ScriptedResponse(body=json.dumps(whole).replace('"DEEP"', deep).encode()))
    failed = await failure_of(wire.provider(server.url), REQUESTS[wire.name], is_streamed=is_streamed)
    assert (failed.billing, failed.fault.charged) == (Billing.UNKNOWN, True)


@wires
@ways
async def test_an_error_inside_an_answer_of_status_200_is_a_failure(
    server: ModelServer, wire: Wire, is_streamed: bool
) -> None:
    error = {"type": "error", "error": {"type": "server_error", "message": "It broke"}}
    server.set_responses(
        StreamedResponse(events=[event(error, "error")]) if is_streamed else ScriptedResponse(body=error)
    )
    failed = await failure_of(wire.provider(server.url), REQUESTS[wire.name], is_streamed=is_streamed)
    assert failed.billing == Billing.UNKNOWN
    assert failed.fault.provider_error is not None
    assert failed.fault.provider_error.message == "It broke"


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip"])
async def test_a_content_encoding_that_cannot_be_decoded_is_named(server: ModelServer, coding: str) -> None:
    server.set_responses(ScriptedResponse(body=b"{}", headers={"content-encoding": coding}))
    failed = await failure_of(CHAT.provider(server.url))
    assert (failed.billing, "content-encoding" in failed.fault.message) == (Billing.UNKNOWN, True)


@wires
async def test_a_stream_without_an_end_is_ended_at_the_deadline(server: ModelServer, wire: Wire) -> None:
    server.set_responses(StreamedResponse(events=wire.events(["Fine."]), event_count=2, then="stall"))
    failed = await failure_of(wire.provider(server.url), REQUESTS[wire.name], is_streamed=True, seconds=0.5)
    assert isinstance(failed.fault, TimedOut)
    assert failed.billing == Billing.UNKNOWN
    await asyncio.wait_for(server.disconnected.wait(), 10)


@wires
async def test_a_stream_that_never_ends_is_read_up_to_its_limit(
    server: ModelServer, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_api, "MAX_STREAM_BYTES", 10_000)
    server.set_responses(StreamedResponse(events=[event({"type": "ping", "choices": []})] * 1_000, then="stall"))
    failed = await failure_of(wire.provider(server.url), REQUESTS[wire.name], is_streamed=True)
    assert isinstance(failed.fault, ReplyTooLarge)
    assert failed.billing == Billing.BILLED


@pytest.mark.parametrize("status", [200, 500])
@wires
async def test_a_huge_answer_is_read_up_to_its_limit(
    server: ModelServer, wire: Wire, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_api, "MAX_ANSWER_BYTES", 10_000)
    server.set_responses(ScriptedResponse(status=status, body=wire.answer("x" * 20_000)))
    failed = await failure_of(wire.provider(server.url), REQUESTS[wire.name])
    assert isinstance(failed.fault, ReplyTooLarge)
    assert failed.billing == Billing.BILLED


async def test_a_huge_header_is_in_doubt(server: ModelServer) -> None:
    headers = {"x-padding": "x" * 100_000}
    server.set_responses(ScriptedResponse(body=CHAT.answer("Fine."), headers=headers))
    failed = await failure_of(CHAT.provider(server.url))
    assert failed.billing == Billing.UNKNOWN


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@wires
async def test_a_redirect_gets_neither_the_question_nor_the_key(server: ModelServer, wire: Wire, status: int) -> None:
    async with model_server() as elsewhere:
        server.set_responses(ScriptedResponse(status=status, headers={"location": f"{elsewhere.url}/v1"}, body=b""))
        failed = await failure_of(wire.provider(server.url), REQUESTS[wire.name])
        assert failed.fault.charged
        assert (len(server.requests), elsewhere.connections) == (1, 0)


@wires
async def test_cookies_are_not_kept(server: ModelServer, wire: Wire) -> None:
    headers = {"set-cookie": "account=somebody; Path=/"}
    server.set_responses(ScriptedResponse(body=wire.answer("Fine."), headers=headers))
    provider = wire.provider(server.url)
    for _ in range(2):
        await provider.answer(QUESTION, timeout_seconds=10)
    await provider.close()
    assert [request.headers.get("cookie") for request in server.requests] == [None, None]


@wires
async def test_no_credentials_are_read_from_files(
    server: ModelServer, wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\ndefault login me password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HOME", str(tmp_path))
    server.set_responses(ScriptedResponse(body=wire.answer("Fine.")))
    await answer_of(provider_with(wire, server.url, {"NETRC": str(netrc), "HOME": str(tmp_path)}, api_key=None))
    assert "authorization" not in server.requests[0].headers
    await answer_of(wire.provider(server.url))
    assert server.requests[1].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
@wires
async def test_a_proxy_of_the_workers_environment_is_used(server: ModelServer, wire: Wire, name: str) -> None:
    server.set_responses(ScriptedResponse(body=wire.answer("Fine.")))
    assert (await answer_of(provider_with(wire, "http://models.invalid", {name: server.url}))).text == "Fine."
    # A proxy is asked for the whole URL.
    assert server.requests[0].path.startswith("http://models.invalid/v1/")


@pytest.mark.parametrize("bypass", ["127.0.0.1", "*", "localhost, 127.0.0.1"])
async def test_no_proxy_names_the_hosts_that_need_none(server: ModelServer, bypass: str) -> None:
    server.set_responses(ScriptedResponse(body=CHAT.answer("Fine.")))
    async with model_server() as proxy:
        env = {"HTTP_PROXY": proxy.url, "NO_PROXY": bypass, "HTTP": proxy.url}
        await answer_of(provider_with(CHAT, server.url, env))
        assert (len(server.requests), proxy.connections) == (1, 0)


async def test_a_proxy_of_another_processs_environment_is_not_used(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    server.set_responses(ScriptedResponse(body=CHAT.answer("Fine.")))
    assert (await answer_of(provider_with(CHAT, server.url, {}))).text == "Fine."


async def test_a_proxy_that_refuses_to_connect_has_sent_nothing(server: ModelServer) -> None:
    server.set_responses(ScriptedResponse(status=403, body=b"no"))
    failed = await failure_of(provider_with(CHAT, "https://models.invalid", {"HTTPS_PROXY": server.url}))
    assert (failed.billing, failed.retryable, failed.fault.charged) == (Billing.UNBILLED, True, False)
    assert (server.requests[0].method, server.requests[0].path) == ("CONNECT", "models.invalid:443")
    assert KEY not in str(server.requests[0].headers)


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1080", "file:///etc/passwd"])
def test_a_proxy_of_another_kind_is_a_mistake_in_the_environment(proxy: str) -> None:
    with pytest.raises(ConfigError):
        provider_with(CHAT, "https://models.invalid", {"HTTPS_PROXY": proxy})


def unknown_certificate(folder: Path) -> ssl.SSLContext:
    """The context of a server whose certificate nobody vouches for."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        capture_output=True, check=True, timeout=30,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


@asynccontextmanager
async def tls_stub(context: ssl.SSLContext | None) -> AsyncIterator[str]:
    """A server's URL: it speaks TLS with this context, or none at all."""

    async def answer_plainly(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer_plainly, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("has_tls", [False, True], ids=["no TLS", "unknown certificate"])
async def test_nothing_is_sent_before_the_servers_certificate_is_checked(tmp_path: Path, has_tls: bool) -> None:
    async with tls_stub(unknown_certificate(tmp_path) if has_tls else None) as url:
        failed = await failure_of(CHAT.provider(url))
    assert (failed.billing, failed.retryable, failed.fault.charged) == (Billing.UNBILLED, True, False)
    assert "TLS: " in failed.fault.message
    assert failed.cause is FailureCause.WRONG_ADDRESS


@wires
@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("http://127.0.0.1:9/v1", FailureCause.NOT_TAKEN),
        ("http://no-such-host.invalid/v1", FailureCause.WRONG_ADDRESS),
    ],
)
async def test_what_cannot_be_reached_is_told_with_its_url_and_cause(wire: Wire, url: str, cause: FailureCause) -> None:
    failed = await failure_of(wire.provider(url), REQUESTS[wire.name])
    assert (failed.billing, failed.cause) == (Billing.UNBILLED, cause)
    assert url in failed.fault.message


@wires
@pytest.mark.parametrize(
    ("status", "cause"),
    [(503, FailureCause.NOT_TAKEN), (404, FailureCause.NOT_FOUND), (500, None), (401, None), (400, None)],
)
async def test_an_answer_says_what_mends_it_and_its_words_have_no_control_characters_and_no_key(
    server: ModelServer, wire: Wire, status: int, cause: FailureCause | None
) -> None:
    words = json_text({"error": {"message": f"\x1b[2J{KEY}\u202e gone" + 5000 * "!"}})
    server.set_responses(ScriptedResponse(status=status, body=words))
    failed = await failure_of(wire.provider(server.url), REQUESTS[wire.name])
    assert failed.cause is cause
    told = TryFailure.of(failed.fault.message, failed.cause)
    assert told.words.isprintable()
    assert KEY not in told.words
    assert len(told.words) <= MAX_FAILURE_LENGTH
    assert status == 400 or server.url in told.words
