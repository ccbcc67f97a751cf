"""Paces one key's requests and tokens, and learns its rate where neither configuration nor headers name it. No I/O.

A rate is learned between two bounds. The calls that were taken from one reopening of the key to the next, by the time
between, refused times included, are no more than it gives: a bucket, a fixed window and a sliding one alike. A pace
that was refused is no less than it. The rate goes from the one to a little below the other, stays there, and is then
probed upward, first slowly, then faster and faster, so that a limit that was raised is found within minutes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from quintain.contracts.quota import RateFigures

#: The part of a configured or named rate that is used: windows of providers begin at other times than ours.
PACED_PART = 0.98

#: So many seconds of a rate may start at once.
BURST_SECONDS = 1.0

#: Below this part of a rate's limit the rest is spread over the time until it is back.
LOW_PART = 0.1

#: No headers or refusals stop a key for longer than this without a new try.
MAX_PAUSE_SECONDS = 120.0

#: A rate of which nothing is known but when a call was taken again doubles with each call, and at most so often, until
#: it is refused.
DOUBLING_SECONDS = 0.5

#: Where nothing was taken for so long, what was taken before it was all that a window allows, and no full bucket; but
#: fewer calls show nothing.
LONG_REFUSED_SECONDS, MIN_WINDOW_CALLS = 10.0, 3

#: No limit of a minute refuses calls for so long, unless others take it: then what was learned before holds.
SHARED_REFUSED_SECONDS = 90.0

#: Where no pace was refused yet, the rate aims at this much of what was measured.
TRIED_PART = 1.5

#: Else it aims below the pace that was refused by this part, and by less where more calls were taken before.
REFUSED_PART, AFFORDED_CALLS = 0.03, 50.0

#: It reaches what it aims at in so many calls and seconds, but at once if the next call was taken after one refusal and
#: no more was lost than by that refusal and its pause, of so many calls: a bucket that stores little refuses what comes
#: a little early.
APPROACH_CALLS, APPROACH_SECONDS, LOST_CALLS = 30.0, 5.0, 4.0

#: There it stays for a round of so many calls and seconds, and is probed: it grows by this part of e to the power of
#: the further rounds, and in the end limits nothing.
ROUND_CALLS, ROUND_SECONDS, PROBED_PART, MAX_PROBED_ROUNDS = 40.0, 10.0, 0.005, 16.0

#: A round is shorter where no pace was refused yet, and longer where a refusal cost calls: so many for each of them.
FIRST_ROUND_CALLS, MAX_ROUND_CALLS, ROUND_CALLS_PER_LOST = 10.0, 400.0, 8.0

#: So few calls, or seconds, count together with earlier ones, which weigh as many calls, or seconds, at most.
FEW_CALLS, FEW_SECONDS, EARLIER_CALLS, EARLIER_SECONDS = 10, 3.0, 20.0, 6.0

#: A refusal after fewer than `FEW_CALLS` leaves so many calls to the key before the next one starts, and each further
#: such refusal twice as many: a bucket of tokens must hold what a large call needs.
RESERVE_CALLS, MAX_RESERVE_CALLS = 4.0, 16.0

#: A key counts as refused for no less than this.
MIN_REFUSED_SECONDS = 0.1

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


@dataclass(slots=True)
class Refusals:
    """The refusals of a key in a row: the first and the last one, how many pauses they made, and the first one's pace.

    There is a pace where the rate of requests alone decided when that call started. ``asked`` is the longest
    Retry-After, in seconds.
    """

    since: float
    pace: float | None
    until: float
    count: int = 0
    asked: float = 0.0


class LearnedRate:
    """The rate of requests that a key is found to take, a second; infinite until it was measured."""

    def __init__(self, now: float) -> None:
        #: What was measured last, and what the rate goes to from there, which is infinite while it doubles.
        self._measured: float | None = None
        self._aim, self._doubled_at = math.inf, -math.inf
        self._round_calls = FIRST_ROUND_CALLS
        #: How many calls were measured last, in how many seconds.
        self._earlier = 0.0, 0.0
        #: When the key was reopened last, how many calls since then were taken or are not refused yet, and how many
        #: started as soon as the rate let them.
        self._opened_at, self._taken, self._paced, self._is_first_opening = now, 0, 0, True
        self._idle_since: float | None = now
        #: How many calls were left to the key after the last refusals.
        self._reserve_calls = 0.0

    @property
    def is_known(self) -> bool:
        """Whether it was measured."""
        return self._measured is not None

    def rate(self, now: float) -> float:
        """The rate at a time: from what was measured to what it aims at, where it stays, then faster and faster."""
        if self._measured is None:
            return math.inf
        if self._aim == math.inf:
            return self._measured
        seconds = max(0.0, (now if self._idle_since is None else self._idle_since) - self._opened_at)
        calls = min(APPROACH_CALLS, self._round_calls)
        approach = min(self._paced / calls, seconds / APPROACH_SECONDS)
        if approach < 1:
            return self._measured + (self._aim - self._measured) * approach
        rounds = min((self._paced - calls) / self._round_calls, (seconds - APPROACH_SECONDS) / ROUND_SECONDS)
        return self._aim * (1 + PROBED_PART * math.expm1(min(max(0.0, rounds - 1), MAX_PROBED_ROUNDS)))

    def idle(self, now: float) -> None:
        """Note that no call waits: until the next one starts, time shows nothing."""
        if self._idle_since is None:
            self._idle_since = now

    def started(self, now: float) -> None:
        """Count a call that starts."""
        if self._idle_since is not None:
            self._opened_at += now - self._idle_since
            self._idle_since = None
        self._taken += 1

    def paced(self, now: float) -> None:
        """Note that the call that starts waited for nothing but the rate, which is probed by it."""
        self._paced += 1
        if self._measured is not None and self._aim == math.inf and now >= self._doubled_at + DOUBLING_SECONDS:
            self._measured, self._doubled_at = 2 * self._measured, now

    def not_taken(self, granted_at: float) -> None:
        """Count a call as not taken, which started at this time."""
        if granted_at >= self._opened_at:
            self._taken -= 1

    def reopened(self, granted_at: float) -> None:
        """Begin a new measurement with a call that was taken, and started at this time."""
        self._opened_at, self._taken, self._paced, self._is_first_opening = granted_at, 1, 0, False

    def begin_again(self, now: float) -> None:
        """Begin a new measurement after a time that shows nothing; what was learned before is probed from now on."""
        self._opened_at, self._taken, self._paced = now, 0, 0

    def measure(self, granted_at: float, refused: Refusals) -> float:
        """Learn the rate when a call was taken again, which started at this time, after these refusals.

        Returns how many calls are left to the key before the next one starts.
        """
        taken, seconds = float(self._taken - 1), granted_at - self._opened_at
        refused_seconds = granted_at - refused.since
        if refused_seconds > SHARED_REFUSED_SECONDS and self._measured is not None:
            return 0.0
        is_early = refused.pace is not None and taken < FEW_CALLS
        self._reserve_calls = min(max(RESERVE_CALLS, 2 * self._reserve_calls), MAX_RESERVE_CALLS) if is_early else 0.0
        is_window = refused_seconds >= LONG_REFUSED_SECONDS and taken >= MIN_WINDOW_CALLS
        if taken <= 0 or seconds <= 0 or (self._is_first_opening and not is_window):
            # The rate may be any: what a full bucket gave shows nothing of it.
            taken, most = 0.0, 0.0
            measured, self._aim = 1 / max(refused_seconds, MIN_REFUSED_SECONDS), math.inf
        else:
            taken, seconds = self._with_earlier(taken, seconds)
            # The key may have taken a call at any time since the last refusal.
            most = taken / max(seconds - (granted_at - refused.until), MIN_REFUSED_SECONDS)
            measured = taken / seconds
            self._aim = TRIED_PART * measured
        self._round_calls = FIRST_ROUND_CALLS
        if refused.pace is not None:
            self._round_calls = min(
                max(ROUND_CALLS, ROUND_CALLS_PER_LOST * refused_seconds * measured), MAX_ROUND_CALLS
            )
            self._aim = refused.pace * (1 - REFUSED_PART * min(1.0, AFFORDED_CALLS / max(1.0, taken)))
            if refused.until > refused.since:
                # A bucket had no more than one call for each pause.
                self._aim = min(self._aim, max(most, refused.count / (refused.until - refused.since)))
            lost = min(LOST_CALLS, 1 + refused_seconds * self._aim)
            if refused.until == refused.since and taken + lost >= seconds * self._aim:
                measured = self._aim
            elif taken < FEW_CALLS:
                measured = math.sqrt(measured * self._aim)
        self._measured, self._doubled_at = min(measured, self._aim), granted_at
        return self._reserve_calls

    def save(self, now: float) -> list[float | None]:
        """Return what another service goes on with: what was learned, and what was measured since then."""
        seconds = (now if self._idle_since is None else self._idle_since) - self._opened_at
        return [self._measured, self._aim, self._round_calls, self._taken, self._paced, seconds, *self._earlier]

    def restore(self, now: float, saved: list[Any]) -> None:
        """Go on from what was saved; the time since then shows nothing."""
        self._measured, self._aim, self._round_calls, self._taken, self._paced, seconds = saved[:6]
        self._earlier = saved[6], saved[7]
        self._opened_at, self._is_first_opening = now - seconds, self._measured is None

    def _with_earlier(self, taken: float, seconds: float) -> tuple[float, float]:
        """Return what was taken in how many seconds; few calls and seconds count together with earlier ones."""
        if taken < FEW_CALLS or seconds < FEW_SECONDS:
            taken, seconds = taken + self._earlier[0], seconds + self._earlier[1]
        kept = min(1.0, max(EARLIER_CALLS / taken, EARLIER_SECONDS / seconds))
        self._earlier = taken * kept, seconds * kept
        return taken, seconds
