"""One interface, two ways: what an evaluator and an administrator are promised, over the bus and over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest
import pytest_asyncio

import quintain
from quintain.client.admin import Admin
from quintain.client.client import Client, connect, connect_admin
from quintain.contracts.credentials import SessionToken
from quintain.contracts.session import AmendSession, ListSessions, OpenSession, SessionState
from quintain_gateway.settings import GatewayLimits
from support.memory_fleet import ADMIN_TOKEN, MemoryFleet, memory_fleet

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = """
quotas: {team: {requests_per_minute: 600}}
targets:
  echo: {provider: mock}
  judge: {provider: mock, response: "Paris", token_usage: {input: 10, output: 5}}
  broken: {provider: mock, fail_rate: 1, max_tries: 1}
  slow: {provider: mock, delay_ms: 1000}
  stuck: {provider: mock, delay_ms: 60000}
  paced: {provider: mock, quota: team}
"""

OpenClient = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture(params=["bus", "http"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MemoryFleet]:
    folder = tmp_path_factory.mktemp("fleet")
    async with memory_fleet(folder, CONFIG, limits=GatewayLimits(grace_seconds=0)) as fleet:
        yield fleet


@pytest.fixture
def open_client(fleet: MemoryFleet, transport: str) -> OpenClient:
    """A new session's client, by its default target and its limit."""

    @contextlib.asynccontextmanager
    async def opened(target: str = "echo", max_calls: int = 50, **more: object) -> AsyncIterator[Client]:
        token = (await fleet.open_session(target, max_calls, **more)).token
        async with connect_over(fleet, transport, token) as client:
            yield client

    return opened


def connect_over(fleet: MemoryFleet, transport: str, token: str) -> AbstractAsyncContextManager[Client]:
    if transport == "http":
        return connect(fleet.gateway_url, token)
    return connect("memory://", token, memory=fleet.running.memory)


@pytest_asyncio.fixture(loop_scope="module")
async def admin(fleet: MemoryFleet, transport: str) -> AsyncIterator[Admin]:
    url = fleet.gateway_url if transport == "http" else "memory://"
    async with connect_admin(url, ADMIN_TOKEN, memory=fleet.running.memory) as admin:
        yield admin


async def test_whoever_calls_may_see_what_the_quotas_do(open_client: OpenClient, admin: Admin) -> None:
    async with open_client() as client:
        for quotas in (await client.get_quotas()).quotas, (await admin.quotas()).quotas:
            assert [(quota.name, quota.targets, quota.waiting) for quota in quotas] == [("team", ["paced"], 0)]


@pytest.mark.parametrize("only", ["reserve", "cancel", "targets"])
async def test_what_a_gateway_has_no_operation_for_says_so(fleet: MemoryFleet, only: str) -> None:
    token = (await fleet.open_session("echo")).token
    async with connect(fleet.gateway_url, token) as client, connect_admin(fleet.gateway_url, ADMIN_TOKEN) as admin:
        calls = {"reserve": lambda: client.reserve(1), "cancel": lambda: client.cancel(["x"]), "targets": admin.targets}
        with pytest.raises(quintain.ConfigError, match="QUINTAIN_BROKER_URL"):
            await calls[only]()


async def test_over_http_an_answer_comes_whole(fleet: MemoryFleet) -> None:
    token = (await fleet.open_session("echo")).token
    async with connect(fleet.gateway_url, token) as client:
        with pytest.raises(quintain.ConfigError, match="connect to the broker"):
            await client.send(quintain.InvokeRequest(question="x"), on_chunk=print)


async def test_an_invoke_is_a_result(open_client: OpenClient) -> None:
    async with open_client("judge") as target:
        result = await target.invoke("What is the capital of France?", system_prompt="Be brief.")
    assert (result.raw_text, result.target, result.attempts) == ("Paris", "judge", 1)
    assert result.output == [quintain.contracts.invoke.OutputMessage(content="Paris")]
    assert result.token_usage == quintain.TokenUsage(input=10, output=5)
    assert (result.call_count, result.max_calls, result.cached, result.replayed) == (1, 50, False, False)
    assert result.duration_ms >= 0


async def test_the_same_request_id_is_the_same_call_whether_its_target_is_named_or_the_default(
    open_client: OpenClient,
) -> None:
    async with open_client("echo") as target:
        first = await target.send(quintain.InvokeRequest(question="x", target="echo"), request_id="mine")
        again = await target.send(quintain.InvokeRequest(question="x"), request_id="mine")
        assert (first.replayed, again.replayed, again.raw_text, again.target) == (False, True, "x", "echo")
        for other in (quintain.InvokeRequest(question="y"), quintain.InvokeRequest(question="x", target="judge")):
            with pytest.raises(quintain.RequestConflict):
                await target.send(other, request_id="mine")
        with pytest.raises(quintain.BadRequest):
            await target.send(quintain.InvokeRequest(question="x"), request_id="x" * 129)
        info = await target.get_info()
        assert (info.call_count, info.committed, info.running) == (1, 1, 0)
        # An empty one is none.
        assert (await target.send(quintain.InvokeRequest(question="x"), request_id="")).call_count == 2


