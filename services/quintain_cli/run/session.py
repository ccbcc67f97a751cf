"""The session of a run. Its token is stored beside the results, so a resumed run uses the same budget."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from quintain.client.admin import Admin
from quintain.client.client import Client
from quintain.contracts.session import AmendSession, Info, OpenSession, SessionOpened
from quintain.errors import ConfigError, Unauthorized
from quintain_cli.console import print_stderr
from quintain_cli.run.backend import Backend
from quintain_runner import atomic_write


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBudget:
    """The run's right to call. ``is_explicit``: somebody chose the number; another one is raised as it takes.

    ``token_path`` holds the session's token, for this user alone.
    ``count_spent_calls`` counts what the results of before were charged: asked where their session is gone.
    """

    default_target: str
    max_calls: int
    is_explicit: bool
    label: str
    token_path: Path
    count_spent_calls: Callable[[], int]


@dataclass(frozen=True, slots=True)
class RunSession:
    """The client of the run's session, and what sessions of before it were charged in the run's name."""

    client: Client
    calls_of_earlier_sessions: int
    admin: Admin | None

    async def raise_budget(self, max_calls: int) -> None:
        """Let the session make so many calls; nothing where nobody here may say so: then the run parks."""
        if self.admin is not None:
            session_id = (await self.client.get_info()).session_id
            await self.admin.amend(AmendSession(session_id=session_id, max_calls=max_calls))


@dataclass(frozen=True, slots=True)
class _StoredSession:
    """What the file holds: a token, and what was spent before it."""

    token: str
    calls_of_earlier_sessions: int


@contextlib.asynccontextmanager
async def open_run_session(backend: Backend, budget: RunBudget) -> AsyncIterator[RunSession]:
    """The run's session: the kept one where it still opens, a new one otherwise, with what is left of the budget."""
    async with contextlib.AsyncExitStack() as stack:
        stored, client = _read_stored_session(budget.token_path), None
        if stored is not None:
            client = await _resume_session(backend, budget, stored, stack)
        if stored is None or client is None:
            spent_calls = 0 if stored is None else budget.count_spent_calls()
            opened = await _open_session(backend, budget, max(0, budget.max_calls - spent_calls))
            stored = _StoredSession(opened.token, spent_calls)
            _write_stored_session(budget.token_path, stored)
            client = await stack.enter_async_context(backend.connect_session(stored.token))
        yield RunSession(client, stored.calls_of_earlier_sessions, backend.admin)


async def _resume_session(
    backend: Backend, budget: RunBudget, stored: _StoredSession, stack: contextlib.AsyncExitStack
) -> Client | None:
    try:
        client = await stack.enter_async_context(backend.connect_session(stored.token))
        info = await client.get_info()
    except Unauthorized:
        print_stderr(
            "budget   the session of before is closed or expired; this run goes on under a new one, with what is left"
        )
        return None
    if budget.is_explicit and info.max_calls != max(0, budget.max_calls - stored.calls_of_earlier_sessions):
        await _update_limit(backend, budget, stored, info)
    return client


async def _update_limit(backend: Backend, budget: RunBudget, stored: _StoredSession, info: Info) -> None:
    if backend.admin is None:
        raise ConfigError(
            f"This run's budget is {info.max_calls + stored.calls_of_earlier_sessions} calls, and {budget.max_calls} "
            "are asked for: "
            "only QUINTAIN_ADMIN_TOKEN may change it"
        )
    limit = max(0, budget.max_calls - stored.calls_of_earlier_sessions)
    await backend.admin.amend(AmendSession(session_id=info.session_id, max_calls=limit))


async def _open_session(backend: Backend, budget: RunBudget, max_calls: int) -> SessionOpened:
    request = OpenSession(default_target=budget.default_target, max_calls=max_calls, label=budget.label)
    if backend.admin is not None:
        return await backend.admin.open(request)
    if backend.parent_token is not None:
        async with backend.connect_session(backend.parent_token) as parent:
            return await parent.open_child(request)
    raise ConfigError(
        "A run on a fleet needs a session: set QUINTAIN_ADMIN_TOKEN to open one, or QUINTAIN_SESSION_TOKEN to draw "
        "on yours"
    )


def _read_stored_session(path: Path) -> _StoredSession | None:
    fields = path.read_text().split() if path.is_file() else []
    if not fields:
        return None
    return _StoredSession(fields[0], int(fields[1]) if len(fields) > 1 else 0)


def _write_stored_session(path: Path, stored: _StoredSession) -> None:
    """Kept before the first call is made under it: whatever happens then, the run goes on in this session."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, mode=0o600) as file:
        file.write(f"{stored.token} {stored.calls_of_earlier_sessions}\n".encode())
