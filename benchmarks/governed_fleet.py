"""A fleet in simulated time that starts its calls as the governor says: sessions, workers' delays, one provider key."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quintain.contracts.quota import QuotaTerms, RateReport, TryOutcome, TryReport
from quintain.contracts.session import DEFAULT_WEIGHT, Priority
from quintain_metadata.line import CallLine
from quintain_metadata.places import RunningAttempt
from quintain_metadata.quotas.fair_queue import Waiting
from quintain_metadata.quotas.governor import QuotaFigures
from simulated_providers import IsDown, Limiter, never_down

#: Seconds from a grant to the provider, and from the provider's answer to the governor.
GRANT_SECONDS, SETTLE_SECONDS = 0.02, 0.05

QUOTA = "key"


@dataclass(frozen=True, slots=True)
class SessionLoad:
    """The calls of one session: all of them are published at once, from a time on."""

    name: str
    calls: int
    weight: int = DEFAULT_WEIGHT
    priority: Priority = Priority.NORMAL
    targets: Sequence[str] = ("model",)
    begins_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Scene:
    """What is simulated: who calls what, how long a call takes, and what the provider lets through."""

    sessions: Sequence[SessionLoad]
    limiter: Limiter
    terms: QuotaTerms = field(default_factory=QuotaTerms)
    service_seconds: float = 0.5
    #: The sizes of calls, each of which is as likely.
    tokens: Sequence[float] = (800,)
    #: Whether all targets name one quota; else each has its own, under the same limit of the provider.
    is_quota_named: bool = True
    max_concurrency: int = 10_000
    is_down: IsDown = never_down
    seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class Try:
    """One try at the provider: its end, and how it ended."""

    at: float
    session: str
    target: str
    outcome: TryOutcome


@dataclass(slots=True)
class Observed:
    """What happened: each try, how long each call waited for its last grant, and the calls in flight over time."""

    tries: list[Try] = field(default_factory=list)
    waits: dict[str, list[float]] = field(default_factory=dict)
    #: When the provider took each call that it took.
    taken: list[float] = field(default_factory=list)
    #: The calls that the provider runs from each time on.
    in_flight: list[tuple[float, int]] = field(default_factory=list)
    #: The calls in flight when a limit was cut.
    cuts: list[int] = field(default_factory=list)
    ended_at: float = 0.0

    def count(self, outcome: TryOutcome, start: float = 0.0, end: float = math.inf) -> int:
        """How many tries ended so, between two times."""
        return sum(each.outcome is outcome and start <= each.at < end for each in self.tries)

    def answered(self, session: str, end: float = math.inf) -> int:
        """How many calls of a session were answered before a time."""
        return sum(
            each.outcome is TryOutcome.ANSWERED and each.session == session and each.at < end for each in self.tries
        )

    def finished_at(self, session: str) -> float:
        """When the last call of a session was answered."""
        return max(each.at for each in self.tries if each.session == session)

    def mean_in_flight(self, start: float, end: float) -> float:
        """The mean number of calls that the provider ran between two times."""
        total, steps = 0.0, [*self.in_flight, (math.inf, 0)]
        for (at, count), (until, _) in itertools.pairwise(steps):
            total += count * max(0.0, min(until, end) - max(at, start))
        return total / (end - start)


class Fleet:
    """Runs a scene; `observed` is what happened."""

    def __init__(self, scene: Scene, seed: int = 1) -> None:
        self._scene, self._random = scene, random.Random(seed)
        self.line, self.observed = CallLine(), Observed()
        for target in {target: None for session in scene.sessions for target in session.targets}:
            self.line.places.configure_quota(0, self._quota_of(target), scene.terms)
            self.line.places.assign(target, self._quota_of(target))
            self.line.places.configure_target(0, target, scene.max_concurrency, 0)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()
        self._calls: dict[str, Waiting] = {}
        self._tokens: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._at_provider = 0
        self._open = sum(session.calls for session in scene.sessions)
        self._due_at = math.inf
        for session in scene.sessions:
            self._at(session.begins_at, lambda now, session=session: self._publish(now, session))  # type: ignore[misc]

    def run(self) -> Observed:
        """Run to the end of the scene, or of all calls."""
        now = 0.0
        while self._events and self._open:
            now, _, event = heapq.heappop(self._events)
            if now > self._scene.seconds:
                break
            event(now)
            self._grant(now)
        self.observed.ended_at = min(now, self._scene.seconds)
        return self.observed

    def _at(self, at: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), event))

    def _publish(self, now: float, session: SessionLoad) -> None:
        targets = itertools.cycle(session.targets)
        for number in range(session.calls):
            call_id = f"{session.name}-{number}"
            target = next(targets)
            self._calls[call_id] = Waiting(
                call_id, target, session.name, session.weight, session.priority, call=(session.name, call_id)
            )
            self._tokens[call_id] = self._random.choice(self._scene.tokens)
            self._wait(now, call_id)

    def _wait(self, now: float, call_id: str) -> None:
        self._since[call_id] = now
        self.line.wait(now, self._calls[call_id])

    def _grant(self, now: float) -> None:
        for waiting, _ in self.line.next(now):
            self.line.granted(now, RunningAttempt(waiting.attempt_id, waiting.target, waiting.call, ""))
            call_id = waiting.attempt_id
            delay = self._delay(GRANT_SECONDS)
            self._at(now + delay, lambda at, call_id=call_id: self._send(at, call_id))  # type: ignore[misc]
        due_at = self.line.due_at()
        if due_at < math.inf and not now < self._due_at <= due_at:
            self._due_at = max(due_at, now + 0.001)
            self._at(self._due_at, lambda _: None)

    def _quota_of(self, target: str) -> str:
        return QUOTA if self._scene.is_quota_named else target

    def _figures(self, now: float, quota_id: str) -> QuotaFigures:
        return next(each for each in self.line.places.describe(now) if each.quota_id == quota_id)

    def _send(self, now: float, call_id: str) -> None:
        call = self._calls[call_id]
        if self._scene.is_down(now, call.target):
            self._later(now, 0.05, call_id, TryOutcome.FAILED, None)
            return
        taken = self._scene.limiter.take(now, self._tokens[call_id], self._at_provider)
        if not taken.is_taken:
            self._later(now, 0.01, call_id, TryOutcome.THROTTLED, taken.rates)
            return
        self._count_at_provider(now, 1)
        self.observed.taken.append(now)
        self.observed.waits.setdefault(call.root_id, []).append(now - self._since[call_id])
        seconds = self._delay(self._scene.service_seconds)

        def answer(at: float) -> None:
            self._count_at_provider(at, -1)
            # A provider that went down meanwhile has lost the call.
            outcome = TryOutcome.FAILED if self._scene.is_down(at, call.target) else TryOutcome.ANSWERED
            self._later(at, 0, call_id, outcome, taken.rates)

        self._at(now + seconds, answer)

    def _count_at_provider(self, now: float, change: int) -> None:
        self._at_provider += change
        self.observed.in_flight.append((now, self._at_provider))

    def _later(self, now: float, seconds: float, call_id: str, outcome: TryOutcome, rates: RateReport | None) -> None:
        call = self._calls[call_id]
        self.observed.tries.append(Try(now + seconds, call.root_id, call.target, outcome))
        tokens = self._tokens[call_id] if outcome is TryOutcome.ANSWERED else None

        report = TryReport(outcome=outcome, tokens=tokens, rates=rates)

        def settle(at: float) -> None:
            quota = self._quota_of(call.target)
            before = self._figures(at, quota)
            self.line.end(at, call_id, call.call, report)
            is_throttled = outcome is TryOutcome.THROTTLED
            if is_throttled and self._figures(at, quota).last_cut != before.last_cut:
                self.observed.cuts.append(before.in_flight)
            if outcome is TryOutcome.ANSWERED:
                self._open -= 1
            else:
                self._wait(at, call_id)

        self._at(now + seconds + self._delay(SETTLE_SECONDS), settle)

    def _delay(self, seconds: float) -> float:
        return seconds * self._random.uniform(0.8, 1.2)
