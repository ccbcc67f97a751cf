"""What is kept of a request: its id on every answer, a line in the log, numbers; no body, no token, no path."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quintain.bus.base import Envelope
from quintain.contracts.credentials import SessionToken
from quintain.topology import REPLY
from quintain_gateway.apis import agentv
from quintain_gateway.endpoint import valid_or_new_id
from support.gateway_client import open_gateway_client
from support.memory_fleet import ADMIN_TOKEN, MemoryFleet, memory_fleet

CONFIG = "targets: {echo: {provider: mock}, broken: {provider: mock, fail_rate: 1, max_tries: 1}}\n"


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[MemoryFleet]:
    async with memory_fleet(tmp_path, CONFIG) as fleet:
        yield fleet


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "quintain_gateway.access_log"]


@pytest.mark.parametrize("offered", ["abc-1.2:3_4", "7f3c0a", "a" * 128])
async def test_a_clients_own_id_is_kept(fleet: MemoryFleet, offered: str) -> None:
    async with open_gateway_client(fleet.gateway_url) as nobody:
        for path in ("/health/live", "/info", "/sessions", "/nowhere"):
            response = await nobody.http.get(path, headers={"x-request-id": offered})
            assert response.headers["x-request-id"] == offered


@pytest.mark.parametrize(
    "offered",
    [None, "", "a" * 129, "two words", "-x", 'quo"te', "é", pytest.param(SessionToken.mint().text, id="a token")],
)
def test_an_id_that_is_no_good_in_a_log_is_replaced(offered: str | None) -> None:
    assert re.fullmatch(r"[0-9a-f]{16}", valid_or_new_id(offered))
    assert valid_or_new_id(offered) != valid_or_new_id(offered)


async def test_every_request_is_one_line_without_its_body_its_token_or_its_path(
    fleet: MemoryFleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    session = await fleet.open_session("echo")
    headers = {"x-request-id": "mine"}
    async with open_gateway_client(fleet.gateway_url, session.token) as door:
        await door.http.post("/invoke", content=b'{"question": "my secret question"}', headers=headers)
        await door.http.get("/hidden/path%0A?query", headers=headers)
        await door.http.get("/health/ready", headers=headers)
    async with open_gateway_client(fleet.gateway_url, ADMIN_TOKEN) as admin:
        await admin.http.get(f"/sessions/{session.session_id}", headers=headers)
    written = [re.sub(r"ms=\d+", "ms=_", line) for line in lines(caplog)]
    assert written == [
        f"request id=mine method=POST route=/invoke status=200 ms=_ session={session.session_id}",
        f"request id=mine method=GET route=elsewhere status=404 ms=_ session={session.session_id} code=not_found",
        "request id=mine method=GET route=/sessions/{session_id} status=200 ms=_",
    ]
    ours = [record for record in caplog.records if not record.name.startswith("httpx2")]  # the client's own words
    assert {record.name for record in ours} >= {"quintain_gateway.access_log"}
    for secret in ("my secret", session.token, ADMIN_TOKEN, "hidden", "query"):
        assert not any(secret in record.getMessage() for record in ours)


async def test_a_defect_is_told_with_the_id_and_nothing_else_to_its_client(
    fleet: MemoryFleet, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> object:
        raise RuntimeError("a secret of ours")

    monkeypatch.setattr(agentv, "write_info", broken)
    async with open_gateway_client(fleet.gateway_url, (await fleet.open_session("echo")).token) as door:
        response = await door.http.get("/info", headers={"x-request-id": "mine"})
    assert response.status_code == 500
    assert response.json()["error"] == "A defect of Quintain's own; its log says more."
    assert "answering /info, x-request-id mine" in caplog.text
    assert "a secret of ours" in caplog.text


async def test_the_metrics_have_labels_of_few_values(fleet: MemoryFleet) -> None:
    async with open_gateway_client(fleet.gateway_url, (await fleet.open_session("echo")).token) as door:
        await door.get("/info")
        await door.post("/invoke", {"question": "x"})
        await door.post("/invoke", {"question": "x", "target": "broken"})
        await door.post("/invoke", {"question": "x", "target": "a stranger's word"})
        await door.post("/invoke", {})
        await door.get("/a/strangers/path")
        response = await door.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    text = response.text
    for series in (
        'quintain_gateway_calls_total{code="ok",target="echo"} 1.0',
        'quintain_gateway_calls_total{code="provider_error",target="broken"} 1.0',
        'quintain_gateway_calls_total{code="unknown_target",target="(unknown)"} 1.0',
        'quintain_gateway_requests_total{method="GET",route="/info",status="200"} 1.0',
        'quintain_gateway_requests_total{method="POST",route="/invoke",status="200"} 1.0',
        'quintain_gateway_requests_total{method="POST",route="/invoke",status="400"} 2.0',
        'quintain_gateway_requests_total{method="GET",route="elsewhere",status="404"} 1.0',
        'quintain_gateway_request_seconds_count{route="/invoke"} 4.0',
        "quintain_gateway_requests_in_flight 1.0",
        "quintain_gateway_connections 1.0",
    ):
        assert f"{series}\n" in text
    assert "stranger" not in text


async def test_an_answer_that_nobody_waits_for_is_counted(fleet: MemoryFleet) -> None:
    memory = fleet.running.memory
    bus = memory.connect()
    for name in [queue for queue in memory._queues if queue.startswith("quintain.reply.")]:
        late = Envelope(body=b"{}", type="result", correlation_id="of long ago")
        await bus.publish(REPLY, name.removeprefix("quintain.reply."), late)
    async with open_gateway_client(fleet.gateway_url) as nobody, asyncio.timeout(5):
        while "quintain_gateway_unmatched_replies_total 1.0\n" not in (await nobody.http.get("/metrics")).text:
            await asyncio.sleep(0.01)
    await bus.close()


async def test_an_unknown_http_method_is_no_metric_label(fleet: MemoryFleet) -> None:
    async with open_gateway_client(fleet.gateway_url) as nobody:
        assert (await nobody.http.request("FOO", "/info")).status_code == 401
        text = (await nobody.http.get("/metrics")).text
    assert "FOO" not in text
    assert 'method="other"' in text
