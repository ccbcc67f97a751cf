"""Lets a trial begin only when money is left for its answer and its graders: a limit in money buys whole rows.

The ledger holds the limit by each try; here the calls that a row takes are counted together, before the first of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable

from quintain.contracts.agents import MAX_STEPS_BYTES
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.money import CostTerms, picodollars
from quintain.contracts.session import Info
from quintain.errors import Fault
from quintain_runner.engine.trial_budget import TrialBudget
from quintain_runner.graders.base import call_with_retry
from quintain_runner.plan.trials import Trial
from quintain_runner.results.row import Row

#: How many bytes of a judge's request a token of an answer is taken to have at most: words have about 4, and what JSON
#: escapes has more.
BYTES_PER_TOKEN = 8

#: How long the answers of a target without ``max_tokens`` are taken to be before there is one, in bytes.
FIRST_ANSWER_BYTES = 4_000

#: How often the money that others have reserved is read again, in seconds.
POLL_SECONDS = 0.5


def longest_answer(terms: CostTerms | None, max_tokens: int | None = None, known_bytes: int = 0) -> int:
    """Return how long an answer may be, in bytes, by its limit; without one as long as the longest that is known."""
    limit = max_tokens or (None if terms is None else terms.max_tokens)
    return known_bytes or FIRST_ANSWER_BYTES if limit is None else limit * BYTES_PER_TOKEN


def _steps_bytes(row: Row) -> int:
    return sum(len(step.to_wire()) for step in row.steps)


class CostGate:
    """Counts the most that the trials in progress can cost, and lets one begin when that fits with its own.

    What is left of the limit was read last with ``read_info``, and is read again when it would not be enough. Until
    then a trial that has ended counts with all that it could cost.
    """

    def __init__(self, budget: TrialBudget, info: Info, read_info: Callable[[], Awaitable[Info]]) -> None:
        self._budget, self._read_info = budget, read_info
        self._left = self._free = 0
        #: What the trials in progress can cost, and those that have ended since the amounts were read.
        self._running = self._ended = 0
        self._answer_bytes: Counter[str] = Counter()
        self._steps_bytes: dict[str, int] = {}
        self._queue = asyncio.Lock()
        self._changed = asyncio.Event()
        #: The most that the last trial can cost that did not begin for lack of money, in picodollars.
        self.refused: int | None = None
        #: The most that a trial of each target can cost, of those that were looked at.
        self.row_costs: dict[str, int] = {}
        self.is_limited = self._note(info)

    def most_cost(self, trial: Trial, request: InvokeRequest | None = None) -> int:
        """Return the most that a trial can cost, in picodollars: its answer, unless it has one, and its graders.

        Of a conversation that is its next turn, by default the first, and what the simulated user says for it.
        """
        if not self.is_limited:
            return 0
        cost, request, costs = 0, request or trial.request, self._budget.context.costs
        body_bytes, terms = len(request.to_wire()), costs.get(trial.target)
        max_tokens = None if request.settings is None else request.settings.max_tokens
        if trial.kept is None:
            cost = 0 if terms is None else terms.bound(body_bytes, max_tokens) or 0
            if trial.case.user is not None and (user_terms := costs.get(trial.case.user.target)) is not None:
                cost += user_terms.bound(body_bytes + len(trial.case.user.goal)) or 0
            answer_bytes = longest_answer(terms, max_tokens, self._answer_bytes[trial.target])
            unknown_steps = MAX_STEPS_BYTES if trial.target in self._budget.context.agents else 0
            steps_bytes = self._steps_bytes.get(trial.target, unknown_steps)
        else:
            answer_bytes, steps_bytes = len((trial.kept.output or "").encode()), _steps_bytes(trial.kept)
        planned = self._budget.planned_calls(trial)
        most = cost + sum(calls.most_cost(costs, body_bytes, answer_bytes, steps_bytes) for _, calls in planned)
        self.row_costs[trial.target] = max(most, self.row_costs.get(trial.target, 0))
        return most

    def add_row(self, row: Row) -> None:
        """Note how long an answer was, and what its target told of its steps."""
        if not self.is_limited or row.output is None:
            return
        self._answer_bytes[row.target] = max(self._answer_bytes[row.target], len(row.output.encode()))
        self._steps_bytes[row.target] = max(self._steps_bytes.get(row.target, 0), _steps_bytes(row))

    async def enter(self, cost: int) -> bool:
        """Wait until so much is left beside the trials in progress, and count it; returns False if it never will be.

        One trial waits at a time, so that a dear one is not passed by cheaper ones until nothing is left for it.
        """
        if not cost:
            return True
        async with self._queue:
            while not self._fits(cost):
                self._changed.clear()
                if not await self._read():
                    # The ledger decides alone.
                    break
                if self._fits(cost):
                    break
                if cost > self._left:
                    self.refused = cost
                    return False
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), POLL_SECONDS)
            self._running += cost
            self._free -= cost
        return True

    def leave(self, cost: int) -> None:
        """Count out a trial that has ended."""
        self._running -= cost
        self._ended += cost
        self._changed.set()

    def hold(self, cost: int) -> CostHold:
        """Return the hold of a trial that has entered with this cost."""
        return CostHold(self, cost)

    def _fits(self, cost: int) -> bool:
        """Whether it fits beside the trials in progress, and beside what was reserved, also by others."""
        return self._running + self._ended + cost <= self._left and cost <= self._free

    async def _read(self) -> bool:
        """Read what is left. Returns False where the metadata service does not tell."""
        # Trials that end from now on may be in what is read, or not.
        ended, self._ended = self._ended, 0
        try:
            return self._note(await call_with_retry(self._read_info))
        except Fault:
            self._ended += ended
            return False

    def _note(self, info: Info) -> bool:
        cost = info.cost
        if cost is None or cost.left_usd is None or cost.free_usd is None:
            return False
        self._left, self._free = picodollars(cost.left_usd), picodollars(cost.free_usd)
        return True


class CostHold:
    """What a trial in progress is counted with; a conversation is counted with its next turn and its graders."""

    def __init__(self, gate: CostGate, cost: int) -> None:
        self._gate, self._cost = gate, cost

    async def may_go_on(self, trial: Trial, request: InvokeRequest) -> bool:
        """Count the trial with its next turn, in place of the one before; returns whether that is paid for."""
        if not (cost := self._gate.most_cost(trial, request)):
            return True
        self.leave()
        if not await self._gate.enter(cost):
            return False
        self._cost = cost
        return True

    def leave(self) -> None:
        """Count out the trial."""
        self._gate.leave(self._cost)
        self._cost = 0
