"""Drives the governor with simulated providers, sessions and workers, and holds it against its aims.

Minutes of a fleet take seconds here, because time is simulated: ``python benchmarks/governor.py [WORD…]`` runs the
scenes whose names have one of the words. Real services, sockets and clocks are no part of it. With ``--write FILE`` it
writes what plots.py draws of docs/limits.md.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from governed_fleet import GRANT_SECONDS, SETTLE_SECONDS, Fleet, Scene, SessionLoad
from quintain.contracts.quota import QuotaTerms, TryOutcome
from quintain.contracts.session import Priority
from quintain_metadata.quotas.outages import MAX_PROBE_SECONDS
from simulated_providers import EXACT, RETRY_AFTER_2, InFlight, Limiter, RefusesOnce, TokenBucket, Unlimited, Window

#: What a rate's scene must reach after the first minute: the part of the limit, and the part of answers that are 429,
#: where nobody names the limit and where headers or configuration do.
MIN_USE, MAX_REFUSED, MAX_REFUSED_WHERE_NAMED = 0.9, 0.03, 0.01


@dataclass(frozen=True, slots=True)
class Aim:
    """One figure of a scene, and the bound that it must keep."""

    scene: str
    what: str
    value: float
    bound: float
    is_least: bool = False

    @property
    def is_reached(self) -> bool:
        """Whether the figure keeps its bound."""
        return self.value >= self.bound if self.is_least else self.value <= self.bound


def rate_scene(
    name: str,
    limiter: Limiter,
    terms: QuotaTerms | None = None,
    per_minute: float = 60,
    targets: tuple[str, ...] = ("model",),
    service_seconds: float = 0.5,
    tokens: tuple[float, ...] = (800,),
) -> list[Aim]:
    """Ten minutes of calls on one key with this limit."""
    calls = int(10 * per_minute)
    loads = [SessionLoad("run", calls, targets=targets)]
    scene = Scene(loads, limiter, terms or QuotaTerms(), service_seconds=service_seconds, tokens=tokens)
    seen = Fleet(scene).run()
    end = seen.taken[-1]
    taken, refused = sum(at >= 60 for at in seen.taken), seen.count(TryOutcome.THROTTLED, 60, end)
    is_named = terms is not None or getattr(limiter, "words", "") == EXACT
    two_cuts = sum(seen.cuts[:2])
    return [
        Aim(name, "answers / calls", seen.count(TryOutcome.ANSWERED) / calls, 1, is_least=True),
        Aim(name, "part of the limit", taken / (end - 60) * 60 / per_minute, MIN_USE, is_least=True),
        Aim(name, "part of 429", refused / (refused + taken), MAX_REFUSED_WHERE_NAMED if is_named else MAX_REFUSED),
        Aim(name, "429 in minute 1 / in flight at two cuts", seen.count(TryOutcome.THROTTLED, 0, 60), two_cuts),
    ]


def two_models(name: str) -> list[Aim]:
    """Two models that share a limit and name no quota, so that each finds by itself what is left of it."""

    def scene(limiter: Limiter, calls: int, seconds: float = math.inf) -> Scene:
        loads = [SessionLoad("run", calls, targets=("model", "judge"))]
        return Scene(loads, limiter, service_seconds=0.5, is_quota_named=False, seconds=seconds)

    seen = Fleet(scene(TokenBucket(60, 60), 2000, 600)).run()
    taken, refused = sum(at >= 60 for at in seen.taken), seen.count(TryOutcome.THROTTLED, 60)
    ended_at = Fleet(scene(TokenBucket(60, 1), 1200)).run().ended_at
    return [
        Aim(name, "part of the limit", taken / 540, MIN_USE, is_least=True),
        Aim(name, "part of 429", refused / (refused + taken), MAX_REFUSED),
        Aim(name, "429 in minute 1", seen.count(TryOutcome.THROTTLED, 0, 60), 60),
        # One may have nothing while the other one has calls, and then it has all.
        Aim(name, "seconds / those of a bucket that stores nothing", ended_at / 1200, 1.2),
    ]


#: Of so many seconds each are what the plot shows of these limits, which nobody names.
STEP_SECONDS = 15
PLOTTED: dict[str, Callable[[], Limiter]] = {
    "bucket that stores 60": lambda: TokenBucket(60, 60),
    "bucket that stores nothing": lambda: TokenBucket(60, 1),
    "sliding window": lambda: Window(60, is_sliding=True),
    "fixed window": lambda: Window(60, is_sliding=False),
}


def write_series(path: Path) -> None:
    """Write what each provider took and refused in the first ten minutes, step by step."""
    results = list[dict[str, object]]()
    for name, limiter in PLOTTED.items():
        seen = Fleet(Scene([SessionLoad("run", 1000)], limiter(), service_seconds=0.5, seconds=600)).run()
        starts = range(0, 600, STEP_SECONDS)
        taken = [sum(start <= at < start + STEP_SECONDS for at in seen.taken) for start in starts]
        refused = [seen.count(TryOutcome.THROTTLED, start, start + STEP_SECONDS) for start in starts]
        results.append({"side": name, "step_seconds": STEP_SECONDS, "taken": taken, "refused": refused})
    path.write_text(json.dumps({"results": results}) + "\n", encoding="utf-8")


def unnamed_in_flight(name: str) -> list[Aim]:
    """A limit in flight that nobody names, and that changes."""
    limits = [(0.0, 40), (120.0, 10), (300.0, 80)]
    seen = Fleet(Scene([SessionLoad("run", 40_000)], InFlight(limits), service_seconds=1, seconds=510)).run()
    aims = list[Aim]()
    for limit, at in [(40, 60.0), (10, 270.0), (80, 480.0)]:
        off = abs(seen.mean_in_flight(at, at + 30) / limit - 1)
        aims.append(Aim(name, f"limit {limit}: mean in flight is off by", off, 0.25))
    return aims


def four_runs(name: str) -> list[Aim]:
    """Four runs of weights 10 to 40 on one key of 600 requests a minute."""
    weights = {"a": 10, "b": 20, "c": 30, "d": 40}
    loads = [SessionLoad(session, 1500, weight) for session, weight in weights.items()]
    seen = Fleet(Scene(loads, TokenBucket(600, 600))).run()
    first_end = min(seen.finished_at(session) for session in weights)
    answered = {session: seen.answered(session, first_end) for session in weights}
    total = sum(answered.values())
    worst = max(abs(answered[session] / total / (weight / 100) - 1) for session, weight in weights.items())
    allowed = (6000 - 600) / 10
    return [
        Aim(name, "seconds / those of the limit", seen.ended_at / allowed, 1.15),
        Aim(name, "a share is off by", worst, 0.1),
    ]


def small_beside_large(name: str) -> list[Aim]:
    """A session of 20 calls beside one of 5,000, at a service time of 1 s and a limit of 32."""
    terms = QuotaTerms(start=32, max=32)
    loads = [SessionLoad("large", 5000), SessionLoad("small", 20, begins_at=10)]
    seen = Fleet(Scene(loads, InFlight([(0.0, 32)]), terms, service_seconds=1, seconds=60)).run()
    waits = sorted(seen.waits["small"])
    return [Aim(name, "p95 wait of the small one, s", waits[int(0.95 * len(waits))], 2)]


def run_alone(name: str) -> list[Aim]:
    """A run that nothing limits but its target's own 64 calls in flight: what finding that out costs."""
    calls, limit, seconds = 5000, 64, 1.0
    scene = Scene([SessionLoad("run", calls)], Unlimited(), service_seconds=seconds, max_concurrency=limit)
    without = calls / limit * (seconds + GRANT_SECONDS + SETTLE_SECONDS)
    return [Aim(name, "seconds / those without a governor", Fleet(scene).run().ended_at / without, 1.03)]


