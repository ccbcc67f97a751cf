"""Watches the quotas of a run's targets: says what trials wait for, and gives a target up."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from quintain.contracts.fleet import QuotaList, QuotaState
from quintain.contracts.quota import FailureCause
from quintain.contracts.values import TargetName
from quintain.errors import (
    BusError,
    Expired,
    Fault,
    NoAnswer,
    ProviderFailed,
    QuintainError,
    TargetUnavailable,
    Throttled,
)
from quintain.fleet.tables import amount, duration
from quintain_runner.graders.base import CallWaits
from quintain_runner.report.progress import ProgressState
from quintain_runner.report.summary import ParkedTarget

#: How often the quotas are read while trials are unfinished, in seconds.
POLL_SECONDS = 2.0

#: Quotas that were read so long ago are as good as new, in seconds: the errors of one outage come together.
FRESH_SECONDS = 0.5

#: How long a call waits in its quota's line before it ends and is asked again, in seconds, besides its own time.
LINE_SECONDS = 600.0

#: How long a run waits for a provider that does not answer, in seconds; and for one that has not answered it yet, where
#: the reason is known: a wrong address stays wrong, and a model server may be loading.
DEFAULT_GIVE_UP_SECONDS = 1800.0
FIRST_ANSWER_SECONDS = {FailureCause.WRONG_ADDRESS: 60.0, FailureCause.NOT_TAKEN: 600.0}


@dataclass(slots=True)
class _Waits:
    """What is known of one quota. Times are those of the clock.

    ``out_since`` is by target; ``paused_since`` is since when it has only asked to slow down, and ``is_open`` whether
    it was not paused when it was read last. ``fault`` is the last one that says what its provider answered.
    """

    state: QuotaState
    out_since: dict[TargetName, float] = field(default_factory=dict)
    paused_since: float | None = None
    is_open: bool = True
    fault: Fault | None = None

    def take(self, state: QuotaState, now: float) -> None:
        """Note the state that was read at this time."""
        self.state = state
        out = dict.fromkeys(state.out_targets or {}, now)
        self.out_since = {name: self.out_since.get(name, since) for name, since in out.items()}
        if state.out_ms is not None:
            self.out_since = dict.fromkeys(out, now - state.out_ms / 1000)
        is_open = state.paused_ms is None
        if not is_open and self.paused_since is None:
            self.paused_since = now
        elif is_open and self.is_open:
            # Open at two reads: between two pauses one call is tried, and may be refused again.
            self.paused_since = None
        self.is_open = is_open


class QuotaWatch(CallWaits):
    """The quotas of a run's targets.

    ``read`` asks the metadata service. ``calls`` are by target under test the targets that its trials call. A target is
    given up after ``give_up_seconds`` without an answer; None is a time that depends on the reason.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[QuotaList]],
        calls: Mapping[str, frozenset[str]],
        *,
        give_up_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._calls, self._give_up_seconds, self._clock = read, calls, give_up_seconds, clock
        self._answered, self._started_at = set[str](), clock()
        self._called = frozenset().union(*calls.values())
        self._waits: dict[str, _Waits] = {}
        self._read_at = -math.inf
        self._lock = asyncio.Lock()

    @property
    def quotas(self) -> list[QuotaState]:
        """The quotas of the run's targets, as they were read last."""
        return [waits.state for waits in self._waits.values()]

    def wait_lines(self, progress_state: ProgressState) -> tuple[str, ...]:
        """What the trials wait for, a line for each quota."""
        now = datetime.now().astimezone()
        lines = (
            wait_line(
                quota,
                trials=sum(
                    progress_state.unfinished_trials(target)
                    for target, called in self._calls.items()
                    if not called.isdisjoint(quota.targets)
                ),
                give_up_seconds=min(
                    (self._seconds_for(quota, target) for target in quota.out_targets or ()),
                    default=DEFAULT_GIVE_UP_SECONDS,
                ),
                now=now,
            )
            for quota in self.quotas
        )
        return tuple(filter(None, lines))

    async def refresh(self) -> bool:
        """Read the quotas, unless that was done just now; returns whether the run's targets have any.

        What cannot be read stays as it was.
        """
        async with self._lock:
            if self._clock() - self._read_at < FRESH_SECONDS:
                return bool(self._waits)
            try:
                quotas = await self._read()
            except (Fault, NoAnswer, BusError):
                return True
            self._read_at = self._clock()
            self._take([quota for quota in quotas.quotas if not self._called.isdisjoint(quota.targets)])
            return bool(self._waits)

    def _take(self, quotas: list[QuotaState]) -> None:
        now = self._clock()
        for quota in quotas:
            self._waits.setdefault(quota.id, _Waits(quota)).take(quota, now)

    def line_seconds(self, target: str) -> float:
        """Implements `CallWaits.line_seconds`."""
        return 0.0 if self._of(target) is None else LINE_SECONDS

    def resumable(self, target: str, error: QuintainError) -> bool:
        """Implements `CallWaits.resumable`: a quota's line gives every call its turn, if the target is not given up.

        A call that expired without its quota having anything to do lacks something else, such as a worker.
        """
        waits = self._of(target)
        if waits is None:
            return False
        if isinstance(error, Fault) and error.provider_error is not None:
            waits.fault = error
        if isinstance(error, Throttled):
            return True
        state = waits.state
        is_busy = bool(state.in_flight or state.waiting or state.paused_ms or state.out_targets)
        return isinstance(error, Expired) and is_busy

    async def retry_after_quota(self, target: str, fault: Fault) -> bool:
        """Implements `CallWaits.retry_after_quota`: the quotas are read again, as its first errors show an outage."""
        waits = self._of(target)
        if waits is None:
            return False
        waits.fault = fault
        await self.refresh()
        return target in (waits.state.out_targets or {})

    def note_answer(self, target: str) -> None:
        """Implements `CallWaits.note_answer`."""
        self._answered.add(target)
        if (waits := self._of(target)) is not None:
            waits.paused_since = None

    def to_give_up(self) -> dict[str, ParkedTarget]:
        """The targets under test that are waited for no longer, each with the reason."""
        return {
            target: parked
            for target, called in self._calls.items()
            if (parked := next(filter(None, map(self._reason_to_give_up, sorted(called))), None)) is not None
        }

    def _of(self, target: str) -> _Waits | None:
        return next((waits for waits in self._waits.values() if target in waits.state.targets), None)

    def _seconds_for(self, quota: QuotaState, target: str) -> float:
        """How long a target is waited for."""
        failure = (quota.failures or {}).get(target)
        if self._give_up_seconds is not None or failure is None or failure.cause is None or target in self._answered:
            return self._give_up_seconds or DEFAULT_GIVE_UP_SECONDS
        return FIRST_ANSWER_SECONDS.get(failure.cause, DEFAULT_GIVE_UP_SECONDS)

    def _reason_to_give_up(self, target: str) -> ParkedTarget | None:
        waits = self._of(target)
        if waits is None:
            return None
        now, quota = self._clock(), waits.state
        if quota.refused:
            return _parked(waits, target, f"{quota.name} refused its key", TargetUnavailable, "")
        limit = self._seconds_for(quota, target)
        longer = f"--give-up-after {option_time(4 * limit)} waits longer"
        out_since = waits.out_since.get(target)
        if out_since is not None and now - max(out_since, self._started_at) >= limit:
            who = target if quota.out_ms is None else quota.name
            reason = f"{duration(1000 * (now - out_since))} in which {who} did not answer"
            return _parked(waits, target, reason, ProviderFailed, longer)
        since, limit = waits.paused_since, self._give_up_seconds or DEFAULT_GIVE_UP_SECONDS
        if since is not None and now - since >= limit:
            reason = f"{duration(1000 * (now - since))} in which {quota.name} asked to slow down and answered nothing"
            return _parked(waits, target, reason, Throttled, longer)
        return None


