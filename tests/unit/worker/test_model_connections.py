"""Connections to models' providers: kept and closed, ended at a deadline, and nothing is sent to anybody else."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from quintain.contracts.quota import FailureCause
from quintain.errors import ConfigError, TimedOut
from quintain_worker.providers.factory import build_provider
from quintain_worker.providers.provider import Billing, Delta, Provider, ProviderContext, ProviderFailure
from support.model_calls import QUESTION, call, failed_call, whole_and_streamed, wires
from support.model_server import ModelServer, ScriptedResponse, StreamedResponse, model_server
from support.model_wires import CHAT, KEY, Wire
from support.skipped_time import skip_waits


def answers(wire: Wire, *, is_streamed: bool) -> ScriptedResponse | StreamedResponse:
    return (
        StreamedResponse(events=wire.events(["Fine."])) if is_streamed else ScriptedResponse(body=wire.answer("Fine."))
    )


@whole_and_streamed
@wires
async def test_a_connection_is_used_again_and_no_call_waits_for_another(
    server: ModelServer, wire: Wire, is_streamed: bool
) -> None:
    server.set_responses(ScriptedResponse(stall=True), answers(wire, is_streamed=is_streamed))
    provider = wire.provider(server.url, max_concurrency=1)
    slow = asyncio.create_task(provider.answer(QUESTION, timeout_seconds=10))
    await server.arrived.wait()
    for _ in range(5):
        listener = (lambda _: None) if is_streamed else None
        assert (await provider.answer(QUESTION, timeout_seconds=10, on_text=listener)).text == "Fine."
    assert (len(server.requests), server.connections) == (6, 2)
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)
    await asyncio.wait_for(server.disconnected.wait(), 10)
    await provider.close()


@whole_and_streamed
@wires
async def test_a_deadline_ends_the_call_in_doubt_and_closes_the_connection(
    server: ModelServer, wire: Wire, is_streamed: bool
) -> None:
    provider, heard = wire.provider(server.url), list[Delta]()
    stalled = StreamedResponse(events=wire.events(["Fine."]), event_count=2 if is_streamed else 0, then="stall")
    server.set_responses(answers(wire, is_streamed=False), stalled)
    # The libraries import much of themselves at a process's first call, which may outlast the deadline unsent.
    await provider.answer(QUESTION, timeout_seconds=10)
    failed = await failed_call(provider, QUESTION, heard if is_streamed else None, seconds=0.5)
    assert isinstance(failed.fault, TimedOut)
    assert (failed.billing, failed.retryable, len(server.requests)) == (Billing.UNKNOWN, False, 2)
    await asyncio.wait_for(server.disconnected.wait(), 10)


@wires
async def test_a_model_that_sends_goes_on_and_one_that_is_silent_for_too_long_is_ended(
    server: ModelServer, wire: Wire
) -> None:
    skip_waits()
    slow = ScriptedResponse(body=wire.answer("Fine."), trickle_seconds=0.005)
    server.set_responses(ScriptedResponse(stall=True), slow)
    provider = wire.provider(server.url, idle_seconds=0.3)
    with pytest.raises(ProviderFailure) as caught:
        await provider.answer(QUESTION, timeout_seconds=10)
    assert isinstance(caught.value.fault, TimedOut)
    assert (caught.value.billing, caught.value.retryable) == (Billing.UNKNOWN, False)
    assert (await provider.answer(QUESTION, timeout_seconds=10)).text == "Fine."
    await provider.close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@wires
async def test_a_redirect_gets_neither_the_question_nor_the_key(server: ModelServer, wire: Wire, status: int) -> None:
    async with model_server() as elsewhere:
        server.set_responses(ScriptedResponse(status=status, headers={"location": f"{elsewhere.url}/v1"}, body=b""))
        assert (await failed_call(wire.provider(server.url))).fault.charged
        assert (len(server.requests), elsewhere.connections) == (1, 0)


@wires
async def test_no_cookies_are_kept_and_no_credentials_are_read_from_files(
    server: ModelServer, wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\ndefault login me password secret\n")
    netrc.chmod(0o600)
    env = {"NETRC": str(netrc), "HOME": str(tmp_path)}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    headers = {"set-cookie": "account=somebody; Path=/"}
    server.set_responses(ScriptedResponse(body=wire.answer("Fine."), headers=headers))
    provider = provider_in(env, wire, server.url, api_key=None)
    await provider.answer(QUESTION, timeout_seconds=10)
    await call(provider)
    for asked in server.requests:
        assert not {"authorization", "cookie"} & asked.headers.keys()


def provider_in(env: Mapping[str, str], wire: Wire, url: str, **target: object) -> Provider:
    """The provider of a worker whose environment is this."""
    options = {"api_key": SecretStr(KEY), "model": "m", **target}
    return build_provider("it", wire.target(url, **options), ProviderContext(Path.cwd(), env))


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
@wires
async def test_a_proxy_of_the_workers_environment_is_used(server: ModelServer, wire: Wire, name: str) -> None:
    server.set_responses(ScriptedResponse(body=wire.answer("Fine.")))
    assert (await call(provider_in({name: server.url}, wire, "http://models.invalid"))).text == "Fine."
    # A proxy is asked for the whole URL.
    assert server.requests[0].path.startswith("http://models.invalid/v1/")


@pytest.mark.parametrize("bypass", ["127.0.0.1", "*", "localhost, 127.0.0.1", ""])
async def test_no_proxy_is_used_where_none_is_needed_or_another_process_has_it(
    server: ModelServer, bypass: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.set_responses(ScriptedResponse(body=CHAT.answer("Fine.")))
    async with model_server() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        env = {"HTTP_PROXY": proxy.url, "NO_PROXY": bypass, "HTTP": proxy.url} if bypass else {}
        await call(provider_in(env, CHAT, server.url))
        assert (len(server.requests), proxy.connections) == (1, 0)


async def test_a_proxy_that_refuses_to_connect_has_sent_nothing(server: ModelServer) -> None:
    server.set_responses(ScriptedResponse(status=403, body=b"no"))
    failed = await failed_call(provider_in({"HTTPS_PROXY": server.url}, CHAT, "https://models.invalid"))
    assert (failed.billing, failed.retryable, failed.fault.charged) == (Billing.UNBILLED, True, False)
    assert (server.requests[0].method, server.requests[0].path) == ("CONNECT", "models.invalid:443")
    assert KEY not in str(server.requests[0].headers)


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1080", "file:///etc/passwd"])
def test_a_proxy_of_another_kind_is_a_mistake_in_the_environment(proxy: str) -> None:
    with pytest.raises(ConfigError):
        provider_in({"HTTPS_PROXY": proxy}, CHAT, "https://models.invalid")


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
        failed = await failed_call(CHAT.provider(url))
    assert (failed.billing, failed.retryable, failed.fault.charged) == (Billing.UNBILLED, True, False)
    assert "TLS: " in failed.fault.message
    assert failed.cause is FailureCause.WRONG_ADDRESS