def long_calls(name: str, limiter: Limiter, most_seconds: float) -> list[Aim]:
    """4,000 calls of 15 s, which a target takes at once: refusals come sooner than answers."""
    calls = 4000
    terms = QuotaTerms(max=calls)
    seen = Fleet(Scene([SessionLoad("run", calls)], limiter, terms, service_seconds=15, max_concurrency=calls)).run()
    return [
        Aim(name, "answers / calls", seen.count(TryOutcome.ANSWERED) / calls, 1, is_least=True),
        Aim(name, "seconds", seen.ended_at, most_seconds),
    ]


def person_beside_batch(name: str) -> list[Aim]:
    """Single calls of a person beside a batch of a hundred times their weight, and a run between them."""
    terms = QuotaTerms(start=32, max=32)
    asked = [SessionLoad("person", 1, 1, Priority.INTERACTIVE, begins_at=10.0 + each) for each in range(20)]
    loads = [SessionLoad("run", 3000), SessionLoad("batch", 3000, 100, Priority.BATCH), *asked]
    seen = Fleet(Scene(loads, InFlight([(0.0, 32)]), terms, service_seconds=1, seconds=60)).run()
    answered = {session: seen.answered(session) for session in ("batch", "run")}
    part = answered["batch"] / sum(answered.values())
    return [
        Aim(name, "longest wait of the person, s", max(seen.waits["person"]), 0.5),
        Aim(name, "part of the batch", part, 0.045, is_least=True),
        Aim(name, "part of the batch", part, 0.06),
    ]