def _parked(waits: _Waits, target: str, reason: str, kind: type[Fault], setting: str) -> ParkedTarget:
    """Why a target is given up, with the provider's own words where some are known."""
    if (failure := (waits.state.failures or {}).get(target)) is not None:
        return ParkedTarget(reason=reason, code=kind.code, error=failure.words, setting=setting or None)
    if (fault := waits.fault) is None:
        said = "none of its calls has ended, so the provider's own words are not known"
        return ParkedTarget(reason=reason, code=kind.code, error=said, setting=setting or None)
    words = None if fault.provider_error is None else fault.provider_error.message
    return ParkedTarget(reason=reason, code=fault.code, error=words or fault.message, setting=setting or None)


#: A wait that is estimated to be shorter is not shown, in seconds.
MIN_SHOWN_SECONDS = 2.0


def option_time(seconds: float) -> str:
    """A duration as an option of the command line has it, such as ``30m``."""
    for unit_seconds, unit in ((3600, "h"), (60, "m")):
        if seconds >= unit_seconds and not seconds % unit_seconds:
            return f"{seconds / unit_seconds:.0f}{unit}"
    return f"{seconds:g}s"


def wait_line(quota: QuotaState, *, trials: int, give_up_seconds: float, now: datetime) -> str | None:
    """What calls wait for; None if they do not wait, or not long.

    ``trials`` are those that have not ended of the quota's targets, ``now`` is the local time.
    """
    out = quota.out_targets or {}
    if quota.out_ms is not None:
        who = quota.name
        since = f" since {now - timedelta(milliseconds=quota.out_ms):%H:%M}"
    elif out:
        who, since = f"{', '.join(sorted(out))} of {quota.name}", ""
    else:
        return _line_text(quota)
    probe = f", next probe in {duration(min(out.values()))}" if out else ""
    why = "" if quota.failure is None else f"; the last: {quota.failure.words}"
    limit = f"--give-up-after {option_time(give_up_seconds)}"
    return f"{who} has not answered{since}, {trials:,} trials wait{probe}; {limit}{why}"


def _line_text(quota: QuotaState) -> str | None:
    """The line of a quota whose provider answers."""
    seconds = max(quota.estimated_seconds or 0.0, (quota.paused_ms or 0) / 1000)
    if not quota.waiting or seconds < MIN_SHOWN_SECONDS:
        return None
    rate = quota.requests_per_minute
    limit = f"{quota.limit} in flight" if rate is None else f"{amount(round(rate, 1))} requests a minute"
    paused = "" if (quota.paused_ms or 0) < 1000 else f", asked to wait {duration(quota.paused_ms)}"
    return f"{quota.waiting:,} wait for {quota.name}: {limit}{paused}, about {duration(1000 * seconds)}"
