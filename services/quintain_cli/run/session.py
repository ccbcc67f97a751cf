"""The session of a run. Its token is stored beside the results, so a resumed run uses the same budget."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from quintain.client.admin import Admin
from quintain.client.client import Client
from quintain.contracts.session import AmendSession, Info, OpenSession, SessionOpened
from quintain.errors import BadRequest, ConfigError, Unauthorized
from quintain_cli.console import print_stderr
from quintain_cli.run.backend import Backend
from quintain_runner import atomic_write


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBudget:
    """The call budget of a run and how to open its session.

    ``is_explicit`` means that the user set ``max_calls``; otherwise the limit is raised when more calls are needed.
    ``is_new_session`` opens a session with all of ``max_calls``, even if the earlier one is valid.
    ``token_path`` is the file with the session's token. ``count_spent_calls`` counts the calls charged for the
    existing results, for the case that their session has ended.
    """

    default_target: str
    max_calls: int
    is_explicit: bool
    is_new_session: bool = False
    label: str
    token_path: Path
    count_spent_calls: Callable[[], int]


@dataclass(frozen=True, slots=True)
class RunSession:
    """The client of a run's session, and the number of calls that earlier sessions of the run were charged."""

    client: Client
    calls_of_earlier_sessions: int
    admin: Admin | None

    async def raise_budget(self, max_calls: int) -> None:
        """Set the session's call limit. Without an admin token this does nothing, and the run stops at its limit."""
        if self.admin is not None:
            session_id = (await self.client.get_info()).session_id
            await self.admin.amend(AmendSession(session_id=session_id, max_calls=max_calls))


@dataclass(frozen=True, slots=True)
class _StoredSession:
    """The contents of the token file: a token, and the number of calls charged to earlier sessions."""

    token: str
    calls_of_earlier_sessions: int


@contextlib.asynccontextmanager
async def open_run_session(backend: Backend, budget: RunBudget) -> AsyncIterator[RunSession]:
    """Open the session of a run: the stored one if it is still valid, else a new one with the rest of the budget."""
    async with contextlib.AsyncExitStack() as stack:
        stored, client = _read_stored_session(budget.token_path), None
        if stored is not None and not budget.is_new_session:
            client = await _resume_session(backend, budget, stored, stack)
        if stored is None or client is None:
            spent_calls = 0 if stored is None else budget.count_spent_calls()
            left = budget.max_calls if budget.is_new_session else max(0, budget.max_calls - spent_calls)
            opened = await _open_session(backend, budget, left)
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
        with contextlib.suppress(BadRequest):  # a metadata service of an earlier release
            # What an interrupted run reserved for its graders is this run's to use.
            info = await client.close_children()
    except Unauthorized:
        print_stderr(
            "budget   the earlier session is closed or expired; this run continues in a new one, with what is left"
        )
        return None
    if budget.is_explicit and info.max_calls != max(0, budget.max_calls - stored.calls_of_earlier_sessions):
        await _update_limit(backend, budget, stored, info)
    return client


async def _update_limit(backend: Backend, budget: RunBudget, stored: _StoredSession, info: Info) -> None:
    if backend.admin is None:
        raise ConfigError(
            f"This run's budget is {info.max_calls + stored.calls_of_earlier_sessions} calls, and {budget.max_calls} "
            "are requested: changing it needs QUINTAIN_ADMIN_TOKEN"
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
        "A run on a fleet needs a session: set QUINTAIN_ADMIN_TOKEN to open one, or QUINTAIN_SESSION_TOKEN to use "
        "the budget of yours"
    )


def _read_stored_session(path: Path) -> _StoredSession | None:
    fields = path.read_text().split() if path.is_file() else []
    if not fields:
        return None
    return _StoredSession(fields[0], int(fields[1]) if len(fields) > 1 else 0)


def _write_stored_session(path: Path, stored: _StoredSession) -> None:
    """Store the token before the first call, so that a resumed run continues in the same session."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, mode=0o600) as file:
        file.write(f"{stored.token} {stored.calls_of_earlier_sessions}\n".encode())