def outage(name: str, is_down: Callable[[float, str], bool], outages: int, down_seconds: float) -> list[Aim]:
    """A provider that is down for a while, once or several times."""
    calls = 3000
    scene = Scene([SessionLoad("run", calls)], Unlimited(), QuotaTerms(max=40), service_seconds=1, is_down=is_down)
    seen = Fleet(scene).run()
    # One probe after 5 s, 10 s, … of each outage.
    probes = outages * len([at for at in (5, 15, 35, 75, 155) if at <= down_seconds])
    in_flight = 40 * outages
    return [
        Aim(name, "answers / calls", seen.count(TryOutcome.ANSWERED) / calls, 1, is_least=True),
        Aim(
            name, "failed tries / in flight at failures, and probes", seen.count(TryOutcome.FAILED), in_flight + probes
        ),
        Aim(
            name,
            "seconds longer than without",
            seen.ended_at - calls / 40,
            outages * (down_seconds + MAX_PROBE_SECONDS),
        ),
    ]


def outage_at_a_rate(name: str) -> list[Aim]:
    """A key of 600 requests a minute whose provider is down for two minutes: the outage shows nothing of the rate."""
    calls = 1200
    scene = Scene(
        [SessionLoad("run", calls)], TokenBucket(600, 10), service_seconds=0.1,
        is_down=lambda now, _: 10 <= now < 130,
    )  # fmt: skip
    seen = Fleet(scene).run()
    return [
        Aim(name, "answers / calls", seen.count(TryOutcome.ANSWERED) / calls, 1, is_least=True),
        Aim(name, "seconds longer than without", seen.ended_at - calls / 10, 120 + MAX_PROBE_SECONDS),
    ]


def one_target_down(name: str) -> list[Aim]:
    """Two targets on one key, of which one fails from the first minute on."""
    loads = [SessionLoad("good", 9000, targets=("good",)), SessionLoad("bad", 9000, targets=("bad",))]
    scene = Scene(
        loads, Unlimited(), QuotaTerms(max=40), service_seconds=1, seconds=180,
        is_down=lambda now, target: target == "bad" and now > 60,
    )  # fmt: skip
    fleet = Fleet(scene)
    seen = fleet.run()
    good = sum(each.outcome is TryOutcome.ANSWERED and each.session == "good" and each.at > 90 for each in seen.tries)
    (figures,) = fleet.line.places.describe(180)
    return [
        Aim(name, "the other target's part of the limit in flight", good / (40 / 1.07 * 90), 0.9, is_least=True),
        Aim(name, "targets that are out", len(figures.out_targets), 1),
    ]


def _flaps(now: float, target: str) -> bool:
    """Down every second half a minute, for five minutes."""
    del target
    return now < 300 and now % 60 >= 30


