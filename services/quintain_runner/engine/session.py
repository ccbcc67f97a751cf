"""The session of a run. Its token is stored beside the results, so that all commands of the run share one budget.

A run without open trials closes its session; the next command opens another one, with what is left of the budget.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from quintain.client.client import Client
from quintain.contracts.money import LEAST_COST_USD, NO_LIMIT
from quintain.contracts.session import AmendSession, Info, OpenSession, UsageLine
from quintain.errors import BusError, ConfigError, Fault, Unauthorized
from quintain_metadata.ledger.audit import CallRecord, export_page
from quintain_metadata.store.opening import open_snapshot
from quintain_runner.engine.backend import Backend
from quintain_runner.engine.run_settings import RunSettings
from quintain_runner.engine.stored_session import StoredSession, read_stored_session, write_stored_session
from quintain_runner.files import atomic_write
from quintain_runner.report.run_file import read_run
from quintain_runner.report.summary import CostLimit

CALLS_FILE_NAME = "calls.jsonl"

#: An answer may arrive before its call is settled: the timeout and interval of waiting for that, in seconds.
SETTLE_TIMEOUT_SECONDS, SETTLE_POLL_SECONDS = 5.0, 0.1


def fleet_calls_note(session_id: str) -> str:
    """Return the note in the run's record that says where a fleet keeps the calls of the run."""
    return f"on the fleet, beside its ledger: quintain ledger export --session {session_id}"


def release_command(session_id: str, run: RunSettings) -> str:
    """Return the command by which an administrator releases what the session holds, with what was billed."""
    command = f"quintain ledger release {session_id} --billed-usd AMOUNT"
    if run.is_on_fleet:
        return f"{command}, beside the fleet's ledger"
    return command if run.settings.ledger_url else f"QUINTAIN_LEDGER_URL={shlex.quote(local_ledger_url(run))} {command}"


def local_ledger_url(run: RunSettings) -> str:
    """Return the URL of the ledger of a run that makes its calls in this process."""
    return run.settings.ledger_url or f"sqlite://{(run.options.folder / 'ledger.sqlite3').absolute()}"


async def write_calls(folder: Path, ledger_url: str) -> None:
    """Write all calls of a run's sessions and their children to ``calls.jsonl``, atomically, when the run has ended.

    A call that still runs by the ledger has no worker any more: its outcome will not be known, so it is in
    doubt. Raises `QuintainError` if the file cannot be written.
    """
    sessions = (await asyncio.to_thread(read_run, folder)).sessions
    async with open_snapshot(ledger_url) as snapshot:
        with atomic_write(folder / CALLS_FILE_NAME) as file:
            for session in sessions:
                cursor = ("", "")
                while page := await snapshot.read(export_page(cursor, session_id=session.session_id)):
                    file.writelines(_without_running(call).to_wire() + b"\n" for call in page)
                    cursor = (page[-1].session_id, page[-1].request_id)


def _without_running(call: CallRecord) -> CallRecord:
    return call.model_copy(update={"state": "inDoubt"}) if call.state == "running" else call


async def read_final_info(client: Client) -> Info:
    """Return a session's information with what its calls took, once no call is running.

    It waits for that up to `SETTLE_TIMEOUT_SECONDS`.
    """
    for _ in range(round(SETTLE_TIMEOUT_SECONDS / SETTLE_POLL_SECONDS)):
        info = await client.get_info(usage=True)
        if not info.running:
            break
        await asyncio.sleep(SETTLE_POLL_SECONDS)
    return info


