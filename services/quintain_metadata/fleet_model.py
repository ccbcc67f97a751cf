"""What is known of the running fleet: its figures, of the ledger's rows and of the cards that were heard. No I/O.

Each service sends its card in its heartbeats, and each metadata service hears all of them, also its own. A queue keeps
its order: when a service hears its own heartbeat, it has heard what the others sent before. Up to then, and one
interval further, is the time at which a service that was not heard is silent. So a metadata service that reads late
takes nobody for silent. Times are in seconds of a clock that only rises.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from quintain.bus.base import QueueCount
from quintain.contracts.fleet import QuotaList, RegisteredTarget
from quintain.contracts.fleet_figures import (
    LEASED_PROVIDER,
    BudgetFigures,
    FleetFigures,
    QuotaStatus,
    ServiceFigures,
    TargetCondition,
    TargetFigures,
    WorkerCondition,
    WorkerFigures,
    percentiles,
)
from quintain.contracts.ledger import DrainState
from quintain.contracts.service_card import CallCounts, ServiceCard
from quintain.contracts.session import RegisteredWorker, is_at
from quintain.fleet.tables import duration, named, provider_trouble
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import CONSUMED_QUEUES, backlog_queue, target_queue
from quintain_metadata.metrics import UsageRate

#: For how long a lost worker and a silent service are shown, in seconds.
GONE_SECONDS = 60.0

#: A metadata service knows all others after so many intervals of heartbeats.
KNOWN_INTERVALS = 1.5

#: How many cards of services are kept that any user of the broker may send: those of gateways and hosts.
MAX_OPEN_CARDS = 1000

#: Workers of a target may differ for so long, as they do while they are replaced one after the other, in ms.
ROLLING_UPDATE_MS = 600_000

#: So many characters of a fingerprint are shown.
FINGERPRINT_CHARACTERS = 8

_DRAINING = frozenset({DrainState.REQUESTED, DrainState.DRAINING, DrainState.DRAINED})


@dataclass(frozen=True, slots=True)
class FleetRows:
    """What the ledger has of the fleet at ``now``: ``lost`` are workers whose lease lapsed a short time ago."""

    targets: Sequence[RegisteredTarget]
    workers: Sequence[RegisteredWorker]
    lost: Sequence[RegisteredWorker]
    budgets: Sequence[BudgetFigures]
    now: int
    more_sessions: int = 0


@dataclass(frozen=True, slots=True)
class _HeardCard:
    card: ServiceCard
    heard_at: float


@dataclass(slots=True)
class _Served:
    """A target as the services that answer serve it together."""

    workers: int = 0
    slots: int = 0
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class _HeardServices:
    """What one look at the fleet begins with: the services that answer, and all that were heard of late."""

    heard: list[ServiceCard]
    silent: list[ServiceCard]
    are_cards_known: bool
    calls: Mapping[str, CallCounts]
    queues: Mapping[str, QueueCount]
    served: Mapping[tuple[str, bool], _Served]


class FleetModel:
    """The cards that a metadata service has heard; ``instance`` is the one of its own."""

    def __init__(self, instance: str, timings: Timings = DEFAULT_TIMINGS) -> None:
        self._instance, self._timings = instance, timings
        self._cards: dict[str, _HeardCard] = {}
        self._usage: defaultdict[str, UsageRate] = defaultdict(UsageRate)
        self._heard_since, self._heard_until = math.inf, -math.inf

    def on_card(self, card: ServiceCard, at: float) -> None:
        """Take the card of a heartbeat that was heard at this time."""
        if card.instance == self._instance:
            self._heard_since, self._heard_until = min(self._heard_since, at), at
        if card.instance not in self._cards and _is_open(card):
            self._forget(at)
            if sum(_is_open(one.card) for one in self._cards.values()) >= MAX_OPEN_CARDS:
                return
        self._cards[card.instance] = _HeardCard(card, at)

    def figures(self, rows: FleetRows, quotas: QuotaList, queues: Mapping[str, QueueCount], at: float) -> FleetFigures:
        """Return what is known now; ``queues`` are those that were counted, by their name."""
        self._forget(at)
        look = self._look(queues, at)
        keys = sorted({(target.name, False) for target in rows.targets} | {key for key in look.served if key[1]})
        registered = {target.name: target for target in rows.targets}
        targets = [
            _leased(name, look.served[name, True]) if is_leased else _called(registered[name], look, rows.now)
            for name, is_leased in keys
        ]
        workers = self._workers(rows, look)
        quota_statuses = [QuotaStatus.of(quota, quotas.now) for quota in quotas.quotas]
        different = [target for target in targets if target.different_ms is not None]
        lasting = [target for target in different if (target.different_ms or 0) > ROLLING_UPDATE_MS]
        return FleetFigures(
            now=rows.now,
            targets=targets,
            workers=workers,
            budgets=self._budgets(rows.budgets, at),
            services=sorted(_services(look), key=lambda service: (service.service, service.id)),
            quotas=quota_statuses,
            more_sessions=rows.more_sessions,
            calls_per_minute=round(sum(target.calls_per_minute for target in targets), 1),
            running=sum(target.running for target in targets),
            queued=sum(target.queued or 0 for target in targets),
            problems=[*_problems(targets, look), *map(_difference, lasting)],
            warnings=[
                *_silent(workers),
                *_waits(quota_statuses),
                *_warned(rows.budgets),
                *(_difference(target) for target in different if target not in lasting),
            ],
        )

    def _forget(self, at: float) -> None:
        self._cards = {one: heard for one, heard in self._cards.items() if at - heard.heard_at < GONE_SECONDS}

    def _look(self, queues: Mapping[str, QueueCount], at: float) -> _HeardServices:
        heard_until = min(at, self._heard_until + self._timings.heartbeat_seconds)
        # Of several processes with one id, a restarted worker, the newest is the last.
        by_time = sorted(self._cards.values(), key=lambda one: one.heard_at)
        ages = [(heard_until - one.heard_at, one.card) for one in by_time]
        heard = [card for age, card in ages if age < self._timings.silent_seconds]
        return _HeardServices(
            heard=heard,
            silent=[card for age, card in ages if age >= self._timings.silent_seconds],
            are_cards_known=heard_until - self._heard_since >= KNOWN_INTERVALS * self._timings.heartbeat_seconds,
            calls=_all_calls(card for _, card in ages),
            queues=queues,
            served=_served(heard),
        )

    def _workers(self, rows: FleetRows, look: _HeardServices) -> list[WorkerFigures]:
        by_id = {card.id: (card, is_silent) for card, is_silent in _with_silence(look) if card.service == "worker"}
        workers = [
            *(_worker(worker, by_id.get(worker.worker_id), look) for worker in rows.workers),
            *(_lost_worker(worker) for worker in rows.lost),
        ]
        return sorted(workers, key=lambda worker: (worker.worker_id, worker.incarnation))

    def _budgets(self, budgets: Sequence[BudgetFigures], at: float) -> list[BudgetFigures]:
        """The budgets with the rates at which they are used."""
        for unknown in self._usage.keys() - {budget.session_id for budget in budgets}:
            del self._usage[unknown]
        for budget in budgets:
            self._usage[budget.session_id].note(budget.used, at)
        return [_with_rate(budget, self._usage[budget.session_id].per_minute(at)) for budget in budgets]


def _is_open(card: ServiceCard) -> bool:
    return card.service not in {"worker", "metadata"}


def _with_silence(look: _HeardServices) -> Iterator[tuple[ServiceCard, bool]]:
    """All cards, the last heard last, and whether their services are silent."""
    yield from ((card, True) for card in look.silent)
    yield from ((card, False) for card in look.heard)


def _all_calls(cards: Iterable[ServiceCard]) -> dict[str, CallCounts]:
    """What all metadata services counted, by target."""
    found: dict[str, CallCounts] = {}
    for card in cards:
        for name, counts in card.calls.items():
            found[name] = _sum(found[name], counts) if name in found else counts
    return found


def _sum(one: CallCounts, other: CallCounts) -> CallCounts:
    return CallCounts(
        per_minute=one.per_minute + other.per_minute,
        faults=Counter(one.faults) + Counter(other.faults),
        wait=Counter(one.wait) + Counter(other.wait),
        service=Counter(one.service) + Counter(other.service),
        input_tokens=one.input_tokens + other.input_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        cost_usd=one.cost_usd + other.cost_usd,
    )


def _served(cards: Iterable[ServiceCard]) -> dict[tuple[str, bool], _Served]:
    """What services serve, by the target's name and whether it is leased: one that is called may have the same name."""
    found: defaultdict[tuple[str, bool], _Served] = defaultdict(_Served)
    for card in cards:
        for one in card.targets:
            served = found[one.name, one.kind == LEASED_PROVIDER]
            served.workers += 1
            served.slots += one.slots
            served.in_flight += one.in_flight
    return dict(found)


