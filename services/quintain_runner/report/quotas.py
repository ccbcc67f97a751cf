"""What a run says of the quotas that its calls wait for, and what it records of their limits. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from quintain.contracts.fleet import QuotaState
from quintain.contracts.message import Message
from quintain.fleet.tables import amount

#: A wait that is estimated to be shorter is not shown, in seconds.
MIN_SHOWN_SECONDS = 2.0

#: How many changes of limits ``run.json`` keeps: the newest.
MAX_CHANGES = 100

#: A limit is recorded again when it is so many times the recorded one, or that part of it.
_RECORDED_RATIO = 1.25


def time_text(seconds: float) -> str:
    """A duration in whole seconds, minutes, or hours, such as ``41 s``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


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
    probe = f", next probe in {time_text(min(out.values()) / 1000)}" if out else ""
    return (
        f"{who} has not answered{since}, {trials:,} trials wait{probe}; --give-up-after {option_time(give_up_seconds)}"
    )


def _line_text(quota: QuotaState) -> str | None:
    """The line of a quota whose provider answers."""
    seconds = max(quota.estimated_seconds or 0.0, (quota.paused_ms or 0) / 1000)
    if not quota.waiting or seconds < MIN_SHOWN_SECONDS:
        return None
    rate = quota.requests_per_minute
    limit = f"{quota.limit} in flight" if rate is None else f"{amount(round(rate, 1))} requests a minute"
    paused = "" if (quota.paused_ms or 0) < 1000 else f", asked to wait {time_text((quota.paused_ms or 0) / 1000)}"
    return f"{quota.waiting:,} wait for {quota.name}: {limit}{paused}, about {time_text(seconds)}"


class QuotaChange(Message):
    """A change of what a quota allows, as a run saw it. ``state`` is ``open``, ``out`` or ``refused``, the key's.

    ``limit`` is that of the calls in flight; ``throttled`` counts the answers that asked to slow down.
    """

    at: str
    quota: str
    state: str
    limit: int
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    throttled: int = 0


class QuotaHistory:
    """The changes of the quotas of one command, the newest `MAX_CHANGES`."""

    def __init__(self) -> None:
        self.changes: list[QuotaChange] = []
        self._last: dict[str, QuotaChange] = {}

    def record(self, quotas: Iterable[QuotaState], now: datetime) -> None:
        """Note what changed much since it was noted last; ``now`` is in UTC."""
        for quota in quotas:
            change = QuotaChange(
                at=now.isoformat(timespec="seconds"),
                quota=quota.name,
                state=_state(quota),
                limit=quota.limit,
                requests_per_minute=_rounded(quota.requests_per_minute),
                tokens_per_minute=_rounded(quota.tokens_per_minute),
                throttled=quota.throttled,
            )
            if (last := self._last.get(quota.id)) is None or _differs(last, change):
                self._last[quota.id] = change
                self.changes = [*self.changes, change][-MAX_CHANGES:]


def _state(quota: QuotaState) -> str:
    if quota.refused:
        return "refused"
    return "open" if quota.out_ms is None else "out"


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)


def _differs(before: QuotaChange, after: QuotaChange) -> bool:
    rates = (
        (before.requests_per_minute, after.requests_per_minute),
        (before.tokens_per_minute, after.tokens_per_minute),
    )
    return (
        before.state != after.state
        or any((one is None) != (other is None) for one, other in rates)
        or any(_is_far(one or 0.0, other or 0.0) for one, other in ((before.limit, after.limit), *rates))
    )


def _is_far(one: float, other: float) -> bool:
    return max(one, other) >= _RECORDED_RATIO * min(one, other) and one != other
