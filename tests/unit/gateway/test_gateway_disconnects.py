"""Clients that leave, and a gateway that is asked to: what runs is cancelled, or answered within the grace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quintain.client.amqp_transport import AmqpTransport
from quintain.client.client import Client
from quintain.contracts.invoke import InvokeRequest, Result
from quintain.contracts.session import CancelCalls
from quintain.routes import ReplyT, RequestT, Route
from quintain_gateway.server import run_gateway
from quintain_gateway.settings import BindAddress, GatewayLimits
from support.gateway_client import RawConnection, encode_body, open_gateway_client, open_raw_connection, request_head
from support.memory_fleet import MemoryFleet, memory_fleet
from support.waiting import wait_until

CONFIG = "targets: {echo: {provider: mock}, slow: {provider: mock, delay_ms: 3000}}\n"


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[MemoryFleet]:
    async with memory_fleet(tmp_path, CONFIG, limits=GatewayLimits(grace_seconds=0)) as fleet:
        yield fleet


class SentCalls:
    """What became of the calls that the gateway sent."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0


@pytest.fixture
def sent_calls(monkeypatch: pytest.MonkeyPatch) -> SentCalls:
    seen, send = SentCalls(), Client.send

    async def counting_send(client: Client, request: InvokeRequest, **more: object) -> Result:
        seen.begun += 1
        try:
            return await send(client, request, **more)
        except asyncio.CancelledError:
            seen.cancelled += 1
            raise

    monkeypatch.setattr(Client, "send", counting_send)
    return seen


async def wait_for_sends(sends: SentCalls, *, begun: int = 0, cancelled: int = 0) -> None:
    await wait_until(lambda: sends.begun >= begun and sends.cancelled >= cancelled)


async def post_request(socket: RawConnection, token: str, path: str, body: object) -> None:
    content = encode_body(body)
    await socket.write(
        request_head("POST", path, {"Authorization": f"Bearer {token}", "Content-Length": str(len(content))}) + content
    )


@pytest.mark.parametrize("size", [1, 200_000], ids=["a small body", "a body that stops the reading"])
async def test_a_client_that_leaves_has_its_call_cancelled(
    fleet: MemoryFleet, sent_calls: SentCalls, size: int
) -> None:
    session = await fleet.open_session("slow")
    async with open_raw_connection(fleet.gateway_url) as socket:
        await post_request(socket, session.token, "/invoke", {"question": "x" * size})
        await wait_for_sends(sent_calls, begun=1)
    await wait_for_sends(sent_calls, cancelled=1)
    async with open_gateway_client(fleet.gateway_url) as nobody:
        metrics = (await nobody.http.get("/metrics")).text
    assert 'quintain_gateway_calls_total{code="cancelled",target="(default)"} 1.0' in metrics


async def test_a_client_that_leaves_in_the_middle_of_its_body_costs_nothing(fleet: MemoryFleet) -> None:
    session = await fleet.open_session("echo")
    async with open_raw_connection(fleet.gateway_url) as socket:
        await socket.write(
            request_head("POST", "/invoke", {"Authorization": f"Bearer {session.token}", "Content-Length": "50"})
            + b'{"ques'
        )
    async with open_gateway_client(fleet.gateway_url, session.token) as door, asyncio.timeout(10):
        while 'code="' in (await door.http.get("/metrics")).text:
            await asyncio.sleep(0.02)
        assert await door.read_call_count() == 0


async def test_what_the_grace_does_not_suffice_for_is_told_that_the_gateway_stops(
    tmp_path: Path, sent_calls: SentCalls
) -> None:
    async with memory_fleet(tmp_path, CONFIG, limits=GatewayLimits(grace_seconds=0)) as fleet:
        session = await fleet.open_session("slow")
        socket = await asyncio.open_connection(*fleet.gateway_url.removeprefix("http://").split(":"))
        await post_request(RawConnection(*socket), session.token, "/invoke", {"question": "x"})
        await wait_for_sends(sent_calls, begun=1)
    answer = await RawConnection(*socket).read_response()
    socket[1].close()
    await socket[1].wait_closed()
    assert (answer.status, answer.json["error"]) == (503, "The gateway is stopping.")
    assert sent_calls.cancelled == 1


async def test_what_is_cut_off_at_the_end_is_taken_back_before_the_gateway_has_gone(
    fleet: MemoryFleet, sent_calls: SentCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_back: list[int] = []
    request = AmqpTransport.call_route

    async def unhurried(
        transport: AmqpTransport, route: Route[RequestT, ReplyT], ask: RequestT, **more: float
    ) -> ReplyT:
        if not isinstance(ask, CancelCalls):
            return await request(transport, route, ask, **more)
        for _ in range(100):  # longer than it takes to close a connection in memory
            await asyncio.sleep(0)
        answer = await request(transport, route, ask, **more)
        taken_back.append(answer.cancelled)
        return answer

    monkeypatch.setattr(AmqpTransport, "call_route", unhurried)
    session = await fleet.open_session("slow")
    async with run_gateway(fleet.running.bus, BindAddress(port=0), GatewayLimits(grace_seconds=0)) as url:
        socket = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
        await post_request(RawConnection(*socket), session.token, "/invoke", {"question": "x"})
        await wait_for_sends(sent_calls, begun=1)
    assert taken_back == [1]
    socket[1].close()
    await socket[1].wait_closed()
