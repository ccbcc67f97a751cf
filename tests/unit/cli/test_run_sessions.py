"""The session that a command takes up again: what a service of an earlier release does not know does not stop it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quintain.client.client import Client
from quintain.contracts.session import Info
from quintain.contracts.token import SessionToken
from quintain.errors import (
    BadRequest,
    BudgetUnavailable,
    GatewayUnavailable,
    InternalFault,
    QuintainError,
    Unauthorized,
)
from quintain_cli.run.backend import Backend
from quintain_cli.run.session import RunBudget, RunSessions
from quintain_runner import SessionRequest
from support.fake_client import FakeClient


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


def run_sessions(folder: Path, stored: Client) -> RunSessions:
    """The sessions of a command in a folder with the token of this session."""
    token = SessionToken.mint().text
    (folder / "session-token").write_text(f"{token} 0 0 0\n")

    @contextlib.asynccontextmanager
    async def connect(session_token: str) -> AsyncIterator[Client]:
        yield stored if session_token == token else ParentClient()

    async def unused(_: str) -> Info:
        raise NotImplementedError

    backend = Backend(
        location="here",
        gateway_url="",
        admin=None,
        parent_token=SessionToken.mint().text,
        connect_session=connect,
        read_session_info=unused,
        close_session=unused,
    )
    budget = RunBudget(
        default_target="bot",
        max_calls=1000,
        max_body_bytes=None,
        is_explicit=True,
        label="run",
        token_path=folder / "session-token",
        count_spent_calls=lambda: 0,
        calls_location=lambda _: "calls.jsonl",
    )
    return RunSessions(backend, budget)


@pytest.mark.parametrize("refusal", [BadRequest, BudgetUnavailable, InternalFault, GatewayUnavailable])
async def test_a_session_whose_children_cannot_be_closed_is_taken_up(
    tmp_path: Path, refusal: type[QuintainError]
) -> None:
    stored = StoredClient(refusal("unknown operation"))
    async with run_sessions(tmp_path, stored) as sessions:
        session = await sessions.open(SessionRequest(is_changed=False, most_calls=3))
        assert session.client is stored


async def test_a_session_that_ended_meanwhile_is_replaced(tmp_path: Path) -> None:
    stored = StoredClient(Unauthorized("closed"))
    async with run_sessions(tmp_path, stored) as sessions:
        session = await sessions.open(SessionRequest(is_changed=False, most_calls=0))
        assert session.client is not stored
        assert session.session_id is None
