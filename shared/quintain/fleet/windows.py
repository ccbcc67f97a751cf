"""Sums of the last minutes: counts of calls in slices of time, and percentiles of their histograms."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from quintain.contracts.fleet import BUCKET_BASE, CallCounts
from quintain.fleet.fleet_figures import Percentiles

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

    def add_counts(self, counts: CallCounts) -> None:
        """Add what an event says."""
        self.ended += sum(counts.outcomes.values())
        self.faults.update(counts.faults)
        self.wait.update(counts.wait)
        self.service.update(counts.service)
        self.input_tokens += counts.input_tokens
        self.output_tokens += counts.output_tokens
        self.cost_usd += counts.cost_usd

    def remove(self, other: CallSums) -> None:
        """Take the counts of an earlier time away, which were added before."""
        self.ended -= other.ended
        for name in ("faults", "wait", "service"):
            counter: Counter[str | int] = getattr(self, name)
            counter.subtract(getattr(other, name))
            for key in [key for key, count in counter.items() if not count]:
                del counter[key]
        self.input_tokens -= other.input_tokens
        self.output_tokens -= other.output_tokens
        # Sums of floats do not come back to 0 by themselves.
        self.cost_usd = max(0.0, self.cost_usd - other.cost_usd) if self.ended else 0.0


class CallWindow:
    """The counts of one target's calls in the last `WINDOW_SECONDS`; times are those of the viewer, in seconds."""

    def __init__(self) -> None:
        self._slices: deque[tuple[float, CallSums]] = deque()
        self._sums = CallSums()

    def add(self, counts: CallCounts, at: float) -> None:
        """Add what an event says that arrived at this time."""
        if not self._slices or at - self._slices[-1][0] >= SLICE_SECONDS:
            self._slices.append((at, CallSums()))
        self._slices[-1][1].add_counts(counts)
        self._sums.add_counts(counts)

    def sums(self, at: float) -> CallSums:
        """Return the sums of the window, and forget what is older. They change with the next event."""
        while self._slices and at - self._slices[0][0] > WINDOW_SECONDS:
            self._sums.remove(self._slices.popleft()[1])
        return self._sums

    def per_minute(self, at: float, watched_seconds: float) -> float:
        """Return the ended attempts per minute, of the last minute or of the time since it is watched."""
        seconds = min(RATE_SECONDS, watched_seconds)
        if seconds < MIN_RATE_SECONDS:
            return 0.0
        ended = 0
        for began_at, sums in reversed(self._slices):
            if at - began_at > seconds + SLICE_SECONDS:
                break
            ended += sums.ended
        return round(ended * 60 / seconds, 1)


class UsageRate:
    """How fast a counter rose in the last minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def note(self, value: int, at: float) -> None:
        """Note the counter's value at this time, in the viewer's seconds."""
        self._samples.append((at, value))
        # The last sample before the minute stays: the minute begins with its value.
        while len(self._samples) > 1 and at - self._samples[1][0] >= RATE_SECONDS:
            self._samples.popleft()

    def per_minute(self, at: float) -> float:
        """Return the rise per minute, 0 while it was watched for too short a time."""
        if not self._samples:
            return 0.0
        began_at, first = self._samples[0]
        seconds = at - began_at
        return 0.0 if seconds < MIN_RATE_SECONDS else max(0, self._samples[-1][1] - first) * 60 / seconds


def percentiles(histogram: Mapping[int, int]) -> Percentiles | None:
    """Return the percentiles of a histogram; None of an empty one."""
    total = sum(histogram.values())
    if not total:
        return None
    return Percentiles(p50=_percentile(histogram, total, 0.5), p95=_percentile(histogram, total, 0.95))


def _percentile(histogram: Mapping[int, int], total: int, share: float) -> float:
    rank, seen, bucket = share * total, 0, 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= rank:
            break
    return round(BUCKET_BASE**bucket, 1)
