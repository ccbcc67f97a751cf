"""The model of the fleet that the Fleet page and `quintain status` show. No I/O: what it is told is passed in.

It is told states of the ledger (whole, from time to time), events (what changed, and what became of calls), and the
cards with which services answer discovery requests. Events may be lost; the next state mends what they leave wrong.
Times are those of the viewer, in seconds of any clock that only rises.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from quintain.contracts.fleet import FleetChanged, FleetSession, FleetState, QuotaList, RegisteredTarget, ServiceCard
from quintain.contracts.ledger import DrainState
from quintain.contracts.session import RegisteredWorker
from quintain.fleet.fleet_figures import (
    LEASED_PROVIDER,
    BudgetFigures,
    CallSums,
    CallWindow,
    FleetFigures,
    QuotaStatus,
    ServiceFigures,
    TargetCondition,
    TargetFigures,
    UsageRate,
    WorkerCondition,
    WorkerFigures,
    percentiles,
)
from quintain.fleet.tables import duration, named, provider_trouble

#: A service that has not answered for so long, while it is asked every half a second, is silent.
SILENT_SECONDS = 1.25

#: For how long a lost worker and a silent service are shown, in seconds.
GONE_SECONDS = 60.0

#: After how long without an event the metadata service is said to be silent, in seconds.
EVENTS_SECONDS = 5.0

#: Workers of a target may differ for so long, as they do while they are replaced one after the other, in ms.
ROLLING_UPDATE_MS = 600_000

#: So many characters of a fingerprint are shown.
FINGERPRINT_CHARACTERS = 8

_DRAINING = frozenset({DrainState.REQUESTED, DrainState.DRAINING, DrainState.DRAINED})


@dataclass(slots=True)
class _SeenCard:
    card: ServiceCard
    seen_at: float


@dataclass(slots=True)
class _Served:
    """A target as the services that answer serve it together; ``paused_until`` is in seconds of the viewer."""

    kind: str
    workers: int = 0
    slots: int = 0
    in_flight: int = 0
    paused_until: float | None = None


_NO_CALLS = CallSums()

#: A target by its name and whether it is leased: a target that is called may have the same name.
_TargetKey = tuple[str, bool]


class FleetModel:
    """What is known of a fleet.

    ``clock_offset`` is the time since the epoch at the viewer's time 0, in seconds, until the ledger's is known.
    ``answer_seconds`` is how long services that were asked have for their first answer.

    Example::

        model = FleetModel(began_at=time.monotonic())
        model.on_state(await admin.fleet(), time.monotonic())
        print(model.figures(time.monotonic()).targets)
    """

    def __init__(self, began_at: float, *, clock_offset: float = 0.0, answer_seconds: float = SILENT_SECONDS) -> None:
        self._began_at, self._clock_offset, self._answer_seconds = began_at, clock_offset, answer_seconds
        self._targets: dict[str, RegisteredTarget] = {}
        self._workers: dict[str, RegisteredWorker] = {}
        self._sessions: dict[str, FleetSession] = {}
        self._lost: dict[str, tuple[RegisteredWorker, float]] = {}
        self._more_sessions = 0
        self._windows: defaultdict[str, CallWindow] = defaultdict(CallWindow)
        self._usage: defaultdict[str, UsageRate] = defaultdict(UsageRate)
        self._queued: dict[str, int] = {}
        #: The consumers of each queue, by its name, as far as events told.
        self.consumers: dict[str, int] = {}
        self._quotas: list[QuotaStatus] = []
        self._cards: dict[str, _SeenCard] = {}
        self._asked_at = math.inf
        self._state_at = self._event_at = -math.inf

    @property
    def is_known(self) -> bool:
        """Whether a state of the ledger has arrived."""
        return self._state_at > -math.inf

    def on_state(self, state: FleetState, at: float) -> None:
        """Take a whole state of the ledger."""
        self._state_at = at
        self._clock_offset = state.now / 1000 - at
        self._targets = {target.name: target for target in state.targets}
        live = {worker.incarnation: worker for worker in state.workers}
        self._lose([incarnation for incarnation in self._workers if incarnation not in live], at)
        self._workers = live
        self._sessions = {session.session_id: session for session in state.sessions}
        self._more_sessions = state.more_sessions
        self._note_usage(state.sessions, at)
        for unknown in self._usage.keys() - self._sessions.keys():
            del self._usage[unknown]

    def on_change(self, changed: FleetChanged, at: float) -> None:
        """Take an event; before the first state only its counts."""
        self._event_at = at
        for name, counts in changed.calls.items():
            self._windows[name].add(counts, at)
        self._queued.update(changed.queued)
        self.consumers.update(changed.consumers)
        if not self.is_known:
            return
        self._targets.update((target.name, target) for target in changed.targets)
        self._lose(changed.lost_workers, at)
        self._workers.update((worker.incarnation, worker) for worker in changed.workers)
        self._sessions.update((session.session_id, session) for session in changed.sessions)
        for session_id in changed.ended_sessions:
            self._sessions.pop(session_id, None)
        self._note_usage(changed.sessions, at)

    def on_quotas(self, quotas: QuotaList) -> None:
        """Take what the ledger says of the quotas."""
        self._quotas = [QuotaStatus.of(quota, quotas.now) for quota in quotas.quotas]

    def on_asked(self, at: float) -> None:
        """Note that services were asked for their cards."""
        self._asked_at = min(self._asked_at, at)

    def on_card(self, card: ServiceCard, at: float) -> None:
        """Take the card of a service."""
        self._cards[card.instance] = _SeenCard(card, at)

    def figures(self, at: float, problems: Iterable[str] = (), notes: Iterable[str] = ()) -> FleetFigures:
        """Return what is known now. ``problems`` and ``notes`` are those of the one who looks."""
        self._forget(at)
        served = self._served(at)
        keys = sorted({(name, False) for name in self._targets} | served.keys())
        targets = [self._target(key, served.get(key), at) for key in keys]
        workers, services = self._all_workers(at), self._services(at)
        different = [target for target in targets if target.different_ms is not None]
        lasting = [target for target in different if (target.different_ms or 0) > ROLLING_UPDATE_MS]
        return FleetFigures(
            targets=targets,
            workers=workers,
            budgets=[self._budget(session, at) for session in self._sessions.values()],
            services=services,
            quotas=self._quotas,
            more_sessions=self._more_sessions,
            calls_per_minute=round(sum(target.calls_per_minute for target in targets), 1),
            running=sum(target.running for target in targets),
            queued=sum(target.queued or 0 for target in targets),
            problems=[*problems, *self._problems(targets, at), *map(_difference, lasting)],
            warnings=[
                *_silent(workers),
                *_waits(self._quotas),
                *(_difference(target) for target in different if target not in lasting),
            ],
            notes=list(notes),
        )

    def _note_usage(self, sessions: Iterable[FleetSession], at: float) -> None:
        for session in sessions:
            self._usage[session.session_id].note(session.call_count, at)

    def _lose(self, incarnations: Iterable[str], at: float) -> None:
        for incarnation in incarnations:
            worker = self._workers.pop(incarnation, None)
            if worker is not None and worker.drain is not DrainState.DRAINED:
                self._lost[incarnation] = (worker, at)

    def _forget(self, at: float) -> None:
        self._lost = {one: lost for one, lost in self._lost.items() if at - lost[1] < GONE_SECONDS}
        self._cards = {one: seen for one, seen in self._cards.items() if at - seen.seen_at < GONE_SECONDS}

    def _are_cards_known(self, at: float) -> bool:
        return at - self._asked_at >= self._answer_seconds

    def _is_silent(self, seen: _SeenCard, at: float) -> bool:
        return at - seen.seen_at >= SILENT_SECONDS

    def _served(self, at: float) -> dict[_TargetKey, _Served]:
        """Return what the services that answer serve."""
        found: dict[_TargetKey, _Served] = {}
        for seen in self._cards.values():
            if self._is_silent(seen, at):
                continue
            for one in seen.card.targets:
                served = found.setdefault((one.name, one.kind == LEASED_PROVIDER), _Served(one.kind))
                served.workers += 1
                served.slots += one.slots
                served.in_flight += one.in_flight
                if one.paused_ms is not None:
                    served.paused_until = max(served.paused_until or 0.0, seen.seen_at + one.paused_ms / 1000)
        return found

    def _target(self, key: _TargetKey, served: _Served | None, at: float) -> TargetFigures:
        name, is_leased = key
        registered = None if is_leased else self._targets.get(name)
        fields = self._registered_fields(registered, at) if registered else self._served_fields(served or _Served(""))
        if (fields["paused_until"] or 0) <= (at + self._clock_offset) * 1000:
            fields["paused_until"] = None
        workers = slots = None
        if self._are_cards_known(at):
            workers, slots = (0, 0) if served is None else (served.workers, served.slots)
        condition = TargetCondition.UNSERVED if workers == 0 else TargetCondition.READY
        if fields["paused_until"] is not None:
            condition = TargetCondition.PAUSED
        window = None if is_leased else self._windows.get(name)
        sums = _NO_CALLS if window is None else window.sums(at)
        return TargetFigures.unchecked(
            **fields,
            name=name,
            condition=condition,
            queued=None if is_leased else self._queued.get(name),
            workers=workers,
            slots=slots,
            calls_per_minute=0.0 if window is None else window.per_minute(at, at - self._began_at),
            wait=percentiles(sums.wait),
            service=percentiles(sums.service),
            faults=dict(sums.faults.most_common()),
            input_tokens=sums.input_tokens,
            output_tokens=sums.output_tokens,
            cost_usd=sums.cost_usd,
        )

    def _registered_fields(self, target: RegisteredTarget, at: float) -> dict[str, Any]:
        return {
            "provider": target.provider,
            "model": target.model,
            "paused_until": target.paused_until,
            "running": target.running,
            "limit": target.max_concurrency,
            "workers_by_fingerprint": target.workers_by_fingerprint,
            "different_ms": self._age_ms(target.different_since, at),
        }

    def _served_fields(self, served: _Served) -> dict[str, Any]:
        """What services tell of a target that is not in the ledger, or leased."""
        until = served.paused_until
        return {
            "provider": served.kind,
            "model": None,
            # To the second: cards tell how long a pause still lasts, and each of them a bit differently.
            "paused_until": None if until is None else round(until + self._clock_offset) * 1000,
            "running": served.in_flight,
            "limit": served.slots,
            "workers_by_fingerprint": None,
            "different_ms": None,
        }

    def _age_ms(self, since_ms: int | None, at: float) -> int | None:
        """How long ago a time of the ledger was, to the second: figures that tell the same are to be equal."""
        return None if since_ms is None else max(0, int(at + self._clock_offset - since_ms / 1000)) * 1000

    def _all_workers(self, at: float) -> list[WorkerFigures]:
        """The workers with a lease, the lost ones, and until the ledger is known those that answer."""
        # Of several processes with one id, a restarted worker, the newest.
        cards = sorted(self._cards.values(), key=lambda seen: seen.seen_at)
        by_id = {seen.card.id: seen for seen in cards if seen.card.service == "worker"}
        workers = [self._worker(worker, by_id.get(worker.worker_id), at) for worker in self._workers.values()]
        workers += [_lost_worker(worker) for worker, _ in self._lost.values()]
        if not self.is_known:
            workers += [self._unregistered_worker(seen, at) for seen in by_id.values()]
        return sorted(workers, key=lambda worker: (worker.worker_id, worker.incarnation))

    def _worker(self, worker: RegisteredWorker, seen: _SeenCard | None, at: float) -> WorkerFigures:
        condition = WorkerCondition.DRAINING if worker.drain in _DRAINING else WorkerCondition.LIVE
        if self._are_cards_known(at) if seen is None else self._is_silent(seen, at):
            condition = WorkerCondition.SILENT
        figures = WorkerFigures(
            worker_id=worker.worker_id, incarnation=worker.incarnation, condition=condition, running=worker.running
        )
        return figures if seen is None else _with_card(figures, seen.card)

    def _unregistered_worker(self, seen: _SeenCard, at: float) -> WorkerFigures:
        figures = WorkerFigures(
            worker_id=seen.card.id,
            incarnation=seen.card.instance,
            condition=WorkerCondition.SILENT if self._is_silent(seen, at) else WorkerCondition.LIVE,
            running=seen.card.in_flight,
        )
        return _with_card(figures, seen.card)

    def _budget(self, session: FleetSession, at: float) -> BudgetFigures:
        rate = self._usage[session.session_id].per_minute(at)
        left = max(0, session.max_calls - session.call_count)
        return BudgetFigures(
            **dict(session),
            used=session.call_count,
            is_spent=left == 0,
            calls_per_minute=round(rate, 1),
            ends_in_ms=int(left / rate * 60_000) if rate and left else None,
        )

    def _services(self, at: float) -> list[ServiceFigures]:
        services = [
            ServiceFigures(**dict(seen.card), is_silent=self._is_silent(seen, at))
            for seen in self._cards.values()
            if seen.card.service != "worker"
        ]
        return sorted(services, key=lambda service: (service.service, service.id))

    def _problems(self, targets: Iterable[TargetFigures], at: float) -> Iterable[str]:
        if at - max(self._event_at, self._began_at) >= EVENTS_SECONDS:
            yield "No events arrive: is a metadata service running, and of this release?"
        if not self._are_cards_known(at):
            return
        heard = [seen.card for seen in self._cards.values() if not self._is_silent(seen, at)]
        yield from (f"The {one.service} {one.id} is refused: {one.problem}" for one in heard if one.problem)
        answering = {card.service for card in heard}
        if "metadata" not in answering:
            yield "No metadata service answers: start one with `quintain serve metadata`"
        unserved = [target.name for target in targets if target.workers == 0]
        if unserved:
            yield f"No worker that answers serves {named(unserved)}: {_START_WORKER}"
        elif not answering & {"worker", "host"}:
            yield f"No worker answers: {_START_WORKER}"


_START_WORKER = "start one with `quintain serve worker` where its configuration is"


def _with_card(figures: WorkerFigures, card: ServiceCard) -> WorkerFigures:
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


def _silent(workers: Iterable[WorkerFigures]) -> Iterable[str]:
    silent = sum(worker.condition is WorkerCondition.SILENT for worker in workers)
    if silent:
        yield f"{silent} worker{'' if silent == 1 else 's'} with a lease did not answer"


def _waits(quotas: Iterable[QuotaStatus]) -> Iterable[str]:
    """What is wrong with quotas: their providers, and what workers say of them."""
    for quota in quotas:
        if (trouble := provider_trouble(quota)) is not None:
            yield "; ".join(trouble)
        if quota.is_different:
            yield f"Workers name different limits of quota {quota.name} ({named(quota.targets)}): the smallest count"


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