SCENES: dict[str, Callable[[str], list[Aim]]] = {
    "60 a minute, no Retry-After": lambda name: rate_scene(name, TokenBucket(60, 60)),
    "60 a minute, Retry-After: 2": lambda name: rate_scene(name, TokenBucket(60, 60, RETRY_AFTER_2)),
    "60 a minute, exact headers": lambda name: rate_scene(name, TokenBucket(60, 60, EXACT)),
    "60 a minute, configured": lambda name: rate_scene(name, TokenBucket(60, 60), QuotaTerms(requests_per_minute=60)),
    "two targets on one key": lambda name: rate_scene(name, TokenBucket(60, 60), targets=("model", "judge")),
    "two models, unnamed, under one limit of their key": two_models,
    "a bucket that 429s drain": lambda name: rate_scene(name, TokenBucket(60, 60, is_drained_by_refusals=True)),
    "a bucket that stores nothing": lambda name: rate_scene(name, TokenBucket(60, 1)),
    "a bucket that stores nothing, calls of 8 s": lambda name: rate_scene(name, TokenBucket(60, 1), service_seconds=8),
    "a bucket of 5 that 429s drain": lambda name: rate_scene(name, TokenBucket(60, 5, is_drained_by_refusals=True)),
    "three targets, a bucket of 10": lambda name: rate_scene(name, TokenBucket(60, 10), targets=("a", "b", "c")),
    "600 a minute, 10 stored": lambda name: rate_scene(name, TokenBucket(600, 10), per_minute=600),
    "2,000 a minute, sliding window": lambda name: rate_scene(name, Window(2000, is_sliding=True), per_minute=2000),
    "fixed window": lambda name: rate_scene(name, Window(60, is_sliding=False)),
    "fixed window, exact headers": lambda name: rate_scene(name, Window(60, is_sliding=False, words=EXACT)),
    "sliding window": lambda name: rate_scene(name, Window(60, is_sliding=True)),
    "600 a minute": lambda name: rate_scene(name, TokenBucket(600, 600), per_minute=600),
    "48,000 tokens a minute": lambda name: rate_scene(name, TokenBucket(48_000, 48_000, counts_tokens=True)),
    "48,000 tokens a minute, calls of 60 to 2,000": lambda name: rate_scene(
        name, TokenBucket(48_000, 48_000, counts_tokens=True), tokens=(60, 340, 2000)
    ),
    "48,000 tokens a minute, exact headers": lambda name: rate_scene(
        name, TokenBucket(48_000, 48_000, EXACT, counts_tokens=True)
    ),
    "48,000 tokens a minute, configured": lambda name: rate_scene(
        name, TokenBucket(48_000, 48_000, counts_tokens=True), QuotaTerms(tokens_per_minute=48_000)
    ),
    "in flight 40, then 10, then 80": unnamed_in_flight,
    "four runs with weights": four_runs,
    "20 calls beside 5,000": small_beside_large,
    "a person beside a batch": person_beside_batch,
    "a run alone": run_alone,
    "4,000 calls of 15 s": lambda name: long_calls(name, Unlimited(), 45),
    "4,000 calls of 15 s, one is refused by accident": lambda name: long_calls(name, RefusesOnce(1), 240),
    "an outage of two minutes": lambda name: outage(name, lambda now, _: 30 <= now < 150, 1, 120),
    "an outage of two minutes at 600 a minute": outage_at_a_rate,
    "flapping, 30 s each": lambda name: outage(name, _flaps, 5, 30),
    "one of two targets down": one_target_down,
}


def lines(words: list[str]) -> Iterator[tuple[str, bool]]:
    """A line for each aim of the scenes whose names have one of the words, and whether it was reached."""
    for name, run in SCENES.items():
        if not words or any(word in name for word in words):
            for aim in run(name):
                bound = f"{'≥' if aim.is_least else '≤'} {aim.bound:g}"
                reached = "reached" if aim.is_reached else "MISSED"
                yield f"{aim.scene:40} {aim.what:50} {aim.value:8.3f}  {bound:9} {reached}", aim.is_reached


def main() -> None:
    """Print a line for each aim; the exit code says whether all were reached."""
    if sys.argv[1:2] == ["--write"]:
        write_series(Path(sys.argv[2]))
        return
    results = list(lines(sys.argv[1:]))
    print("\n".join(line for line, _ in results))
    sys.exit(0 if all(is_reached for _, is_reached in results) else 1)


if __name__ == "__main__":
    main()