_NO_CALLS = CallCounts()


def _called(target: RegisteredTarget, look: _HeardServices, now: int) -> TargetFigures:
    """The figures of a target of the ledger."""
    served = look.served.get((target.name, False), _Served())
    calls = look.calls.get(target.name, _NO_CALLS)
    queued = [
        count.messages
        for queue in (target_queue(target.name), backlog_queue(target.name))
        if (count := look.queues.get(queue.name)) is not None
    ]
    paused_until = target.paused_until if (target.paused_until or 0) > now else None
    condition = TargetCondition.UNSERVED if look.are_cards_known and not served.workers else TargetCondition.READY
    return TargetFigures.unchecked(
        name=target.name,
        provider=target.provider,
        model=target.model,
        condition=condition if paused_until is None else TargetCondition.PAUSED,
        paused_until=paused_until,
        queued=sum(queued) if queued else None,
        running=target.running,
        limit=target.max_concurrency,
        workers=served.workers if look.are_cards_known or served.workers else None,
        slots=served.slots if look.are_cards_known or served.workers else None,
        calls_per_minute=calls.per_minute,
        wait=percentiles(calls.wait),
        service=percentiles(calls.service),
        faults=dict(Counter(calls.faults).most_common()),
        input_tokens=calls.input_tokens,
        output_tokens=calls.output_tokens,
        cost_usd=calls.cost_usd,
        workers_by_fingerprint=target.workers_by_fingerprint,
        # To the second: figures that tell the same are to be equal.
        different_ms=None if target.different_since is None else max(0, (now - target.different_since) // 1000 * 1000),
    )


def _leased(name: str, served: _Served) -> TargetFigures:
    """The figures of a target that hosts lease."""
    return TargetFigures(
        name=name,
        provider=LEASED_PROVIDER,
        condition=TargetCondition.READY,
        running=served.in_flight,
        limit=served.slots,
        workers=served.workers,
        slots=served.slots,
    )


def _worker(worker: RegisteredWorker, found: tuple[ServiceCard, bool] | None, look: _HeardServices) -> WorkerFigures:
    condition = WorkerCondition.DRAINING if worker.drain in _DRAINING else WorkerCondition.LIVE
    if look.are_cards_known if found is None else found[1]:
        condition = WorkerCondition.SILENT
    figures = WorkerFigures(
        worker_id=worker.worker_id, incarnation=worker.incarnation, condition=condition, running=worker.running
    )
    if found is None:
        return figures
    card = found[0]
    return figures.with_fields(
        longest_call_ms=card.longest_call_ms,
        slots=card.slots,
        version=card.version,
        started_at=card.started_at,
        targets=[one.name for one in card.targets],
    )


def _lost_worker(worker: RegisteredWorker) -> WorkerFigures:
    return WorkerFigures(
        worker_id=worker.worker_id, incarnation=worker.incarnation, condition=WorkerCondition.LOST, running=0
    )


def _with_rate(budget: BudgetFigures, rate: float) -> BudgetFigures:
    left = max(0, budget.max_calls - budget.used)
    return budget.with_fields(
        calls_per_minute=round(rate, 1), ends_in_ms=int(left / rate * 60_000) if rate and left else None
    )


def _services(look: _HeardServices) -> Iterator[ServiceFigures]:
    for card, is_silent in _with_silence(look):
        if card.service != "worker":
            yield ServiceFigures(**dict(card), is_silent=is_silent)


def _problems(targets: Iterable[TargetFigures], look: _HeardServices) -> Iterator[str]:
    yield from (f"The {one.service} {one.id} is refused: {one.problem}" for one in look.heard if one.problem)
    if not look.are_cards_known:
        return
    called = [target for target in targets if target.provider != LEASED_PROVIDER]
    for target in called:
        count = look.queues.get(target_queue(target.name).name)
        if count is not None and count.consumers > (target.workers or 0):
            yield (
                f"The queue of target {target.name} has {count.consumers} consumers, and {target.workers or 0} of its "
                f"workers answer: {_STRANGER}"
            )
    services = sum(card.service == "metadata" for card in look.heard)
    found = [queue.name for queue in CONSUMED_QUEUES if queue.name in look.queues]
    if too_many := [name for name in found if look.queues[name].consumers > services]:
        names = ", ".join(too_many)
        yield f"{names} have more consumers than the {services} metadata services that answer: {_STRANGER}"
    unserved = [target.name for target in called if not target.workers]
    if unserved:
        yield f"No worker that answers serves {named(unserved)}: {_START_WORKER}"
    elif not any(card.service in {"worker", "host"} for card in look.heard):
        yield f"No worker answers: {_START_WORKER}"


_STRANGER = (
    "a process that is stopped or cut off, or a program that is none of the fleet's, takes messages and does not "
    "answer them: find it with `rabbitmqctl list_consumers`, and end it"
)

_START_WORKER = "start one with `quintain serve worker` where its configuration is"


def _silent(workers: Iterable[WorkerFigures]) -> Iterator[str]:
    silent = sum(worker.condition is WorkerCondition.SILENT for worker in workers)
    if silent:
        yield f"{silent} worker{'' if silent == 1 else 's'} with a lease did not answer"


def _waits(quotas: Iterable[QuotaStatus]) -> Iterator[str]:
    """What is wrong with quotas: their providers, and what workers say of them."""
    for quota in quotas:
        if (trouble := provider_trouble(quota)) is not None:
            yield "; ".join(trouble)
        if quota.is_different:
            yield f"Workers name different limits of quota {quota.name} ({named(quota.targets)}): the smallest count"


def _warned(budgets: Iterable[BudgetFigures]) -> Iterator[str]:
    """The sessions that have spent or held the part of their money at which that is to be told."""
    for budget in budgets:
        limit, cost = budget.max_cost_usd, budget.cost
        if limit is not None and cost is not None and is_at(cost, limit, budget.warn_at):
            name = budget.label or budget.session_id
            yield f"Session {name}: {budget.warn_at:.0%} of its {limit:g} US dollars are spent or held"


def _difference(target: TargetFigures) -> str:
    groups = (
        f"{', '.join(workers)} with {fingerprint[:FINGERPRINT_CHARACTERS]}"
        for fingerprint, workers in (target.workers_by_fingerprint or {}).items()
    )
    return (
        f"Workers have served target {target.name} with different configurations for {duration(target.different_ms)}: "
        f"{'; '.join(groups)}: start the workers with the older configuration again, or list the keys that may differ "
        "in replica_fields"
    )
