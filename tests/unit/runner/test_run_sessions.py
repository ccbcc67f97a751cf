"""The session that a command takes up again: what cannot be closed or is gone does not stop it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from quintain.client.admin import Admin
from quintain.client.client import Client, connect, connect_admin
from quintain.contracts.credentials import SessionToken
from quintain.contracts.session import AmendSession, Info, Priority, SessionState
from quintain.errors import (
    BadRequest,
    BudgetExhausted,
    BudgetUnavailable,
    ConfigError,
    GatewayUnavailable,
    InternalFault,
    QuintainError,
    Unauthorized,
)
from quintain_runner.engine.session import RunSessions
from support.evaluations import EXACT, EvaluationFolder, backend_of, cases, write_evaluation
from support.fake_client import FakeClient
from support.memory_fleet import ADMIN_TOKEN, memory_fleet


class StoredClient(FakeClient):
    """The session of an interrupted run, whose children cannot be closed."""

    def __init__(self, refusal: QuintainError) -> None:
        super().__init__()
        self._refusal = refusal

    async def close_children(self) -> Info:
        raise self._refusal


class ParentClient(FakeClient):
    """The session that others are opened from, and each of those."""

    async def close_session(self) -> Info:
        return await self.get_info()


def sessions_of(
    folder: Path,
    connect_session: Callable[[str], AbstractAsyncContextManager[Client]],
    parent_token: str,
    *,
    max_calls: int,
    is_explicit: bool = True,
    admin: Admin | None = None,
    **options: object,
) -> RunSessions:
    """The sessions of a command with these options, without an admin token unless there is an ``admin``."""
    (folder / "out").mkdir(exist_ok=True)
    write_evaluation(folder, cases(1), [EXACT])
    client = FakeClient()
    given = EvaluationFolder(folder, client, targets=("echo",))
    run = given.settings(max_calls=max_calls if is_explicit else None, **options)
    run = replace(run, dataset=replace(run.dataset, cases=max_calls))
    return RunSessions(run, backend_of(client, admin=admin, parent_token=parent_token, connect_session=connect_session))


@pytest.mark.parametrize("refusal", [BadRequest, BudgetUnavailable, InternalFault, GatewayUnavailable, Unauthorized])
async def test_a_session_is_taken_up_and_one_that_ended_is_replaced(
    tmp_path: Path, refusal: type[QuintainError]
) -> None:
    stored, token = StoredClient(refusal("refused")), SessionToken.mint().text
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "session-token").write_text(f"{token} 0 0\n")

    @contextlib.asynccontextmanager
    async def connect_fake(session_token: str) -> AsyncIterator[Client]:
        yield stored if session_token == token else ParentClient()

    async with sessions_of(tmp_path, connect_fake, SessionToken.mint().text, max_calls=1000) as sessions:
        session = await sessions.open(most_calls=0 if refusal is Unauthorized else 3, calls_in_rows=0)
        assert (session.client is stored) == (refusal is not Unauthorized)
        assert refusal is not Unauthorized or session.session_id is None


async def test_a_resumed_run_has_the_share_that_its_command_says(tmp_path: Path) -> None:
    async with memory_fleet(tmp_path, "targets: {echo: {provider: mock}}\n") as fleet:
        parent = await fleet.open_session("echo", 5)
        join = partial(connect, "memory://", memory=fleet.running.memory)

        def sessions(admin: Admin | None = None, **share: object) -> RunSessions:
            return sessions_of(tmp_path, join, parent.token, max_calls=2, admin=admin, **share)

        async with sessions(weight=5) as run:
            plan = await run.open(most_calls=2, calls_in_rows=0)
            assert (await plan.client.get_info()).weight == 5
        async with sessions(weight=7, priority=Priority.BATCH) as run:
            with pytest.raises(ConfigError, match="QUINTAIN_ADMIN_TOKEN"):
                await run.open(most_calls=2, calls_in_rows=0)
        async with (
            connect_admin("memory://", ADMIN_TOKEN, memory=fleet.running.memory) as admin,
            sessions(admin, weight=7, priority=Priority.BATCH) as run,
        ):
            plan = await run.open(most_calls=2, calls_in_rows=0)
            info = await plan.client.get_info()
            assert (info.weight, info.priority) == (7, Priority.BATCH)


@pytest.mark.parametrize("is_explicit", [False, True])
async def test_a_run_whose_parent_is_spent_goes_on_when_that_was_raised(tmp_path: Path, is_explicit: bool) -> None:
    async with memory_fleet(tmp_path, "targets: {echo: {provider: mock}}\n") as fleet:
        parent = await fleet.open_session("echo", 2)

        def sessions(max_calls: int) -> RunSessions:
            join = partial(connect, "memory://", memory=fleet.running.memory)
            return sessions_of(tmp_path, join, parent.token, max_calls=max_calls, is_explicit=is_explicit)

        async with sessions(2) as run:
            plan = await run.open(most_calls=2, calls_in_rows=0)
            await plan.client.invoke_batch(["a", "b"])
            assert await run.spent_parent() == parent.session_id
            await run.finish(has_open_trials=True)
        async with connect_admin("memory://", ADMIN_TOKEN, memory=fleet.running.memory) as admin:
            await admin.amend(AmendSession(session_id=parent.session_id, max_calls=5))
        async with sessions(3) as run:
            plan = await run.open(most_calls=1, calls_in_rows=0)
            await plan.client.invoke("c")
            with pytest.raises(BudgetExhausted):
                await plan.client.invoke("d")
            # Its own limit is what lacks.
            assert await run.spent_parent() is None
            assert plan.calls_of_earlier_sessions == 2


async def test_a_limit_in_money_is_that_of_the_run_until_a_command_changes_it_or_takes_it_away(tmp_path: Path) -> None:
    target = "{provider: mock, token_usage: {input: 1}, price: {per_call: 0.1}}"
    async with (
        memory_fleet(tmp_path, f"targets: {{echo: {target}}}\n") as fleet,
        connect_admin("memory://", ADMIN_TOKEN, memory=fleet.running.memory) as admin,
    ):

        async def limits(usd: float | str | None, calls: int, *, is_closed: bool = False) -> float | None:
            """The limit of the session of a command with this one, which makes so many calls."""
            join = partial(connect, "memory://", memory=fleet.running.memory)
            async with sessions_of(tmp_path, join, "", max_calls=100, admin=admin, max_cost_usd=usd) as sessions:
                plan = await sessions.open(most_calls=50, calls_in_rows=0)
                await plan.client.invoke_batch(["q"] * calls)
                info = await plan.client.get_info()
                if is_closed:
                    await sessions.finish(has_open_trials=True)
                    await admin.amend(AmendSession(session_id=info.session_id, state=SessionState.CLOSED))
                return info.max_cost_usd

        assert await limits(1, calls=2) == 1
        assert await limits(None, calls=1) == 1, "a command without a limit keeps it"
        assert await limits(2, calls=1, is_closed=True) == 2
        # Its session is gone, and what that cost counts.
        assert await limits(None, calls=1) == pytest.approx(2 - 0.4)
        assert await limits("none", calls=1) is None
        assert await limits(None, calls=1, is_closed=True) is None
        assert await limits(None, calls=1) is None
        assert await limits(0.5, calls=0) == pytest.approx(0.1), "all was spent, of that 0.1 in this session"


async def test_a_command_that_is_killed_may_have_spent_its_limit(tmp_path: Path) -> None:
    async with (
        memory_fleet(tmp_path, "targets: {echo: {provider: mock, price: {per_call: 0.1}}}\n") as fleet,
        connect_admin("memory://", ADMIN_TOKEN, memory=fleet.running.memory) as admin,
    ):

        def sessions(usd: float) -> RunSessions:
            join = partial(connect, "memory://", memory=fleet.running.memory)
            return sessions_of(tmp_path, join, "", max_calls=9, admin=admin, max_cost_usd=usd)

        for usd in (1, 3):
            async with sessions(usd) as run:
                plan = await run.open(most_calls=9, calls_in_rows=0)
                session_id = (await plan.client.get_info()).session_id
        await admin.amend(AmendSession(session_id=session_id, state=SessionState.CLOSED))
        async with sessions(3) as run:
            plan = await run.open(most_calls=9, calls_in_rows=0)
            with pytest.raises(BudgetExhausted):
                await plan.client.invoke("q")