async def test_info_tells_the_session_and_what_went_to_which_target(open_client: OpenClient) -> None:
    async with open_client("judge", 9, label="mine", allowed_targets=["judge", "echo"]) as target:
        await target.invoke("x")
        await target.invoke("x", target="echo")
        async with asyncio.timeout(60):
            while (info := await target.get_info(usage=True)).committed < 2:
                await asyncio.sleep(0.02)
        assert (await target.get_info()).usage is None
    assert (info.target_name, info.max_calls, info.call_count, info.label) == ("judge", 9, 2, "mine")
    assert (info.available_targets, info.state) == (["judge", "echo"], SessionState.OPEN)
    assert (info.session_id != "", info.now > 0, info.token_usage.input) == (True, True, 11)
    counted = {line.target: (line.calls, line.counted, line.token_usage.input) for line in info.usage or ()}
    assert counted == {"echo": (1, 1, 1), "judge": (1, 1, 10)}


async def test_faults_are_the_same_classes_with_the_same_words(open_client: OpenClient) -> None:
    async with open_client("judge", 1, allowed_targets=["judge", "broken"]) as target:
        with pytest.raises(quintain.BadRequest) as nothing:
            await target.invoke()
        with pytest.raises(quintain.UnknownTarget) as unknown:
            await target.invoke("x", target="nobody")
        with pytest.raises(quintain.ForbiddenTarget):
            await target.invoke("x", target="echo")
        with pytest.raises(quintain.ProviderFailed) as failed:
            await target.invoke("x", target="broken")
        with pytest.raises(quintain.BudgetExhausted) as spent:
            await target.invoke("x")
    assert nothing.value.message == "Missing required field: question"
    assert unknown.value.message == "Unknown target 'nobody'. Available: judge, broken"
    assert unknown.value.available_targets == ("judge", "broken")
    assert (failed.value.charged, failed.value.retryable, failed.value.status) == (True, False, 502)
    assert spent.value.message == "Max calls exceeded (limit: 1)"
    assert (spent.value.charged, spent.value.retryable, spent.value.status) == (False, False, 429)


async def test_a_token_that_opens_nothing_is_refused_at_once(fleet: MemoryFleet, transport: str) -> None:
    for token in (SessionToken.mint().text, "no token at all"):
        with pytest.raises(quintain.Unauthorized):
            async with connect_over(fleet, transport, token):
                pytest.fail("it opened something")


async def test_a_batch_keeps_its_order_and_loses_nothing_to_a_bad_item(open_client: OpenClient) -> None:
    async with open_client("echo", 6) as target:
        items = await target.invoke_batch(
            [
                "a question alone",
                {"question": "fields", "target": "judge"},
                quintain.InvokeRequest(question="x", target="broken"),
                {"question": 7},
                quintain.InvokeRequest(question="x", target="nobody"),
                quintain.InvokeRequest(messages=[quintain.ChatMessage(role="user", content="messages")]),
            ]
        )
        texts = [None if item.result is None else item.result.raw_text for item in items]
        assert texts == ["a question alone", "Paris", None, None, None, "messages"]
        faults = [item.fault for item in items]
        kinds = [type(fault) for fault in faults if fault is not None]
        assert kinds == [quintain.ProviderFailed, quintain.BadRequest, quintain.UnknownTarget]
        assert [fault.charged for fault in faults if fault is not None] == [True, False, False]
        assert "question" in faults[3].message
        assert faults[4].available_targets == ("echo", "judge", "broken", "slow", "stuck", "paced")
        assert (await target.get_info()).call_count == 4
        assert await target.invoke_batch([]) == []
        with pytest.raises(quintain.BadRequest, match="one text"):
            await target.invoke_batch("abc")


async def test_an_administrator_opens_lists_shows_and_amends(admin: Admin) -> None:
    first = await admin.open(OpenSession(default_target="echo", max_calls=2, label="a & b?"))
    second = await admin.open(OpenSession(default_target="judge"))
    shown = await admin.show(first.session_id)
    assert (shown.session_id, shown.max_calls, shown.label) == (first.session_id, 2, "a & b?")
    listed = await admin.list(ListSessions())
    assert {first.session_id, second.session_id} <= {info.session_id for info in listed.sessions}
    assert (await admin.amend(AmendSession(session_id=first.session_id, max_calls=5))).max_calls == 5
    closed = await admin.amend(AmendSession(session_id=second.session_id, state=SessionState.CLOSED))
    assert closed.state == SessionState.CLOSED
    page = await admin.list(ListSessions(state=SessionState.CLOSED))
    assert second.session_id in {info.session_id for info in page.sessions}


@pytest.mark.parametrize("session_id", ["nobody", "", "..", "a/b?c#d", "ümläut"])
async def test_a_session_that_is_not_there_is_a_bad_request(admin: Admin, session_id: str) -> None:
    with pytest.raises(quintain.BadRequest):
        await admin.show(session_id)
    with pytest.raises(quintain.BadRequest):
        await admin.amend(AmendSession(session_id=session_id, max_calls=1))
    with pytest.raises(quintain.BadRequest):
        await admin.show("x" * 201)  # too long for any
