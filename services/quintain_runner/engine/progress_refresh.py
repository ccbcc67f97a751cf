"""Shows the progress of a run: redraws it, and reads the used budget and the cost while trials run."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from quintain.contracts.session import Info
from quintain.errors import BusError, Fault
from quintain_runner.engine.plan_session import PlanSession
from quintain_runner.engine.run_setup import RunSetup
from quintain_runner.progress.display import TICK_SECONDS
from quintain_runner.progress.state import ProgressState
from quintain_runner.report.run_record import RunRecord

#: The interval at which the used budget is read for the progress display, in seconds.
BUDGET_POLL_SECONDS = 2.0

#: The cost is read once in this many budget polls, because the ledger sums over every call for it.
BUDGET_POLLS_PER_COST_POLL = 10


def update_budget(progress_state: ProgressState, info: Info, session: PlanSession) -> None:
    """Copy the session's counters to the progress state, including the calls of earlier sessions of the plan.

    A call that is only reserved is none yet.
    """
    earlier_calls = session.calls_of_earlier_sessions - session.calls_of_earlier_plans
    own_calls = info.call_count - info.reserved
    progress_state.budget.update(own_calls + earlier_calls, info.max_calls + earlier_calls)
    progress_state.budget.calls_of_earlier_plans = session.calls_of_earlier_plans


async def _update_cost(setup: RunSetup, session: PlanSession, record: RunRecord, progress_state: ProgressState) -> None:
    """Read the usage so far and update the cost in the progress state, if prices and usage are available."""
    read_spending = session.read_current_spending
    spending = await read_spending() if read_spending is not None and setup.prices else None
    if spending is not None:
        record = record.with_session_usage(spending)
        progress_state.cost = record.cost(setup.prices, session.calls_of_earlier_sessions)


@asynccontextmanager
async def displayed_progress(
    setup: RunSetup, session: PlanSession, record: RunRecord, progress_state: ProgressState
) -> AsyncIterator[None]:
    """Show the progress of the run inside the ``async with`` block: redraw it, and poll the budget and the cost."""

    async def refresh_display() -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            setup.progress.tick()

    async def poll_budget() -> None:
        for times in itertools.count(1):
            await asyncio.sleep(BUDGET_POLL_SECONDS)
            try:
                update_budget(progress_state, await session.client.get_info(), session)
                if times % BUDGET_POLLS_PER_COST_POLL == 1:
                    await _update_cost(setup, session, record, progress_state)
            except (Fault, BusError):
                # These values are only displayed, so a failed read is skipped; the next one may succeed.
                continue

    setup.progress.start(progress_state)
    tasks = [asyncio.create_task(refresh_display()), asyncio.create_task(poll_budget())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        # asyncio.wait does not raise the tasks' CancelledError in this task.
        await asyncio.wait(tasks)
        setup.progress.stop()
