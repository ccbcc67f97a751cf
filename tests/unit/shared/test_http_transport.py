"""What a client over HTTP says when the gateway is not there, is none, or is lost on the way; and what it keeps."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import quintain
from quintain.client.client import connect
from quintain.client.http_transport import open_http_transport
from quintain.client.transport import REPLY_GRACE_SECONDS, InvokeCall
from quintain.contracts.invoke import FaultReply
from quintain.contracts.session import GetInfo, Info
from quintain.routes import INFO
from support.gateway_client import open_gateway_client
from support.memory_fleet import memory_fleet


@contextlib.asynccontextmanager
async def server(
    response: bytes | None, delay_seconds: float = 0, heads: list[bytes] | None = None
) -> AsyncIterator[str]:
    """A server that says this to whatever it is asked, and hangs up; with None it listens until its client leaves."""
    hung_up: list[asyncio.Event] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        done = asyncio.Event()
        hung_up.append(done)
        head = await (reader.read() if response is None else reader.readuntil(b"\r\n\r\n"))
        if heads is not None:
            heads.append(head)
        await asyncio.sleep(delay_seconds)
        writer.write(response or b"")
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        done.set()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        for event in hung_up:
            await event.wait()


def http(status: str, body: str = "", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", body]
    return "\r\n".join(lines).encode()


async def call(url: str, seconds: float = 5) -> Info:
    async with open_http_transport(url, "a token") as transport:
        return await transport.call_route(INFO, GetInfo(), timeout_seconds=seconds)


async def test_no_gateway_is_said_with_where_and_what_to_start() -> None:
    async with server(b"") as url:
        pass
    with pytest.raises(quintain.GatewayUnavailable) as lost:
        await call(url)
    assert url in lost.value.message
    assert "quintain serve gateway" in lost.value.message
    assert isinstance(lost.value, quintain.BusError)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{", b"no HTTP at all\r\n\r\n"])
async def test_a_connection_lost_on_the_way_leaves_the_charge_open(said: bytes) -> None:
    async with server(said) as url:
        with pytest.raises(quintain.GatewayUnavailable, match="the same request id is the same call"):
            await call(url)


@pytest.mark.parametrize(
    "said",
    [
        http("404 Not Found", "<html>"),
        http("502 Bad Gateway", '{"message": "upstream"}'),
        http("307 Temporary Redirect", "", "Location: http://127.0.0.1:9/"),
    ],
)
async def test_what_is_no_gateway_is_named_and_no_redirect_is_followed(said: bytes) -> None:
    async with server(said) as url:
        with pytest.raises(quintain.GatewayUnavailable, match="not as a gateway does"):
            await call(url)


async def test_an_answer_that_cannot_be_read_may_have_been_charged() -> None:
    async with server(http("200 OK", "<html>")) as url:
        with pytest.raises(quintain.InternalFault) as unreadable:
            await call(url)
    assert unreadable.value.charged is None


async def test_a_gateway_that_says_nothing_is_waited_for_no_longer_than_agreed() -> None:
    async with server(None) as url:
        with pytest.raises(quintain.BudgetUnavailable, match=r"did not answer within 0\.2 s"):
            await call(url, 0.2)


async def test_a_gateway_that_waits_for_its_fleet_after_the_deadline_is_still_heard() -> None:
    expired = http(
        "504 Gateway Timeout", FaultReply.from_fault(quintain.Expired("said by the gateway")).to_wire().decode()
    )
    call = InvokeCall(request=quintain.InvokeRequest(question="x"), request_id="", deadline_seconds=0.1)
    async with server(expired, 0.1 + REPLY_GRACE_SECONDS) as url, open_http_transport(url, "a token") as transport:
        with pytest.raises(quintain.Expired, match="said by the gateway"):
            await transport.invoke(call)


async def test_a_proxy_is_of_the_environment_and_no_cookie_or_password_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("default login me password hunter2\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    heads: list[bytes] = []
    async with server(http("404 Not Found", "", "Set-Cookie: key=word"), heads=heads) as url:
        monkeypatch.setenv("HTTP_PROXY", url)
        async with open_http_transport("http://gateway.invalid", "a token") as transport:
            for _ in range(2):
                with pytest.raises(quintain.GatewayUnavailable):
                    await transport.call_route(INFO, GetInfo(), timeout_seconds=5)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with pytest.raises(quintain.GatewayUnavailable):
            await call(url)
    assert [head.split()[1] for head in heads] == [*[b"http://gateway.invalid/info"] * 2, b"/info"]
    for head in heads:
        assert b"authorization: bearer a token\r\n" in head.lower()
        assert not any(name in head.lower() for name in (b"cookie:", b"proxy-authorization:"))


@pytest.mark.parametrize(
    ("url", "token", "mend"),
    [
        ("http://", "t", "give one such as"),
        ("ftp://127.0.0.1", "t", "give one such as"),
        ("http://127.0.0.1:99999", "t", "give one such as"),
        ("http://[", "t", "give one such as"),
        ("http://127.0.0.1:1/?x=1", "t", "without ? and #"),
        ("http://127.0.0.1:1", "tökèn\u2028", "cannot be used"),
        ("http://127.0.0.1:1", "a\ntoken", "cannot be used"),
    ],
)
async def test_a_url_or_a_token_that_cannot_be_used_is_a_config_error(url: str, token: str, mend: str) -> None:
    with pytest.raises(quintain.ConfigError) as refused:
        async with open_http_transport(url, token):
            pass
    assert mend in refused.value.message


async def test_an_address_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(quintain.ConfigError) as refused:
        await call("http://me:hunter2@127.0.0.1:1")
    assert "hunter2" not in refused.value.message


async def test_calls_share_a_connection(tmp_path: Path) -> None:
    async with memory_fleet(tmp_path, "targets: {echo: {provider: mock}}\n") as fleet:
        token = (await fleet.open_session("echo")).token
        async with connect(fleet.gateway_url, token) as target, open_gateway_client(fleet.gateway_url) as nobody:
            for _ in range(5):
                await target.invoke("x")
            metrics = (await nobody.http.get("/metrics")).text
    assert "quintain_gateway_connections 2.0" in metrics.splitlines()


async def test_a_gateway_behind_a_path_is_reached(tmp_path: Path) -> None:
    async with memory_fleet(tmp_path, "targets: {echo: {provider: mock}}\n") as fleet:
        token = (await fleet.open_session("echo")).token
        async with connect(f"{fleet.gateway_url}/run/42/", token) as target:
            assert (await target.invoke("x")).raw_text == "x"


@pytest.mark.parametrize("request_id", ["zeile\nzwei", "ümläut"])
async def test_a_request_id_that_no_header_can_carry_is_refused_before_anything_is_sent(
    tmp_path: Path, request_id: str
) -> None:
    async with memory_fleet(tmp_path, "targets: {echo: {provider: mock}}\n") as fleet:
        token = (await fleet.open_session("echo")).token
        async with connect(fleet.gateway_url, token) as target:
            with pytest.raises(quintain.BadRequest, match="printable ASCII"):
                await target.send(quintain.InvokeRequest(question="x"), request_id=request_id)
