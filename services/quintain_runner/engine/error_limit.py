"""Decides when a target has failed so often that no more trials of it are begun. No I/O.

What the end of a trial's call of its target means for the count of errors in a row (the codes are those that
`quintain_worker.providers` gives to what it saw):

========================  ====================================================================  ==============
the call ended with       which happens at                                                      the count
========================  ====================================================================  ==============
``target_unavailable``    401, 402, 403, 404, a spent quota; a program that is not there; a     goes up by one
                          callable that takes its request for text
``provider_error``        5xx and 529, no connection, a connection or stream that broke off,    goes up by one
                          an unreadable answer; a program or a callable that failed
an answer                 also where its grader failed: that is not the target's failure        is 0 again
``target_changed``        the worker that answered serves another configuration than the planned   see below
``rejected``              other 4xx: content filter, context overflow, a wrong request          is 0 again
``reply_too_large``       an answer that is larger than a reply may be                          is 0 again
any other fault           ``timeout`` (408 too), ``throttled`` (429), ``expired``,              stays
                          ``worker_lost``, ``overloaded``, ``internal``, …: they do not say
                          whether the endpoint works
========================  ====================================================================  ==============

Each ``target_changed`` is a charged call without a graded row, and the next call is likely to be another. Therefore
three in a row park the target; an answer of the planned configuration sets that count to 0. No more than these run at
once while they are possible (`quintain_runner.engine.error_limit`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from quintain.errors import Fault, ProviderFailed, TargetUnavailable
from quintain_runner.graders.retry import ANSWERED_FAULTS
from quintain_runner.report.summary import ParkedTarget
from quintain_runner.results.row import TARGET_CHANGED

#: The default number of errors in a row after which a target is parked.
DEFAULT_MAX_ERRORS = 20

#: A target is parked if at least this many of its trials have finished, and at least one in five of them is an error.
_MIN_TRIALS_FOR_SHARE = 50
_TRIALS_PER_ERROR = 5

#: A target is parked after this many `TARGET_CHANGED` errors in a row.
MAX_CHANGED_IN_ROW = 3

_ENDPOINT_FAULTS = (TargetUnavailable, ProviderFailed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPolicy:
    """When a target is parked: after ``max_errors`` errors in a row, or at 20 % errors in 50 or more finished trials.

    ``max_errors=0`` switches both rules off. ``fail_fast`` begins no more trials of any target after the first error.
    """

    max_errors: int = DEFAULT_MAX_ERRORS
    fail_fast: bool = False


class _TargetErrors:
    """The counts of one target in this invocation, and the code and text of its last error that counts."""

    def __init__(self) -> None:
        self.finished = self.errors = self.errors_in_row = self.changed_in_row = 0
        self.last_code = self.last_error = ""


class ErrorLimit:
    """Counts the errors of each target in this invocation, and knows which targets are parked because of them.

    Rows of earlier invocations do not count: the endpoint may have been repaired since.
    """

    def __init__(self, policy: ErrorPolicy) -> None:
        self._policy = policy
        self._errors: dict[str, _TargetErrors] = {}
        self._parked: dict[str, ParkedTarget] = {}

    @property
    def parked_targets(self) -> dict[str, ParkedTarget]:
        """The parked targets by name, in the order in which they were parked."""
        return dict(self._parked)

    def may_begin(self, target: str) -> bool:
        """Whether another trial of this target may begin."""
        return target not in self._parked and not (self._policy.fail_fast and self._parked)

    def record(self, target: str, fault: Fault | None, *, changed: str | None = None) -> None:
        """Count a finished trial; ``fault`` is the fault of its call of the target, None if the target answered.

        ``changed`` is the text of its error if that is `TARGET_CHANGED`, of the target or of a judge.
        """
        counts = self._errors.setdefault(target, _TargetErrors())
        counts.finished += 1
        if changed is not None:
            counts.changed_in_row += 1
            counts.last_code, counts.last_error = TARGET_CHANGED, changed
        elif fault is None:
            counts.errors_in_row = counts.changed_in_row = 0
        elif isinstance(fault, ANSWERED_FAULTS):
            counts.errors_in_row = 0
        elif isinstance(fault, _ENDPOINT_FAULTS):
            counts.errors += 1
            counts.errors_in_row += 1
            counts.last_code, counts.last_error = fault.code, fault.message
        reason = self._reason_to_park(counts)
        if reason is not None and target not in self._parked:
            self._parked[target] = ParkedTarget(reason=reason, code=counts.last_code, error=counts.last_error)

    def _reason_to_park(self, counts: _TargetErrors) -> str | None:
        max_errors = self._policy.max_errors
        if self._policy.fail_fast and (counts.errors or counts.changed_in_row):
            return "its first error, with --fail-fast"
        if not max_errors:
            return None
        if counts.changed_in_row >= min(max_errors, MAX_CHANGED_IN_ROW):
            return f"{counts.changed_in_row} answers in a row of another configuration"
        if counts.errors_in_row >= max_errors:
            return f"{counts.errors_in_row} errors in a row"
        if counts.finished >= _MIN_TRIALS_FOR_SHARE and counts.errors * _TRIALS_PER_ERROR >= counts.finished:
            return f"{counts.errors} errors in {counts.finished} finished trials"
        return None


#: How long the first trials of a target are waited for, in seconds: slow targets are not delayed by more.
FIRST_TRIALS_SECONDS = 5.0


class StartGate:
    """Lets as few trials of one target run at once as park it, until one of them ends with the planned configuration;
    and again after each `target_changed`, until the next such trial.

    At first that lasts ``seconds`` at most; 0 switches it off, for a target without a known configuration.
    """

    def __init__(self, seconds: float = FIRST_TRIALS_SECONDS) -> None:
        self._opens_at: float | None = asyncio.get_running_loop().time() + seconds
        self._is_open = not seconds
        self._running_count = 0
        self._ended = asyncio.Event()

    async def enter(self) -> None:
        """Wait until another trial may begin, and count it."""
        while not self._is_open and self._running_count >= MAX_CHANGED_IN_ROW:
            self._ended.clear()
            try:
                async with asyncio.timeout_at(self._opens_at):
                    await self._ended.wait()
            except TimeoutError:
                self._is_open = True
        self._running_count += 1

    def leave(self, *, is_changed: bool) -> None:
        """Count out a trial; ``is_changed`` says that another configuration answered."""
        self._running_count -= 1
        self._is_open = not is_changed
        if is_changed:
            self._opens_at = None
        self._ended.set()
