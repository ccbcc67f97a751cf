"""Finds how much one provider key takes at present: calls in flight, requests and tokens a minute. No I/O, no clock.

Every function is told the time, in seconds. Each limit is found by the answers:

- **In flight** grows by a call for each answer until the first 429, then slowly, and faster until it is nearly back
  where it was cut. A 429 of a call that was granted after the last cut cuts it to 0.7. What is refused or
  fails is not replaced at once: the window closes to the calls that the provider did take, and opens again by one for
  each answer.
- **Rates** are paced, a little below what is configured or what the answers' headers name. Where calls are refused that
  were paced, or with few in flight, or nearly all that were in flight, a rate is learned.
- **After a 429 that shows a rate** the key is left alone for as long as the provider asks, or a little, and then one
  call is tried. Its answer, or its silence for four times as long as refusals take, reopens the key.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from quintain.contracts.quota import QuotaTerms, RateReport
from quintain_metadata.quotas.rates import MAX_PAUSE_SECONDS, MINUTE_SECONDS, Bucket, LearnedRate, Refusals

#: What is left of the limit in flight after a cut, and how long it does not grow then.
CUT_FACTOR, COOL_DOWN_SECONDS = 0.7, 1.0

#: After a cut such a part of the way back to nearly where it was is gone in each round, and there it grows by so many
#: calls a round.
RETURN_PART, NEAR_CUT_PART, NEAR_CUT_CALLS = 0.6, 0.95, 0.4

#: From a cut to the next one are at least so many calls, while its limit is not exceeded.
GROWTH_CALLS = 60.0

#: A refusal with half as many in flight as at a cut so recently shows a rate.
PEAK_SECONDS = 10.0

#: A provider refuses at once: a call without an answer for so long was taken.
MAX_TAKEN_AFTER_SECONDS = 2.0

#: Until the first 429 the limit in flight doubles in that time, without an answer: evenly, in steps of so many seconds.
#: After the first 429 what is beyond the last cut doubles in longer.
MIN_GROWTH_SECONDS, MAX_GROWTH_SECONDS, BEYOND_SECONDS = 0.05, 1.0, 8.0

#: A provider may also be silent: no more than these are in flight without an answer, and twice those at the last one.
SILENT_CALLS = 256.0

#: The first pause: before a rate is known, and then the time of so many calls within these bounds. Each further one is
#: twice as long, up to this or a part of the time since the first refusal.
FIRST_PAUSE_SECONDS = 2.0
PAUSE_CALLS, MIN_PAUSE_SECONDS, MAX_FIRST_PAUSE_SECONDS = 1.15, 0.1, 30.0
LONG_PAUSE_SECONDS, LONG_PAUSE_PART = 10.0, 0.25

MAX_DOUBLINGS = 20

#: Where so small a part of the calls in flight is taken, it is a rate that refuses the others.
FEW_TAKEN_PART = 0.25

#: What is assumed of a call's tokens before the first of its target has ended, and the weight of each further one.
FIRST_TOKENS, TOKENS_WEIGHT = 1000.0, 0.2


class CutCause(StrEnum):
    """Which limit was cut by a 429."""

    IN_FLIGHT = "in_flight"
    RATE = "rate"


@dataclass(slots=True)
class Grant:
    """A call that was let through: when, how many were in flight with it, and what was granted until it."""

    target: str
    at: float
    in_flight: int
    #: Whether it started as soon as the rate of requests let it.
    is_paced: bool
    #: The rate of requests at which it started.
    rate: float
    tokens: float
    requests_granted: float
    tokens_granted: float


class Limits:
    """The limits of one key, as its answers show them."""

    def __init__(self, terms: QuotaTerms, now: float) -> None:
        self.terms = terms
        self.in_flight = self.throttled = 0
        self.last_cut: tuple[float, CutCause] | None = None
        self.paused_until = -math.inf
        self.requests, self.tokens = Bucket(now), Bucket(now)
        #: The limit in flight, and how much of it is open: refusals and failures close it, answers open it.
        self.limit = self.window = float(terms.start)
        #: The limit in flight at its last cut; none before the first 429.
        self._cut_limit = math.inf
        #: The most calls in flight at a recent cut, and when.
        self._peak, self._peak_at = 0.0, -math.inf
        #: How many calls were in flight when the last cut was made.
        self._volley = 0
        self._cut_at = self._no_growth_until = self._grown_at = -math.inf
        #: The limit in flight by the time that its calls ran, and when it was found; none since a refusal or a failure,
        #: and where no call waits.
        self._by_time: tuple[float, float] | None = None
        self._silent_limit = SILENT_CALLS
        self._learned = LearnedRate(now)
        #: The refusals since the key was open, whether they show a rate, and the call that is tried.
        self._refusals: Refusals | None = None
        self._is_rate_shown = False
        #: A call was taken before a Retry-After was over that is longer than any pause: none such is heeded again.
        self._is_asked_too_long = False
        self._probe: Grant | None = None
        #: After so many seconds without an answer a call counts as taken: refusals came so fast until now.
        self._taken_after = MAX_TAKEN_AFTER_SECONDS
        self._tokens_by_target: dict[str, float] = {}
        self.configure(terms)

    def configure(self, terms: QuotaTerms) -> None:
        """Take over other terms; what runs goes on."""
        self.terms = terms
        self.requests.configured = (terms.requests_per_minute or math.inf) / MINUTE_SECONDS
        self.tokens.configured = (terms.tokens_per_minute or math.inf) / MINUTE_SECONDS
        self._set_limit(self.limit if terms.adaptive else terms.start)
        if not terms.adaptive:
            self.window = self.limit

    def wait_seconds(self, now: float, target: str) -> float:
        """How long until a call to this target may start; infinite where another one must end first."""
        if self._probe is not None and now >= self._probe.at + self._taken_after:
            self._reopen(now, self._probe)
        # After a pause one call is tried, though the refused ones closed the window.
        is_probe = self._refusals is not None and self._probe is None and self.terms.adaptive
        if self.in_flight >= int(self.limit if is_probe else self.window):
            grown_seconds = self._grow_by_time(now)
            if self.in_flight >= int(self.window):
                return grown_seconds
        self.refill(now)
        probed_until = -math.inf if self._probe is None else self._probe.at + self._taken_after
        return max(
            0.0,
            self.paused_until - now,
            probed_until - now,
            self.requests.wait_seconds(1),
            self.tokens.wait_seconds(self.tokens_of(target)),
        )

    @property
    def are_known(self) -> bool:
        """Whether the provider has shown a limit, or one is configured."""
        return bool(self.throttled) or min(self.requests.rate, self.tokens.rate) < math.inf

    def start(self, now: float, target: str) -> Grant:
        """Count a call that starts now."""
        self._learned.started(now)
        self.refill(now)
        tokens = self.tokens_of(target)
        self.requests.take(1)
        self.tokens.take(tokens)
        self.in_flight += 1
        is_paced = self.requests.level < 1
        if is_paced and self._refusals is None:
            self._learned.paced(now)
        granted = self.requests.granted, self.tokens.granted
        grant = Grant(target, now, self.in_flight, is_paced, self.requests.rate, tokens, *granted)
        if self._refusals is not None:
            self._probe = grant
        return grant

    def resume(self, now: float, target: str) -> Grant:
        """Count a call that runs already: what it took of the rates was taken before."""
        grant = self.start(now, target)
        self.requests.level, self.tokens.level = self.requests.level + 1, self.tokens.level + grant.tokens
        self._learned.not_taken(now)
        return grant

    def idle(self, now: float) -> None:
        """Note that no call waits."""
        self._learned.idle(now)
        self._by_time = None

    def refill(self, now: float) -> None:
        """Bring the rates up to date."""
        self.requests.refill(now, self._learned.rate(now))
        self.tokens.refill(now)

    def answered(self, now: float, grant: Grant, tokens: float | None, rates: RateReport | None) -> None:
        """Note that the provider answered a call, with these tokens."""
        self._release(now, grant, tokens, rates)
        if self._refusals is not None and grant.at > self._cut_at:
            self._reopen(now, grant)
        if not self.terms.adaptive:
            return
        self._silent_limit = max(SILENT_CALLS, 2 * self.limit)
        if self.window < self.limit:
            self.window = min(self.limit, self.window + 1)
        elif self.in_flight + 1 >= int(self.window) and now >= self._no_growth_until:
            # By a call an answer until the first 429, then by a call a round, faster far above the last cut.
            self._set_limit(self.limit + (1 if self._cut_limit == math.inf else self._slow_step(now)))
            self.window, self._grown_at = self.limit, now

    def refused(self, now: float, grant: Grant, rates: RateReport | None) -> None:
        """Note that the provider asked to slow down."""
        is_probe = grant is self._probe
        self._release(now, grant, 0, rates)
        self._by_time = None
        self.throttled += 1
        self._taken_after += 0.2 * (min(MAX_TAKEN_AFTER_SECONDS, 4 * (now - grant.at)) - self._taken_after)
        self._learned.not_taken(grant.at)
        if not grant.is_paced:
            self._close()
        is_first = grant.at > self._cut_at
        if is_first:
            self._cut(now, grant, is_probe=is_probe)
        elif not self._is_rate_shown and self.in_flight <= FEW_TAKEN_PART * self._volley:
            self._is_rate_shown = True
            self.last_cut = now, CutCause.RATE
        retry_after = None if rates is None else rates.retry_after_seconds
        if retry_after is not None and retry_after > MAX_PAUSE_SECONDS and self._is_asked_too_long:
            retry_after = None
        if self._is_rate_shown or self.in_flight == 0 or retry_after is not None:
            self._pause(now, grant, retry_after, is_first=is_first)

    def failed(self, now: float, grant: Grant) -> None:
        """Note that the provider failed: the call is not replaced at once, and nothing grows for a while."""
        self._release(now, grant, None, None)
        self._by_time = None
        self._close()
        self._no_growth_until = max(self._no_growth_until, now + COOL_DOWN_SECONDS)

    def unknown(self, now: float, grant: Grant, *, is_sent: bool) -> None:
        """Note that a call ended and shows nothing; one that was not sent used nothing."""
        self._release(now, grant, None if is_sent else 0, None)
        if not is_sent:
            self.requests.level += 1
            self._learned.not_taken(grant.at)

    def reopen_at_lowest(self, now: float) -> None:
        """Begin again after an outage, with the fewest calls in flight; its time shows nothing of the rate."""
        self._learned.begin_again(now)
        if self.terms.adaptive:
            self.window = float(self.terms.min)

    def save(self, now: float) -> dict[str, Any]:
        """Return what another service goes on with, as JSON takes it; times are seconds from now."""
        return {
            "limits": [self.limit, self._cut_limit, self.throttled, self._taken_after, self.paused_until - now],
            "last_cut": self.last_cut and [self.last_cut[0] - now, self.last_cut[1]],
            "tokens_by_target": self._tokens_by_target,
            "buckets": [self.requests.save(now), self.tokens.save(now)],
            "learned": self._learned.save(now),
        }

    def restore(self, now: float, saved_at: float, saved: dict[str, Any]) -> None:
        """Go on from what another service saved at this time, and resume its calls then; it may have saved nothing.

        What it granted since is not known, but at most what came in: nothing of the rates is left.
        """
        for bucket in (self.requests, self.tokens):
            bucket.level = 0.0
        if not saved:
            return
        self.limit, self._cut_limit, self.throttled, self._taken_after, paused_seconds = saved["limits"]
        self.paused_until, last_cut = saved_at + paused_seconds, saved["last_cut"]
        self.last_cut = last_cut and (saved_at + last_cut[0], CutCause(last_cut[1]))
        self._tokens_by_target = saved["tokens_by_target"]
        for bucket, each in zip((self.requests, self.tokens), saved["buckets"], strict=True):
            bucket.restore(saved_at, each)
        self._learned.restore(now, saved["learned"])
        self.window = self.limit
        self.configure(self.terms)

    def tokens_of(self, target: str) -> float:
        """The tokens that a call to this target is expected to use."""
        return self._tokens_by_target.get(target, FIRST_TOKENS)

    def _release(self, now: float, grant: Grant, tokens: float | None, rates: RateReport | None) -> None:
        """End a call: its slot is free, and its tokens are corrected where they are known."""
        self.in_flight -= 1
        if grant is self._probe:
            self._probe = None
        if tokens is not None:
            self.tokens.level += grant.tokens - tokens
        if tokens:
            weight = TOKENS_WEIGHT if grant.target in self._tokens_by_target else 1.0
            self._tokens_by_target[grant.target] = weight * tokens + (1 - weight) * self.tokens_of(grant.target)
        self.refill(now)
        if rates is not None and rates.requests is not None:
            self.requests.observe(now, rates.requests, grant.at, grant.requests_granted)
        if rates is not None and rates.tokens is not None:
            self.tokens.observe(now, rates.tokens, grant.at, grant.tokens_granted)

    def _grow_by_time(self, now: float) -> float:
        """Let the limit in flight, all of which is used, grow by calls without an answer.

        Those that were sent two seconds ago were taken. Returns in how many seconds to look again.
        """
        known, seconds = (self._cut_limit, BEYOND_SECONDS) if self.throttled else (0.0, MAX_TAKEN_AFTER_SECONDS)
        most = min(self._silent_limit, self.terms.max)
        is_held = self.window < self.limit or now < self._no_growth_until or not self.terms.adaptive
        if is_held or not known + 1 <= self.limit < most:
            return math.inf
        limit, at = self._by_time or (self.limit, now + MAX_TAKEN_AFTER_SECONDS)
        if now > at:
            part = min(now - at, MAX_GROWTH_SECONDS) / seconds
            limit, at = min(most, known + (limit - known) * 2.0**part), now
            self._set_limit(max(self.limit, limit))
            self.window = self.limit
        self._by_time = limit, at
        due = at - now + seconds * math.log2((self.in_flight + 1 - known) / (limit - known))
        return min(max(MIN_GROWTH_SECONDS, due), MAX_GROWTH_SECONDS)

    def _slow_step(self, now: float) -> float:
        back = (1 + (1 - CUT_FACTOR) * self._cut_limit) / GROWTH_CALLS
        beyond = max(0.0, self.limit - self._cut_limit) / 4
        near = RETURN_PART * max(0.0, NEAR_CUT_PART * self._cut_limit - self.limit)
        # Where a round takes long, that is too slow.
        return (
            max(min(back, max(NEAR_CUT_CALLS, near) / self.limit), back * min(1.0, now - self._grown_at))
            + beyond / self.limit
        )

    def _recent_peak(self, now: float) -> float:
        return self._peak if now - self._peak_at < PEAK_SECONDS else 0.0

    def _cut(self, now: float, grant: Grant, *, is_probe: bool) -> None:
        """Find by the first 429 of an episode which limit it shows, and cut the one in flight if it is that one."""
        self._cut_at, self._no_growth_until, self._volley = now, now + COOL_DOWN_SECONDS, self.in_flight + 1
        self._is_rate_shown = (
            is_probe or grant.is_paced or (self.in_flight + 1 <= max(1.0, self.limit / 2, self._recent_peak(now) / 2))
        )
        self.last_cut = now, CutCause.RATE if self._is_rate_shown else CutCause.IN_FLIGHT
        if self._is_rate_shown or not self.terms.adaptive:
            return
        self._cut_limit = float(self.in_flight + 1)
        if self._cut_limit >= self._recent_peak(now):
            self._peak, self._peak_at = self._cut_limit, now
        self._set_limit(CUT_FACTOR * self._cut_limit)

    def _pause(self, now: float, grant: Grant, retry_after: float | None, *, is_first: bool) -> None:
        """Leave the key alone for a while; ``is_first``: it is the first refusal since the last one of that kind."""
        if self._refusals is None:
            self._refusals, is_first = Refusals(now, grant.rate if grant.is_paced else None, now), True
        seconds = retry_after or 0.0
        self._refusals.asked = max(self._refusals.asked, seconds)
        if is_first:
            self._refusals.count, self._refusals.until = self._refusals.count + 1, now
            # What the provider says holds, unless it refused again after that.
            if retry_after is None or self._refusals.count > 1:
                seconds = max(seconds, self._backoff_seconds(now, self._refusals))
        self.paused_until = max(self.paused_until, now + min(seconds, MAX_PAUSE_SECONDS))

    def _backoff_seconds(self, now: float, refusals: Refusals) -> float:
        first = FIRST_PAUSE_SECONDS
        if self._learned.is_known:
            first = min(max(MIN_PAUSE_SECONDS, PAUSE_CALLS / self._learned.rate(now)), MAX_FIRST_PAUSE_SECONDS)
        longest = max(first, LONG_PAUSE_SECONDS, LONG_PAUSE_PART * (now - refusals.since))
        return min(longest, first * 2.0 ** min(refusals.count - 1, MAX_DOUBLINGS))

    def _reopen(self, now: float, grant: Grant) -> None:
        """Let calls through again from this one on, which was taken."""
        refusals, self._refusals, self._probe = self._refusals, None, None
        assert refusals is not None, "only what was refused is opened again"
        self._is_asked_too_long |= refusals.asked > MAX_PAUSE_SECONDS
        if self._is_rate_shown:
            # A rate that is named is not learned unless that very pace was refused.
            reserve_calls = 0.0
            if refusals.pace is not None or min(self.requests.configured, self.requests.named) == math.inf:
                reserve_calls = self._learned.measure(grant.at, refusals)
            self._learned.reopened(grant.at)
            # At the new rate as of the call that was taken.
            self.refill(now)
            self.requests.level = min(1.0, (now - grant.at) * self.requests.rate) - reserve_calls
            # It was the rate that refused calls, and not how many were in flight.
            self._cut_limit = math.inf
            self._set_limit(max(self.limit, self._recent_peak(grant.at), float(self.terms.start)))
            self.window = self.limit
            self._is_rate_shown = False
            return
        if self._recent_peak(refusals.since):
            # The pause showed nothing of it.
            self._peak_at = now
        self._learned.reopened(grant.at)

    def _close(self) -> None:
        if self.terms.adaptive:
            self.window = max(float(self.terms.min), min(self.window, float(self.in_flight)))

    def _set_limit(self, limit: float) -> None:
        self.limit = min(max(limit, float(self.terms.min)), float(self.terms.max))
        self.window = min(self.window, self.limit)
