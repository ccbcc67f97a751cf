"""Counts what becomes of calls, by target, over the last five minutes: what a metadata service's card says of them."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

from quintain.contracts.ledger import Settle
from quintain.contracts.service_card import CallCounts, bucket_of

#: How the decisions on admits are counted that are no fault; the others by their code.
GRANTED, REPLAYED = "granted", "replayed"

#: For how long calls are counted, and how long a slice of that time is, in seconds.
WINDOW_SECONDS, SLICE_SECONDS = 300.0, 10.0

#: The time over which rates are measured, in seconds, and the shortest one that gives a rate.
RATE_SECONDS, MIN_RATE_SECONDS = 60.0, 2.0


@dataclass(slots=True)
class CallSums:
    """The counts of one target over some time."""

    ended: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    wait: Counter[int] = field(default_factory=Counter)
    service: Counter[int] = field(default_factory=Counter)
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

    def add(self, other: CallSums, sign: int = 1) -> None:
        """Add the counts of some time, or with the sign -1 take those of an earlier time away."""
        self.ended += sign * other.ended
        for name in ("faults", "wait", "service"):
            counter: Counter[str | int] = getattr(self, name)
            for key, count in getattr(other, name).items():
                counter[key] += sign * count
                if not counter[key]:
                    del counter[key]
        self.input_tokens += sign * other.input_tokens
        self.output_tokens += sign * other.output_tokens
        # Sums of floats do not come back to 0 by themselves.
        self.cost_usd = max(0.0, self.cost_usd + sign * other.cost_usd) if self.ended else 0.0


class CallWindow:
    """The counts of one target's calls in the last `WINDOW_SECONDS`; times are in seconds of any clock that rises."""

    def __init__(self) -> None:
        self._slices: deque[tuple[float, CallSums]] = deque()
        self._sums = CallSums()

    def add(self, sums: CallSums, at: float) -> None:
        """Add what was counted until this time."""
        if not self._slices or at - self._slices[-1][0] >= SLICE_SECONDS:
            self._slices.append((at, CallSums()))
        self._slices[-1][1].add(sums)
        self._sums.add(sums)

    def counts(self, at: float, counted_seconds: float) -> CallCounts | None:
        """Return the counts of the window, and forget what is older; None if there are none."""
        while self._slices and at - self._slices[0][0] > WINDOW_SECONDS:
            self._sums.add(self._slices.popleft()[1], -1)
        if not self._slices:
            return None
        sums = self._sums
        return CallCounts(
            per_minute=self._per_minute(at, min(RATE_SECONDS, counted_seconds)),
            faults=dict(sums.faults),
            wait=dict(sums.wait),
            service=dict(sums.service),
            input_tokens=sums.input_tokens,
            output_tokens=sums.output_tokens,
            cost_usd=sums.cost_usd,
        )

    def _per_minute(self, at: float, seconds: float) -> float:
        if seconds < MIN_RATE_SECONDS:
            return 0.0
        ended = sum(sums.ended for began_at, sums in self._slices if at - began_at <= seconds + SLICE_SECONDS)
        return round(ended * 60 / seconds, 1)


class CallCounter:
    """Counts admissions and settles by target; ``began_at`` is the time since when."""

    def __init__(self, began_at: float) -> None:
        self._began_at = began_at
        self._new: defaultdict[str, CallSums] = defaultdict(CallSums)
        self._windows: defaultdict[str, CallWindow] = defaultdict(CallWindow)

    def count_admission(self, target: str, code: str) -> None:
        """Count the refusal of a call by its code; `GRANTED` and `REPLAYED` are none."""
        if code not in {GRANTED, REPLAYED}:
            self._new[target].faults[code] += 1

    def count_settle(self, target: str, item: Settle) -> None:
        """Count how an attempt ended, with the times, tokens and cost that its worker reported."""
        sums = self._new[target]
        sums.ended += 1
        if item.fault is not None:
            sums.faults[item.fault.code] += 1
        if item.queued_ms is not None and item.duration_ms is not None:
            sums.wait[bucket_of(item.queued_ms)] += 1
            sums.service[bucket_of(item.duration_ms)] += 1
            sums.cost_usd += item.cost_usd or 0.0
        if item.token_usage is not None:
            sums.input_tokens += item.token_usage.input
            sums.output_tokens += item.token_usage.output

    def counts(self, at: float) -> dict[str, CallCounts]:
        """Return the counts of the last `WINDOW_SECONDS`, of the targets that had calls."""
        new, self._new = self._new, defaultdict(CallSums)
        for target, sums in new.items():
            self._windows[target].add(sums, at)
        found = {name: window.counts(at, at - self._began_at) for name, window in self._windows.items()}
        for name in [name for name, counts in found.items() if counts is None]:
            del self._windows[name]
        return {name: counts for name, counts in found.items() if counts is not None}


class UsageRate:
    """How fast a counter rose in the last minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def note(self, value: int, at: float) -> None:
        """Note the counter's value at this time."""
        self._samples.append((at, value))
        # The last sample before the minute stays: the minute begins with its value.
        while len(self._samples) > 1 and at - self._samples[1][0] >= RATE_SECONDS:
            self._samples.popleft()

    def per_minute(self, at: float) -> float:
        """Return the rise per minute, 0 while it was watched for too short a time."""
        began_at, first = self._samples[0]
        seconds = at - began_at
        return 0.0 if seconds < MIN_RATE_SECONDS else max(0, self._samples[-1][1] - first) * 60 / seconds
