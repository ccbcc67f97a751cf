"""Paces one key's requests and tokens, and learns its rate where neither configuration nor headers name it. No I/O.

A rate is learned from the calls that were taken from one reopening of the key to the next, by the time between, refused
times included: so much a bucket, a fixed window and a sliding one give alike. It is kept for a while and then probed
upward, first slowly, then faster and faster, so that a limit that was raised is found within minutes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from quintain.contracts.quota import RateFigures

#: The part of a configured or named rate that is used: windows of providers begin at other times than ours.
PACED_PART = 0.98

#: So many seconds of a rate may start at once.
BURST_SECONDS = 1.0

#: Below this part of a rate's limit the rest is spread over the time until it is back.
LOW_PART = 0.1

#: No headers or refusals stop a key for longer than this without a new try.
MAX_PAUSE_SECONDS = 120.0

#: A learned rate starts at this part of what was measured, and reaches it after so many seconds, or so many calls.
LEARNED_PART, LEARNED_SECONDS, LEARNED_CALLS = 0.94, 20.0, 60.0

#: Then it is probed: it grows by this part of e to the power of the rounds since, and in the end limits nothing.
PROBED_PART, MAX_PROBED_ROUNDS = 0.005, 16.0

#: A measurement counts for as many calls as it is certain of, between these, beside the next one.
MIN_CERTAIN_CALLS, MAX_CERTAIN_CALLS = 2.0, 20.0

#: The part of the rate at the refusal in what is learned, and how few calls show that too much was learned before.
REFUSED_RATE_PART, FEW_CALLS = 0.4, 5

#: Where nothing was taken for so long, what was taken before it was all that a window allows, and no full bucket.
LONG_REFUSED_SECONDS = 10.0

MINUTE_SECONDS, _DAY_SECONDS = 60.0, 86_400.0

#: Sums of parts may be so much too small.
_ROUNDING = 1e-9


@dataclass(slots=True)
class Bucket:
    """Paces requests or tokens: at most ``rate`` a second, and `BURST_SECONDS` of it at once."""

    at: float
    configured: float = math.inf
    named: float = math.inf
    #: What is left of a window that is nearly spent, a second, and until when.
    low_rate: float = math.inf
    low_until: float = -math.inf
    rate: float = math.inf
    level: float = math.inf
    #: How much was granted in all.
    granted: float = 0.0

    def refill(self, now: float, learned: float = math.inf) -> None:
        """Add what came in since the last time, and take over the present rate."""
        if self.configured == self.named == self.low_rate == self.rate == learned == math.inf:
            self.at, self.level = now, math.inf  # nothing is known of it, which costs nothing
            return
        if now > self.at:
            self.level = min(self._burst, self.level + self.rate * (now - self.at))
            self.at = now
        low = self.low_rate if now < self.low_until else math.inf
        self.rate = min(PACED_PART * min(self.configured, self.named), low, learned)
        self.level = min(self._burst, self.level)

    def wait_seconds(self, amount: float) -> float:
        """How long from the last refill until so much may be taken."""
        missing = min(amount, self._burst) - self.level
        if missing <= _ROUNDING:
            return 0.0
        seconds = missing / self.rate if self.rate else math.inf
        return min(seconds, self.low_until - self.at) if self.low_until > self.at else seconds

    def take(self, amount: float) -> None:
        """Take so much; more than there is must be waited for by those who come later."""
        self.level, self.granted = self.level - amount, self.granted + amount

    def observe(self, now: float, figures: RateFigures, granted_at: float, granted: float) -> None:
        """Learn from the headers of an answer; its call was granted at a time, and so much was until then.

        Figures that contradict themselves are left out, and those of hours and days as long as something is left.
        """
        limit, reset = figures.limit, figures.reset_seconds
        left = figures.remaining - (self.granted - granted)
        if figures.remaining > limit or reset > _DAY_SECONDS:
            return
        if reset > MINUTE_SECONDS * 1.1:
            if figures.remaining == 0:
                self.low_rate, self.low_until = 0.0, granted_at + min(reset, MAX_PAUSE_SECONDS)
            return
        self.named = limit / MINUTE_SECONDS
        refilled_in = (limit - figures.remaining) / self.named
        if left >= LOW_PART * limit:
            self.low_until = -math.inf
        elif reset > refilled_in + 2:  # a window, of which nothing comes back before its end
            left = max(0.0, left)
            self.low_rate, self.low_until, self.level = left / reset, granted_at + reset, min(self.level, left)
        else:
            self.level = min(self.level, left + self.named * (now - granted_at))

    def save(self, now: float) -> list[float]:
        """Return what another service goes on with: what headers named."""
        return [self.named, self.low_rate, self.low_until - now]

    def restore(self, saved_at: float, saved: list[float]) -> None:
        """Go on from what was saved at this time."""
        self.named, self.low_rate, low_seconds = saved
        self.low_until = saved_at + low_seconds

    @property
    def _burst(self) -> float:
        return max(1.0, self.rate * BURST_SECONDS)


class LearnedRate:
    """The rate of requests that a key is found to take, a second; infinite until it was measured."""

    def __init__(self, now: float) -> None:
        self._learned: float | None = None
        #: What was measured last, without what the rate at the refusal added, and for how many calls it counts.
        self._measured: float | None = None
        self._certain_calls = 0.0
        self._learned_at = now
        #: When the key was reopened last, and how many calls since then were taken or are not refused yet.
        self._opened_at, self._taken, self._is_first_opening = now, 0, True
        self._idle_since: float | None = now

    @property
    def is_known(self) -> bool:
        """Whether it was measured."""
        return self._learned is not None

    def rate(self, now: float) -> float:
        """The rate at a time: it stays near what was measured, then grows faster and faster."""
        if self._learned is None:
            return math.inf
        until = now if self._idle_since is None else self._idle_since
        # What was measured by few calls is probed sooner.
        certainty = max(self._certain_calls, MIN_CERTAIN_CALLS) / MAX_CERTAIN_CALLS
        rounds = (until - self._learned_at) / (certainty * max(LEARNED_SECONDS, LEARNED_CALLS / self._learned))
        if rounds < 1:
            return self._learned * (LEARNED_PART + (1 - LEARNED_PART) * max(0.0, rounds))
        return self._learned * (1 + PROBED_PART * math.expm1(min(rounds - 1, MAX_PROBED_ROUNDS)))

    def idle(self, now: float) -> None:
        """Note that no call waits: until the next one starts, time shows nothing."""
        if self._idle_since is None:
            self._idle_since = now

    def started(self, now: float) -> None:
        """Count a call that starts."""
        if self._idle_since is not None:
            self._opened_at += now - self._idle_since
            self._learned_at += now - self._idle_since
            self._idle_since = None
        self._taken += 1

    def not_taken(self, granted_at: float) -> None:
        """Count a call as not taken, which started at this time."""
        if granted_at >= self._opened_at:
            self._taken -= 1

    def reopened(self, granted_at: float) -> None:
        """Begin a new measurement with a call that was taken, and started at this time."""
        self._opened_at, self._taken, self._is_first_opening = granted_at, 1, False

    def begin_again(self, now: float) -> None:
        """Begin a new measurement after a time that shows nothing; what was learned before is probed from now on."""
        self._opened_at, self._taken, self._learned_at = now, 0, now

    def measure(self, granted_at: float, refused_since: float, refused_rate: float | None) -> bool:
        """Learn the rate when a call was taken again, which started at this time; returns whether the rate is certain.

        Since ``refused_since`` nothing was taken; ``refused_rate`` is the learned rate that was refused then, if any.
        """
        seconds, taken = granted_at - self._opened_at, self._taken - 1
        if taken <= 0 or seconds <= 0:
            return False
        is_short = taken < FEW_CALLS and self._measured is not None
        earlier, calls = self._measured if is_short else self._learned, self._certain_calls
        measured = (taken + calls) / (seconds + (calls / earlier if earlier else 0.0))
        learned = measured
        if refused_rate is not None and not is_short:
            # A provider that stores nothing refuses at its rate, one that does at a higher one than it can keep; where
            # the rate had grown far beyond what was taken on average, that says nothing.
            is_far = refused_rate > 3 * max(self._learned or 0.0, measured)
            toward = 2 * refused_rate if is_far else min(refused_rate, 1.5 * measured)
            learned += REFUSED_RATE_PART * (toward - measured)
        self._measured, self._learned, self._learned_at = measured, learned, granted_at
        is_certain = not self._is_first_opening or granted_at - refused_since >= LONG_REFUSED_SECONDS
        certain_calls = min(taken, seconds / 3, MAX_CERTAIN_CALLS) / (2 if self._is_first_opening else 1)
        self._certain_calls = max(certain_calls if is_certain else 0.0, calls / 2)
        return is_certain

    def save(self, now: float) -> list[float | None]:
        """Return what another service goes on with: what was learned, and for how long it was used."""
        until = now if self._idle_since is None else self._idle_since
        return [self._learned, self._measured, self._certain_calls, until - self._learned_at]

    def restore(self, now: float, saved: list[float | None]) -> None:
        """Go on from what was saved; the time since then shows nothing."""
        self._learned, self._measured = saved[:2]
        self._certain_calls, self._learned_at = saved[2] or 0.0, now - (saved[3] or 0.0)
        self._opened_at, self._taken, self._is_first_opening = now, 0, self._learned is None
