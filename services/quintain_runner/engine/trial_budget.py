"""Reserves the calls of a trial and of its graders before it begins, where the budget may not be enough for all."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from quintain.errors import BudgetExhausted, BusError, ConfigError, Fault
from quintain_runner.graders.base import GradingContext, PlannedCalls, ReservedSession, call_with_retry
from quintain_runner.plan.address import NumberedRequest
from quintain_runner.plan.trials import Trial
from quintain_runner.results.counts import count_most_calls
from quintain_runner.results.row import Row

#: How long a reservation of calls lasts, and the interval at which it is renewed, in seconds.
RESERVATION_SECONDS, RENEWAL_SECONDS = 1200.0, 300.0


@dataclass(slots=True)
class _Reservation:
    """The calls that are reserved for one trial, by request id, and the sessions of its graders, by name."""

    request_ids: list[str] = field(default_factory=list)
    sessions: dict[str, ReservedSession] = field(default_factory=dict)


class TrialBudget:
    """Decides whether the budget is enough for a whole trial.

    ``is_scarce`` says whether calls are reserved at all: not if the budget is enough for everything. ``most_calls`` are
    the most calls that one execution of each grader has made; a grader without a limit of its own is assumed to make as
    many, at first 1.
    """

    def __init__(self, context: GradingContext, *, is_scarce: bool, most_calls: Counter[str] | None = None) -> None:
        self.context, self.is_scarce = context, is_scarce
        self._most_calls = Counter() if most_calls is None else most_calls
        self._reserving_count = 0
        self._released = asyncio.Event()
        self._queue = asyncio.Lock()

    def add_row(self, row: Row) -> None:
        """Note how many calls the row's graders made."""
        count_most_calls(self._most_calls, row)

    @asynccontextmanager
    async def reserved(self, trial: Trial) -> AsyncIterator[GradingContext]:
        """Reserve the calls of a trial, and give the context that its graders run in; give back at the end what they
        did not use.

        Waits while other trials have reserved calls that they may not use. Raises `BudgetExhausted` if the calls are
        not there, and any other `Fault` of reserving them.
        """
        planned = self.planned_calls(trial) if self.is_scarce else []
        is_one_call = trial.kept is not None or not trial.case.is_conversation
        if not self.is_scarce or (not planned and is_one_call):
            yield self.context
            return
        reservation = await self._wait_for_reservation(trial, planned)
        self._reserving_count += 1
        is_over = asyncio.Event()
        renewal = asyncio.create_task(self._renew(reservation.request_ids, is_over))
        try:
            yield replace(self.context, sessions=reservation.sessions)
        finally:
            is_over.set()
            await asyncio.wait([renewal])
            await self._release(reservation)
            self._reserving_count -= 1
            self._released.set()

    def planned_calls(self, trial: Trial) -> list[tuple[str, PlannedCalls]]:
        """The calls of the graders that have to run, each with the grader's name."""
        return [
            (grader.name, calls)
            for grader in self.context.graders_of(trial)
            if self.context.reusable(trial, grader.name) is None
            for calls in grader.planned_calls(trial, self.context, self._most_calls.get(grader.name, 1))
        ]

    async def _wait_for_reservation(self, trial: Trial, planned: Sequence[tuple[str, PlannedCalls]]) -> _Reservation:
        if not self._queue.locked():
            with contextlib.suppress(BudgetExhausted):
                return await self._reserve(trial, planned)
        # One trial waits at a time, so that calls are not divided among many that all lack some.
        async with self._queue:
            while True:
                self._released.clear()
                try:
                    return await self._reserve(trial, planned)
                except BudgetExhausted:
                    if not self._reserving_count:
                        raise
                await self._released.wait()

    async def _reserve(self, trial: Trial, planned: Sequence[tuple[str, PlannedCalls]]) -> _Reservation:
        """Reserve all calls or none. A part is given back where the rest is refused."""
        reservation, session = _Reservation(), self.context.session
        own_ids = [calls.request_id for _, calls in planned if calls.request_id is not None]
        request_ids = own_ids if self._has_answer(trial) else [*trial.request_ids, *own_ids]
        try:
            if request_ids and await self._reserve_ids(request_ids):
                reservation.request_ids = request_ids
            for name, calls in planned:
                if (request := calls.session) is not None:
                    opened = await call_with_retry(partial(session.open_child, request))
                    reservation.sessions[name] = ReservedSession.of(opened, request)
        except BaseException:
            await self._release(reservation)
            raise
        return reservation

    def _has_answer(self, trial: Trial) -> bool:
        """Whether the target is not asked: the row has its answer, or a store."""
        if trial.kept is not None or trial.case.is_conversation or not self.context.answers.has_some:
            return trial.kept is not None
        return self.context.answers.find(NumberedRequest(trial.request, trial.number, trial.times_asked)) is not None

    async def _reserve_ids(self, request_ids: Sequence[str]) -> bool:
        """Reserve calls by their ids. Returns False over HTTP, where that is not possible."""
        session = self.context.session
        try:
            await call_with_retry(lambda: session.reserve_ids(request_ids, deadline_seconds=RESERVATION_SECONDS))
        except ConfigError:
            return False
        return True

    async def _renew(self, request_ids: Sequence[str], is_over: asyncio.Event) -> None:
        """Renew the reservation of calls until the trial is over; a failure is repeated at the next interval."""
        while request_ids:
            try:
                await asyncio.wait_for(is_over.wait(), RENEWAL_SECONDS)
            except TimeoutError:
                with contextlib.suppress(Fault, BusError):
                    await self._reserve_ids(request_ids)
            else:
                return

    async def _release(self, reservation: _Reservation) -> None:
        """Give back what was not used. What cannot be given back now ends with its deadline."""
        for reserved in reservation.sessions.values():
            with contextlib.suppress(Fault, BusError):
                await self.context.client_of(reserved.opened.token).close_session()
        with contextlib.suppress(Fault, BusError):
            await self.context.session.release(reservation.request_ids)