#: How long the session of a run is valid, so that what was answered is not asked again: 7 days, in seconds.
SESSION_SECONDS = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSession:
    """The session of a run.

    ``session_id`` is None if there is nothing to call: then ``client`` is that of another session, which counts
    nothing. ``calls_of_earlier_sessions`` were charged to other sessions of the run. ``is_bounded`` says that the
    session's limit does not follow from what the plan needs. ``ended_usage`` is what the calls took of a session that
    this one replaces, by its id.
    """

    client: Client
    session_id: str | None
    calls_location: str = CALLS_FILE_NAME
    calls_of_earlier_sessions: int = 0
    is_bounded: bool = True
    ended_usage: Mapping[str, list[UsageLine]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session of ``max_calls`` that takes the place of another, which ``ended`` for this reason."""

    max_calls: int
    ended: str


class RunSessions:
    """The sessions of one command. ``client`` is that of the stored session or, if that has ended, of one without
    calls, that says which targets there are.
    """

    def __init__(
        self, run: RunSettings, backend: Backend, on_new_session: Callable[[NewSession], None] = lambda _: None
    ) -> None:
        self._run, self._backend, self._on_new_session = run, backend, on_new_session
        self._path = run.options.folder / "session-token"
        self._is_bounded = run.own_max_calls is not None
        self._stack = contextlib.AsyncExitStack()
        self._is_valid = True

    async def __aenter__(self) -> Self:
        """Connect the stored session; open the run's first one, or one without calls if the stored one has ended."""
        async with contextlib.AsyncExitStack() as stack:
            if (stored := read_stored_session(self._path)) is None:
                limit = self._run.max_cost_usd
                token = await self._open_session(self._run.max_calls, limit)
                stored = StoredSession(token, own_cost_usd=limit or 0.0, max_cost_usd=limit)
                # Stored before the first call, so that a resumed run continues in the same session.
                write_stored_session(self._path, stored)
            try:
                self.client = await stack.enter_async_context(self._backend.connect_session(stored.token))
                await _close_children(self.client)
            except Unauthorized:
                self._is_valid = False
                token = await self._open_session(0)
                self.client = await stack.enter_async_context(self._backend.connect_session(token))
            self._stored, self._stack = stored, stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the connections, and the session without calls."""
        async with self._stack:
            if not self._is_valid:
                with contextlib.suppress(Fault, BusError):
                    await self.client.close_session()

    async def open(self, *, most_calls: int, calls_in_rows: int) -> RunSession:
        """Give the session of the run: the stored one, or a new one if that ended.

        ``most_calls`` is the most calls that this command can need, and 0 if it has nothing to do. ``calls_in_rows``
        were charged for the rows that there are. Raises `ConfigError` if another limit is requested and may not be set.
        """
        if not self._is_valid:
            # The rows may hold calls that were made after the session's were counted.
            own_calls = max(self._stored.own_calls, calls_in_rows - self._stored.earlier_calls)
            self._stored = replace(self._stored, own_calls=own_calls)
        if not self._is_valid and not most_calls:
            return replace(self._run_session(), session_id=None)
        return await (self._set_limit(most_calls) if self._is_valid else self._replace(most_calls))

    async def spent_parent(self) -> str | None:
        """Return the id of the session on whose budget this run draws, if that has no more calls left than its own."""
        info = await self.client.get_info()
        left = await self._parent_calls_left(info)
        return info.parent_id if left is not None and left <= info.max_calls - info.call_count else None

    async def spent_cost(self) -> CostLimit | None:
        """Return the limit in money that this run has, and what it cost at most, if it has calls left; else None.

        The limit is that of the session, which keeps it also where this command names none; or that of the session on
        which it draws, where that leaves less.
        """
        info, earlier = await self.client.get_info(), self._stored.earlier_cost_usd
        left = None if info.cost is None else info.cost.left_usd
        if left is None or info.call_count >= info.max_calls:
            return None
        most, limit = _most_cost_usd(info), info.max_cost_usd
        if limit is None or left < limit - most - LEAST_COST_USD:
            return CostLimit(None, earlier + most, info.parent_id)
        is_soft = info.cost is not None and info.cost.estimated > 0
        return CostLimit(earlier + limit, earlier + most, is_soft=is_soft)

    async def finish(self, *, has_open_trials: bool) -> None:
        """Note what the session was charged, and close it if no trial is open."""
        if not self._is_valid:
            return
        info = await self.client.get_info()
        own_calls, own_cost_usd = info.call_count - info.reserved, _most_cost_usd(info)
        self._store(replace(self._stored, own_calls=own_calls, own_cost_usd=own_cost_usd))
        if not has_open_trials:
            await self.client.close_session()

    async def _replace(self, most_calls: int) -> RunSession:
        """Open a new session, and close the one before."""
        before, own_calls, ended_usage = self.client, self._stored.own_calls, {}
        if self._is_valid:
            info = await before.get_info(usage=True)
            own_calls, ended_usage = info.call_count - info.reserved, {info.session_id: info.usage or []}
            self._stored = replace(self._stored, own_cost_usd=_most_cost_usd(info))
        stored = self._stored.followed_by("", own_calls)
        limit = most_calls + self._run.spare_calls
        if self._is_bounded:
            limit = max(0, self._run.max_calls - stored.earlier_calls)
        ended = "has too few calls" if self._is_valid else "is closed or expired"
        self._on_new_session(NewSession(limit, ended))
        run_limit = self._cost_limit(stored)
        cost_limit = None if run_limit is None else _cost_left(run_limit, stored)
        token = await self._open_session(limit, cost_limit)
        self._store(replace(stored, token=token, own_cost_usd=cost_limit or 0.0, max_cost_usd=run_limit))
        self.client = await self._stack.enter_async_context(self._backend.connect_session(token))
        # Closed when the new one is stored: a command that is killed between them leaves one that is known.
        with contextlib.suppress(Fault, BusError):
            await before.close_session()
        self._is_valid = True
        return replace(self._run_session(), ended_usage=ended_usage)

    def _run_session(self) -> RunSession:
        stored = self._stored
        return RunSession(
            client=self.client,
            session_id=stored.session_id,
            calls_location=fleet_calls_note(stored.session_id) if self._run.is_on_fleet else CALLS_FILE_NAME,
            calls_of_earlier_sessions=stored.earlier_calls + (0 if self._is_valid else stored.own_calls),
            is_bounded=self._is_bounded,
        )

    async def _set_limit(self, most_calls: int) -> RunSession:
        """Set the session's limit to what is left of the run's budget or, if the user named none, raise it to what the
        plan needs.

        Without an admin token another session takes its place, if the user's has more calls left; else the run stops at
        its limit.
        """
        stored, info = self._stored, await self.client.get_info()
        max_calls, max_body_bytes = self._run.max_calls, self._run.evaluation.spec.max_body_bytes
        weight, priority = self._run.weight, self._run.priority
        needed = info.call_count + most_calls + self._run.spare_calls
        limit = max(0, max_calls - stored.earlier_calls) if self._is_bounded else max(info.max_calls, needed)
        cost_limit, run_limit = info.max_cost_usd, self._cost_limit(stored)
        if self._names_cost_limit:
            cost_limit = None if run_limit is None else _cost_left(run_limit, stored)
        is_cost_unchanged = cost_limit == info.max_cost_usd
        is_size_unchanged = max_body_bytes in {None, info.max_body_bytes}
        is_share_unchanged = weight in {None, info.weight} and priority in {None, info.priority}
        is_unchanged = limit == info.max_calls and is_size_unchanged and is_share_unchanged and is_cost_unchanged
        if most_calls:
            # What the session may cost at most: a command that is killed does not count it.
            self._store(replace(stored, own_cost_usd=cost_limit or 0.0, max_cost_usd=run_limit))
        if is_unchanged or not most_calls:
            return self._run_session()
        if self._backend.admin is not None:
            amendment = AmendSession(
                session_id=info.session_id,
                max_calls=limit,
                max_cost_usd=NO_LIMIT if cost_limit is None else cost_limit,
                max_body_bytes=max_body_bytes,
                weight=weight,
                priority=priority,
            )
            await self._backend.admin.amend(amendment)
            return self._run_session()
        if not is_share_unchanged:
            raise ConfigError(
                f"The session of this run has weight {info.weight} and priority {info.priority}: changing them needs "
                "QUINTAIN_ADMIN_TOKEN"
            )
        if not is_cost_unchanged:
            raise ConfigError(
                "The limit in money of this run's session is another one: changing it needs QUINTAIN_ADMIN_TOKEN"
            )
        own_left, parent_left = info.max_calls - info.call_count, await self._parent_calls_left(info)
        if limit > info.max_calls and parent_left is not None and parent_left > own_left:
            return await self._replace(most_calls)
        if self._is_bounded:
            raise ConfigError(
                f"This run's budget is {info.max_calls + stored.earlier_calls} calls, and {max_calls} are "
                "requested: changing it needs QUINTAIN_ADMIN_TOKEN"
            )
        return self._run_session()

    async def _parent_calls_left(self, info: Info) -> int | None:
        """Return the calls that the user's session has left; None if the run's is no child of it, or it has ended."""
        if self._backend.parent_token is None or info.parent_id is None:
            return None
        try:
            async with self._backend.connect_session(self._backend.parent_token) as parent:
                parent_info = await parent.get_info()
        except (Fault, BusError):
            return None
        is_parent = parent_info.session_id == info.parent_id
        return parent_info.max_calls - parent_info.call_count if is_parent else None

    @property
    def _names_cost_limit(self) -> bool:
        """Whether the user says what the limit in money is, or that there is none any more."""
        return self._run.max_cost_usd is not None or self._run.options.max_cost_usd == NO_LIMIT

    def _cost_limit(self, stored: StoredSession) -> float | None:
        """Return the limit of this run in US dollars: what the user says, else the one that it has."""
        return self._run.max_cost_usd if self._names_cost_limit else stored.max_cost_usd

    async def _open_session(self, max_calls: int, max_cost_usd: float | None = None) -> str:
        """Open a session and return its token; without a limit of the user's it has what the parent session has.

        Raises `ConfigError` if the user's limit is more than that, or if no session can be opened.
        """
        evaluation = self._run.evaluation
        request = OpenSession(
            default_target=self._run.targets[0],
            max_calls=max_calls,
            max_cost_usd=max_cost_usd,
            warn_at=evaluation.spec.warn_at,
            label=f"run {evaluation.name}",
            max_body_bytes=evaluation.spec.max_body_bytes,
            weight=self._run.weight,
            priority=self._run.priority,
            expires_in_seconds=SESSION_SECONDS,
        )
        return (await self._backend.open_session(request, may_have_more=not self._is_bounded)).token

    def _store(self, stored: StoredSession) -> None:
        self._stored = stored
        write_stored_session(self._path, stored)


def _most_cost_usd(info: Info) -> float:
    """Return what a session cost at most, in US dollars."""
    cost = info.cost
    return 0.0 if cost is None else cost.spent_usd + cost.held_usd + cost.reserved_usd + cost.excess_usd


def _cost_left(run_limit: float, stored: StoredSession) -> float:
    """Return what is left of a limit in US dollars for the next calls; where nothing is, the least amount, which no
    call fits in."""
    return max(LEAST_COST_USD, round(run_limit - stored.earlier_cost_usd, 12))


async def _close_children(client: Client) -> None:
    """Close the sessions of an interrupted run's graders, so that this run can use what was reserved for them.

    Raises `Unauthorized` if the session has ended. Any other failure is no reason to stop: what is not given back here
    ends with its deadline.
    """
    try:
        await client.close_children()
    except Unauthorized:
        raise
    except (Fault, BusError):
        return
