"""The model of the fleet that the Fleet page and `quintain top` show. No I/O: what it is told, and when, is passed in.

It is told states of the ledger (whole, from time to time), events (what changed, and what became of calls), and the
cards with which services answer discovery requests. Events may be lost; the next state mends what they leave wrong.
Times are those of the viewer, in seconds of any clock that only rises.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from quintain.contracts.admin import RegisteredWorker
from quintain.contracts.discovery import RegisteredTarget, ServiceCard
from quintain.contracts.fleet import FleetChanged, FleetSession, FleetState
from quintain.contracts.ledger import DrainState
from quintain.monitor.fleet_figures import (
    BudgetFigures,
    FleetFigures,
    ServiceFigures,
    TargetCondition,
    TargetFigures,
    WorkerCondition,
    WorkerFigures,
)
from quintain.monitor.windows import CallWindow, UsageRate, percentiles

#: A service that has not answered for so long, while it is asked every half a second, is silent.
SILENT_SECONDS = 1.25

#: For how long a lost worker and a silent service are shown, in seconds.
GONE_SECONDS = 60.0

#: After how long without an event the metadata service is said to be silent, in seconds.
EVENTS_SECONDS = 5.0

_DRAINING = frozenset({DrainState.REQUESTED, DrainState.DRAINING, DrainState.DRAINED})


@dataclass(slots=True)
class _SeenCard:
    card: ServiceCard
    seen_at: float


class FleetModel:
    """What is known of a fleet.

    Example::

        model = FleetModel(began_at=time.monotonic())
        model.on_state(await admin.fleet(), time.monotonic())
        print(model.figures(time.monotonic()).targets)
    """

    def __init__(self, began_at: float) -> None:
        self._began_at = began_at
        self._targets: dict[str, RegisteredTarget] = {}
        self._workers: dict[str, RegisteredWorker] = {}
        self._sessions: dict[str, FleetSession] = {}
        self._lost: dict[str, tuple[RegisteredWorker, float]] = {}
        self._more_sessions = 0
        self._windows: defaultdict[str, CallWindow] = defaultdict(CallWindow)
        self._usage: defaultdict[str, UsageRate] = defaultdict(UsageRate)
        self._queued: dict[str, int] = {}
        self._cards: dict[str, _SeenCard] = {}
        self._asked_at = math.inf
        self._clock_offset = 0.0
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
        if not self.is_known:
            return
        self._targets.update((target.name, target) for target in changed.targets)
        self._lose(changed.lost_workers, at)
        self._workers.update((worker.incarnation, worker) for worker in changed.workers)
        self._sessions.update((session.session_id, session) for session in changed.sessions)
        for session_id in changed.ended_sessions:
            self._sessions.pop(session_id, None)
        self._note_usage(changed.sessions, at)

    def on_asked(self, at: float) -> None:
        """Note that services were asked for their cards."""
        self._asked_at = min(self._asked_at, at)

    def on_card(self, card: ServiceCard, at: float) -> None:
        """Take the card of a service."""
        self._cards[card.instance] = _SeenCard(card, at)

    def figures(self, at: float, problems: Iterable[str] = ()) -> FleetFigures:
        """Return what is known now. ``problems`` are those of the one who looks."""
        self._forget(at)
        served = self._served(at)
        targets = [self._target(name, served, at) for name in sorted(self._targets)]
        cards = self._worker_cards()
        workers = [self._worker(worker, cards.get(worker.worker_id), at) for worker in self._workers.values()]
        workers += [_lost_worker(worker) for worker, _ in self._lost.values()]
        return FleetFigures(
            targets=targets,
            workers=sorted(workers, key=lambda worker: (worker.worker_id, worker.incarnation)),
            budgets=[self._budget(session, at) for session in self._sessions.values()],
            services=self._services(at),
            more_sessions=self._more_sessions,
            calls_per_minute=round(sum(target.calls_per_minute for target in targets), 1),
            running=sum(target.running for target in targets),
            queued=sum(target.queued or 0 for target in targets),
            problems=[*problems, *self._problems(targets, workers, at)],
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
        return at - self._asked_at >= SILENT_SECONDS and bool(self._cards)

    def _is_silent(self, seen: _SeenCard, at: float) -> bool:
        return at - seen.seen_at >= SILENT_SECONDS

    def _served(self, at: float) -> dict[str, tuple[int, int]]:
        """Return, by target, how many workers that answer serve it, and with how many slots."""
        served: dict[str, tuple[int, int]] = {}
        for seen in self._cards.values():
            if seen.card.service == "worker" and not self._is_silent(seen, at):
                for one in seen.card.targets:
                    workers, slots = served.get(one.name, (0, 0))
                    served[one.name] = (workers + 1, slots + one.slots)
        return served

    def _target(self, name: str, served: dict[str, tuple[int, int]], at: float) -> TargetFigures:
        target, window = self._targets[name], self._windows.get(name)
        sums = None if window is None else window.sums(at)
        paused_until = target.paused_until
        if paused_until is not None and paused_until <= (at + self._clock_offset) * 1000:
            paused_until = None
        workers, slots = served.get(name, (0, 0)) if self._are_cards_known(at) else (None, None)
        condition = TargetCondition.UNSERVED if workers == 0 else TargetCondition.READY
        figures = TargetFigures(
            name=name,
            provider=target.provider,
            model=target.model,
            condition=condition if paused_until is None else TargetCondition.PAUSED,
            paused_until=paused_until,
            queued=self._queued.get(name),
            running=target.running,
            limit=target.max_concurrency,
            workers=workers,
            slots=slots,
        )
        if window is None or sums is None:
            return figures
        return figures.with_fields(
            calls_per_minute=window.per_minute(at, at - self._began_at),
            wait=percentiles(sums.wait),
            service=percentiles(sums.service),
            faults=dict(sums.faults.most_common()),
            input_tokens=sums.input_tokens,
            output_tokens=sums.output_tokens,
            cost_usd=sums.cost_usd,
        )

    def _worker_cards(self) -> dict[str, _SeenCard]:
        """The cards of workers by id: of several processes with one id, a restarted one, the newest."""
        cards = sorted(self._cards.values(), key=lambda seen: seen.seen_at)
        return {seen.card.id: seen for seen in cards if seen.card.service == "worker"}

    def _worker(self, worker: RegisteredWorker, seen: _SeenCard | None, at: float) -> WorkerFigures:
        condition = WorkerCondition.DRAINING if worker.drain in _DRAINING else WorkerCondition.LIVE
        if seen is not None and self._is_silent(seen, at):
            condition = WorkerCondition.SILENT
        return WorkerFigures(
            worker_id=worker.worker_id,
            incarnation=worker.incarnation,
            condition=condition,
            running=worker.running,
            slots=None if seen is None else seen.card.slots,
            version=None if seen is None else seen.card.version,
            targets=None if seen is None else [one.name for one in seen.card.targets],
        )

    def _budget(self, session: FleetSession, at: float) -> BudgetFigures:
        rate = self._usage[session.session_id].per_minute(at)
        left = max(0, session.max_calls - session.call_count)
        return BudgetFigures(
            session_id=session.session_id,
            label=session.label,
            parent_id=session.parent_id,
            default_target=session.default_target,
            used=session.call_count,
            max_calls=session.max_calls,
            state=session.state,
            is_spent=left == 0,
            calls_per_minute=round(rate, 1),
            ends_in_ms=int(left / rate * 60_000) if rate and left else None,
        )

    def _services(self, at: float) -> list[ServiceFigures]:
        services = [
            ServiceFigures(
                service=seen.card.service,
                id=seen.card.id,
                version=seen.card.version,
                in_flight=seen.card.in_flight,
                is_silent=self._is_silent(seen, at),
            )
            for seen in self._cards.values()
            if seen.card.service != "worker"
        ]
        return sorted(services, key=lambda service: (service.service, service.id))

    def _problems(self, targets: Iterable[TargetFigures], workers: Iterable[WorkerFigures], at: float) -> Iterable[str]:
        if at - max(self._event_at, self._began_at) >= EVENTS_SECONDS:
            yield "No events arrive: is a metadata service running, and of this release?"
        unserved = [target.name for target in targets if target.condition is TargetCondition.UNSERVED]
        if unserved:
            shown = ", ".join(unserved[:MAX_NAMED]) + (", …" if len(unserved) > MAX_NAMED else "")
            yield f"No worker that answers serves {shown}"
        silent = sum(worker.condition is WorkerCondition.SILENT for worker in workers)
        if silent:
            yield f"{silent} worker{'' if silent == 1 else 's'} with a lease did not answer"


#: How many targets a problem names.
MAX_NAMED = 5


def _lost_worker(worker: RegisteredWorker) -> WorkerFigures:
    return WorkerFigures(
        worker_id=worker.worker_id, incarnation=worker.incarnation, condition=WorkerCondition.LOST, running=0
    )
