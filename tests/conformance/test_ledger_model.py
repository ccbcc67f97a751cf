"""The ledger against a model of it: whatever is asked, in whatever order, the books agree and nothing is charged twice.

The model is the table of a call's life written down once more, with no SQL and no transactions. Every operation
is asked of both; after every step every counter is recomputed from the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from quintain.contracts.credentials import SessionToken
from quintain.contracts.headers import PROTOCOL_VERSION
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import (
    Admission,
    Admit,
    AttemptOutcome,
    Heartbeat,
    LeaseRenewed,
    Register,
    TargetCard,
)
from quintain.contracts.session import AmendSession, OpenSession, SessionOpened, SessionState
from quintain.errors import Cancelled, Fault, ProviderFailed, Throttled
from quintain.timings import DEFAULT_TIMINGS
from quintain_metadata.ledger import audit, calls, leases, sessions
from quintain_metadata.ledger.calls import LOST_SETTLE_MS, CancelResult
from quintain_metadata.ledger.decisions import DUPLICATE_WAIT_MS, AdmitOperation, Deferred
from quintain_metadata.ledger.lifecycle import (
    COUNTED_STATES,
    MAX_ATTEMPTS,
    MAX_UNCOUNTED_ATTEMPTS,
    CallState,
)
from quintain_metadata.ledger.session_rows import SessionRow
from quintain_metadata.store.base import Ledger, Moment, SqlProgram, execute
from quintain_metadata.store.opening import open_ledger
from support.ledger_driver import admit_request, alone, open_emptied_ledger, settle_request

NAMES = ("parent", "left", "right")
PARENT_OF = {"parent": None, "left": "parent", "right": "parent"}
REQUESTS = ("r1", "r1", "r2")  # most of what is interesting happens to one call
WORKERS = ("w1", "w2")
LEASE_MS = DEFAULT_TIMINGS.lease_ms

#: A deadline further ahead than several leases, so that leases lapse before and after it.
DEADLINE_MS = 60_000


@dataclass
class Attempt:
    """One attempt: ``state`` is running, proven, unproven, retried or void. It ends once, and may tell so twice."""

    name: str
    session: str
    request: str
    worker: str
    state: str = "running"
    end: AttemptOutcome | None = None
    unproven: bool = False


@dataclass
class Call:
    """What the table says of one call."""

    state: CallState = CallState.NONE
    attempts: int = 0
    uncounted: int = 0
    holder: Attempt | None = None
    deadline: int = 0
    cancelled: bool = False
    joined_until: int = 0


@dataclass
class Session:
    limit: int
    paused: bool = False


@dataclass
class Model:
    """The table, in the plainest words there are."""

    sessions: dict[str, Session]
    now: int = 1_000_000_000
    calls: dict[tuple[str, str], Call] = field(default_factory=dict)
    attempts: dict[str, Attempt] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)
    #: How many calls ran at a worker when the first of them was found lost with it.
    lost_calls: dict[str, int] = field(default_factory=dict)
    has_place: bool = True

    def lineage(self, name: str) -> list[str]:
        parent = PARENT_OF[name]
        return [name] if parent is None else [name, parent]

    def used(self, name: str) -> int:
        family = [one for one in NAMES if name in self.lineage(one)]
        return sum(call.state in COUNTED_STATES for (owner, _), call in self.calls.items() if owner in family)

    def has_room(self, name: str, calls: int) -> bool:
        return all(self.used(one) + calls <= self.sessions[one].limit for one in self.lineage(name))

    def paused(self, name: str) -> bool:
        return any(self.sessions[one].paused for one in self.lineage(name))

    def is_holder_alive(self, call: Call) -> bool:
        return call.holder is not None and self.is_worker_alive(call.holder.worker)

    def is_worker_alive(self, worker: str) -> bool:
        return self.leases.get(worker, 0) > self.now

    def admit(self, attempt: Attempt) -> str:
        """What the one who asks is told: granted, held, told (the stored answer), or the code of a refusal."""
        key = (attempt.session, attempt.request)
        call = self.calls.get(key, Call())
        if call.state in {CallState.COMMITTED, CallState.IN_DOUBT}:
            return "told"
        if call.state is CallState.RUNNING:
            return self._admit_existing(call, attempt)
        if call.cancelled:
            return "cancelled"
        refusal = self._refusal(call, attempt)
        if refusal == "held":
            return refusal
        if refusal is not None:
            if call.state is CallState.RESERVED and refusal != "cancelled":
                return refusal if self.end_reservation(key) else "told"
            return refusal
        self.calls[key] = call
        self._start_attempt(call, attempt, self.now + DEADLINE_MS)
        return "granted"

    def _admit_existing(self, call: Call, attempt: Attempt) -> str:
        if call.holder is attempt:
            return "granted" if self.is_holder_alive(call) else "held"
        if self.is_holder_alive(call):
            if not call.cancelled:
                call.joined_until = self.now + DUPLICATE_WAIT_MS
            return "held"
        uncounted = min(call.uncounted + (self.count_lost_with(call) > 1), MAX_UNCOUNTED_ATTEMPTS)
        if call.deadline <= self.now or call.cancelled or call.attempts - uncounted >= MAX_ATTEMPTS:
            self.end_lost(call)
            return "told"
        if attempt.name in self.attempts:
            return "cancelled"
        if not self.is_worker_alive(attempt.worker) or not self.has_place:
            return "held"
        self.record_loss(call)
        call.uncounted = uncounted
        self._start_attempt(call, attempt, call.deadline)
        return "granted"

    def count_lost_with(self, call: Call) -> int:
        """How many calls were lost with this one's worker, itself among them."""
        assert call.holder is not None
        running = [one for one in self.calls.values() if one.state is CallState.RUNNING and one.holder is not None]
        here = sum(one.holder is not None and one.holder.worker == call.holder.worker for one in running)
        return self.lost_calls.get(call.holder.worker, here)

    def record_loss(self, call: Call) -> None:
        assert call.holder is not None
        self.lost_calls[call.holder.worker] = self.count_lost_with(call)

    def end_lost(self, call: Call) -> None:
        self.record_loss(call)
        call.state = CallState.IN_DOUBT

    def end_reservation(self, key: tuple[str, str]) -> bool:
        """Whether it is released, as nothing of it may have been billed."""
        attempts = [one for one in self.attempts.values() if (one.session, one.request) == key]
        is_proven = all(one.state in {"proven", "void"} for one in attempts)
        self.calls[key].state = CallState.RELEASED if is_proven else CallState.IN_DOUBT
        return is_proven

    def _refusal(self, call: Call, attempt: Attempt) -> str | None:
        if self.paused(attempt.session):
            return "overloaded"
        if attempt.name in self.attempts:
            return "cancelled"
        if not self.is_worker_alive(attempt.worker):
            return "held"
        if call.state is not CallState.RESERVED and not self.has_room(attempt.session, 1):
            return "budget_exhausted"
        return None if self.has_place else "held"

    def _start_attempt(self, call: Call, attempt: Attempt, deadline: int) -> None:
        call.state, call.holder, call.deadline = CallState.RUNNING, attempt, deadline
        call.attempts += 1
        attempt.state = "running"
        self.attempts[attempt.name] = attempt

    def settle(self, attempt: Attempt, outcome: AttemptOutcome, *, redelivered: bool) -> None:
        call = self.calls.get((attempt.session, attempt.request))
        known = self.attempts.get(attempt.name)
        if call is None or known is None or known.state in {"void", "retried"}:
            if outcome is AttemptOutcome.NEVER_SENT:
                attempt.state = "void"
                self.attempts.setdefault(attempt.name, attempt)
                if redelivered and call is not None and call.state is CallState.RESERVED:
                    self.end_reservation((attempt.session, attempt.request))
            return
        if outcome is AttemptOutcome.RETRY:
            self._retry(call, attempt)
            return
        unbilled = outcome in {AttemptOutcome.REFUND, AttemptOutcome.NEVER_SENT}
        attempt.state = "proven" if unbilled else "unproven"
        if outcome is AttemptOutcome.NEVER_SENT:
            attempt.state = "void"
            call.attempts -= 1
        if outcome is AttemptOutcome.RESULT and call.state in {CallState.RUNNING, CallState.IN_DOUBT}:
            call.state = CallState.COMMITTED
        elif call.state is CallState.RUNNING and call.holder is attempt:
            if unbilled:
                call.state = CallState.REFUNDED if self._all_proven(attempt) else CallState.IN_DOUBT
            else:
                call.state = CallState.COMMITTED if outcome is AttemptOutcome.CHARGED else CallState.IN_DOUBT

    def _retry(self, call: Call, attempt: Attempt) -> None:
        attempt.state = "retried" if attempt.unproven else "void"
        call.attempts -= 1
        if call.state is CallState.RUNNING and call.holder is attempt:
            call.state = CallState.RESERVED
            if call.cancelled:
                call.state = CallState.REFUNDED if self._all_proven(attempt) else CallState.IN_DOUBT

    def _all_proven(self, attempt: Attempt) -> bool:
        return all(one.state in {"proven", "void"} for one in (attempt, *self.others(attempt)))

    def others(self, attempt: Attempt) -> list[Attempt]:
        mine = (attempt.session, attempt.request)
        same = [one for one in self.attempts.values() if (one.session, one.request) == mine]
        return [one for one in same if one is not attempt]

    def reserve(self, name: str, requests: list[str], deadline: int) -> str:
        wanted = {one: self.calls.get((name, one), Call()) for one in requests}
        kept = [call for call in wanted.values() if call.state is CallState.RESERVED]
        fresh = [one for one, call in wanted.items() if self._is_reservable(call)]
        if self.paused(name):
            return "overloaded"
        if not self.has_room(name, len(fresh)):
            return "budget_exhausted"
        for one in fresh:
            self.calls[name, one] = wanted[one]
            wanted[one].state = CallState.RESERVED
        for call in (*kept, *(wanted[one] for one in fresh)):
            call.deadline = max(call.deadline, deadline)
        return str(len(fresh))

    def _is_reservable(self, call: Call) -> bool:
        return call.state in {CallState.NONE, CallState.RELEASED} and not call.cancelled

    def release(self, name: str, requests: list[str]) -> str:
        keys = [(name, one) for one in dict.fromkeys(requests) if (name, one) in self.calls]
        return str(sum([self.end_reservation(key) for key in keys if self.calls[key].state is CallState.RESERVED]))

    def cancel(self, name: str, requests: list[str]) -> CancelResult:
        taken = CancelResult()
        for one in sorted(set(requests)):
            call = self.calls.setdefault((name, one), Call(CallState.RELEASED))
            joined = call.state is CallState.RUNNING and call.joined_until > self.now
            if call.cancelled or joined or call.state in {CallState.COMMITTED, CallState.IN_DOUBT}:
                continue
            call.cancelled = True
            taken.cancelled_count += 1
            if call.state is CallState.RUNNING:
                assert call.holder is not None
                taken.to_abort[one] = call.holder.worker
            elif call.state is CallState.RESERVED:
                self.end_reservation((name, one))
        return taken

    def cancelled_calls(self, worker: str) -> set[tuple[str, str]]:
        return {
            key
            for key, call in self.calls.items()
            if call.state is CallState.RUNNING and call.cancelled and call.holder and call.holder.worker == worker
        }

    def sweep(self) -> None:
        for key, call in self.calls.items():
            if call.deadline > self.now:
                continue
            if call.state is CallState.RESERVED:
                self.end_reservation(key)
            elif call.state is CallState.RUNNING and not self.is_holder_alive(call):
                self.end_lost(call)
            elif call.state is CallState.RUNNING and call.deadline <= self.now - LOST_SETTLE_MS:
                call.state = CallState.IN_DOUBT


class LedgerModelMachine(RuleBasedStateMachine):
    """Asks both, and holds the one against the other."""

    open_ledger: Callable[[asyncio.AbstractEventLoop], Ledger]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.ledger = type(self).open_ledger(self.loop)
        self.model = Model({})
        self.opened: dict[str, SessionOpened] = {}
        self.all: list[Attempt] = []
        self.committed: set[tuple[str, str]] = set()

    def teardown(self) -> None:
        if self.opened:
            assert self.transact(lambda _: audit.verify_counters()).findings == ()
        self.loop.run_until_complete(self.ledger.close())
        self.loop.close()

    def transact(self, operation: Callable[[Moment], SqlProgram[object]]) -> object:
        moment = Moment(self.model.now, self.model.now)
        return self.loop.run_until_complete(self.ledger.transact(lambda _: operation(moment)))  # type: ignore[arg-type]

    def transact_or_fault(self, operation: Callable[[Moment], SqlProgram[object]]) -> object:
        """What came back, or the fault that did."""
        try:
            return self.transact(operation)
        except Fault as fault:
            return fault

    @initialize(limits=st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 3)))
    def open_sessions(self, limits: tuple[int, int, int]) -> None:
        for name, drawn in zip(NAMES, limits, strict=True):
            limit = min(drawn, limits[0])  # a child may not have more than its parent
            ask = OpenSession(default_target="a", max_calls=limit)

            def steps(moment: Moment, name: str = name, ask: OpenSession = ask) -> SqlProgram[SessionOpened]:
                parent = PARENT_OF[name]
                owner = None if parent is None else (yield from self.authenticate(moment, parent))
                return (yield from sessions.open_session(moment.now, ask, SessionToken.mint(), owner))

            self.opened[name] = self.transact(steps)  # type: ignore[assignment]
            self.model.sessions[name] = Session(limit)
        card = TargetCard(name="a", provider="mock", max_concurrency=64)
        for worker in WORKERS:
            ask = Register(worker_id=worker, incarnation=worker, targets=[card], protocol=PROTOCOL_VERSION)
            self.transact(lambda moment, ask=ask: leases.register_worker(moment.now, ask))  # type: ignore[misc]
            self.model.leases[worker] = self.model.now + LEASE_MS

    def authenticate(self, moment: Moment, name: str) -> SqlProgram[SessionRow]:
        return (yield from sessions.authenticate(moment.now, SessionToken.parse(self.opened[name].token)))

    @rule(name=st.sampled_from(NAMES), request=st.sampled_from(REQUESTS), worker=st.sampled_from(WORKERS))
    def admit_new_attempt(self, name: str, request: str, worker: str) -> None:
        self.admit(self.attempt(name, request, worker))

    def attempt(self, name: str, request: str, worker: str) -> Attempt:
        self.all.append(Attempt(f"attempt-{len(self.all)}", name, request, worker))
        return self.all[-1]

    @precondition(lambda self: self.all)
    @rule(data=st.data())
    def admit_again(self, data: st.DataObject) -> None:
        """The worker heard no answer, or gave up while its question was on its way."""
        self.admit(self.draw_attempt(data))

    def draw_attempt(self, data: st.DataObject) -> Attempt:
        return data.draw(st.one_of(st.sampled_from(self.all[-2:]), st.sampled_from(self.all)))

    def admit(self, attempt: Attempt) -> str:
        ask = self.admit_request(attempt, deadline=self.model.now + DEADLINE_MS)
        expected = self.model.admit(attempt)
        verdict = self.transact_or_fault(
            alone(AdmitOperation(ask, attempt.worker, ask.credential(), self.model.has_place))
        )
        assert self.read_decision(verdict) == expected
        if expected == "granted":
            assert isinstance(verdict, Admission)
            assert verdict.unproven is any(one.state not in {"proven", "void"} for one in self.model.others(attempt))
        return expected

    def admit_request(self, attempt: Attempt, **fields: object) -> Admit:
        return admit_request(self.opened[attempt.session], attempt.request, attempt_id=attempt.name, **fields)

    def read_decision(self, decision: object) -> str:
        if isinstance(decision, Deferred):
            return "held"
        if isinstance(decision, Fault):
            decision = Admission(attempt_id="", fault=FaultReply.from_fault(decision))
        assert isinstance(decision, Admission)
        if decision.replay is not None:
            assert decision.replay.replayed
            return "told"
        if decision.fault is None:
            return "granted"
        # What counts says that it was charged; a refusal says that it was not.
        if decision.fault.code != "cancelled":
            assert decision.fault.charged is (decision.fault.code not in {"overloaded", "budget_exhausted"})
        return "told" if decision.fault.charged else decision.fault.code

    @precondition(lambda self: self.all)
    @rule(data=st.data(), outcome=st.sampled_from(AttemptOutcome), redelivered=st.booleans(), unproven=st.booleans())
    def settle(self, data: st.DataObject, outcome: AttemptOutcome, redelivered: bool, unproven: bool) -> None:
        """Any attempt, however old, tells its end; twice, where the broker delivers twice."""
        self.report(self.draw_attempt(data), outcome, redelivered=redelivered, unproven=unproven)

    def report(
        self, attempt: Attempt, outcome: AttemptOutcome, *, redelivered: bool = False, unproven: bool = False
    ) -> None:
        if attempt.end is None:
            attempt.end, attempt.unproven = outcome, unproven
        outcome = attempt.end
        self.model.settle(attempt, outcome, redelivered=redelivered)
        is_result = outcome is AttemptOutcome.RESULT
        call = self.model.calls.get((attempt.session, attempt.request))
        fault: Fault = Cancelled() if call is not None and call.cancelled else Throttled()
        if outcome is AttemptOutcome.CHARGED:
            fault = ProviderFailed("it broke", charged=True)
        told = None if is_result or not redelivered else FaultReply.from_fault(fault)
        fields = {"fault": told, "tries": 1, "unproven": int(attempt.unproven) or None}
        item = settle_request(self.opened[attempt.session], self.admit_request(attempt), outcome).with_fields(**fields)
        self.transact(alone(item))

    @rule(
        name=st.sampled_from(NAMES),
        requests=st.lists(st.sampled_from(REQUESTS), max_size=4),
        deadline_in_ms=st.sampled_from([0, 10_000, 30_000]),
    )
    def reserve(self, name: str, requests: list[str], deadline_in_ms: int) -> None:
        deadline = self.model.now + deadline_in_ms

        def steps(moment: Moment) -> SqlProgram[int]:
            owner = yield from self.authenticate(moment, name)
            return (yield from calls.reserve(moment, owner, requests, deadline))

        expected = self.model.reserve(name, requests, deadline)
        granted = self.transact_or_fault(steps)
        assert (granted.code if isinstance(granted, Fault) else str(granted)) == expected

    @rule(name=st.sampled_from(NAMES), requests=st.lists(st.sampled_from(REQUESTS), max_size=4))
    def release(self, name: str, requests: list[str]) -> None:
        def steps(moment: Moment) -> SqlProgram[int]:
            return (yield from calls.release(moment, (yield from self.authenticate(moment, name)), requests))

        expected = self.model.release(name, requests)
        assert str(self.transact(steps)) == expected

    @rule(name=st.sampled_from(NAMES), requests=st.lists(st.sampled_from(REQUESTS), max_size=4))
    def cancel(self, name: str, requests: list[str]) -> None:
        def steps(moment: Moment) -> SqlProgram[CancelResult]:
            return (yield from calls.cancel(moment, (yield from self.authenticate(moment, name)), requests))

        expected = self.model.cancel(name, requests)
        assert self.transact(steps) == expected

    @rule(has_place=st.booleans())
    def place(self, has_place: bool) -> None:
        self.model.has_place = has_place

    @rule(milliseconds=st.sampled_from([1, 5_000, LEASE_MS, 25_000]))
    def let_time_pass(self, milliseconds: int) -> None:
        self.model.now += milliseconds

    @rule(worker=st.sampled_from(WORKERS))
    def renew(self, worker: str) -> None:
        beat = Heartbeat(worker_id=worker, incarnation=worker)
        of_users = [(beat, leases.DEFAULT_USER)]
        (renewed,) = self.transact(lambda moment: leases.renew_leases(moment.now, of_users, LEASE_MS))
        assert isinstance(renewed, LeaseRenewed)
        names = {opened.session_id: name for name, opened in self.opened.items()}
        told = {(names[call.session_id], call.request_id) for call in renewed.taken_back or ()}
        assert told == self.model.cancelled_calls(worker)
        self.model.leases[worker] = self.model.now + LEASE_MS
        self.model.lost_calls.pop(worker, None)

    @rule()
    def sweep(self) -> None:
        self.model.sweep()
        self.transact(calls.sweep)  # type: ignore[arg-type]

    @rule(name=st.sampled_from(NAMES), limit=st.one_of(st.none(), st.integers(0, 6)), paused=st.booleans())
    def amend(self, name: str, limit: int | None, paused: bool) -> None:
        state = SessionState.PAUSED if paused else SessionState.OPEN
        ask = AmendSession(session_id=self.opened[name].session_id, max_calls=limit, state=state)
        session = self.model.sessions[name]
        session.paused = paused
        session.limit = session.limit if limit is None else max(limit, self.model.used(name))
        self.transact(lambda moment: sessions.amend_session(moment.now, ask))

    @invariant()
    def every_counter_is_the_number_of_calls_that_count(self) -> None:
        if not self.opened:
            return
        names = {opened.session_id: name for name, opened in self.opened.items()}
        rows = self.transact(
            lambda _: execute("SELECT session_id, request_id, state, attempts, cancelled_at FROM call")
        )
        found = {
            (names[row[0]], row[1]): (CallState(row[2]), row[3], row[4] is not None)
            for row in rows  # type: ignore[attr-defined]
        }
        assert found == {key: (call.state, call.attempts, call.cancelled) for key, call in self.model.calls.items()}
        for row in self.transact(lambda _: execute("SELECT id, used, max_calls FROM session")):  # type: ignore[attr-defined]
            name = names[row[0]]
            assert row[1] == self.model.used(name)
            assert row[1] <= row[2] == self.model.sessions[name].limit
        committed = {key for key, (state, *_) in found.items() if state is CallState.COMMITTED}
        assert self.committed <= committed, "what was committed stays so"
        self.committed = committed


def in_memory(loop: asyncio.AbstractEventLoop) -> Ledger:
    return loop.run_until_complete(open_ledger("sqlite://"))


Store = Callable[[asyncio.AbstractEventLoop], Ledger]


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Store:
    """Opens an empty ledger, as often as it is asked."""
    if request.param == "sqlite":
        return in_memory
    url = request.getfixturevalue("ledger_database")
    return lambda loop: loop.run_until_complete(open_emptied_ledger(url))


def machine_for(store: Store) -> type[LedgerModelMachine]:
    class Machine(LedgerModelMachine):
        open_ledger = staticmethod(store)

    return Machine


def test_the_ledger_does_what_its_model_does(store: Store) -> None:
    run_state_machine_as_test(
        machine_for(store),
        settings=settings(
            max_examples=60 if store is in_memory else 10,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


@pytest.fixture
def machine(store: Store) -> Iterator[LedgerModelMachine]:
    machine = machine_for(store)()
    machine.open_sessions((3, 3, 3))
    yield machine
    machine.teardown()


Step = Callable[[LedgerModelMachine], object]


def admit(worker: str) -> Step:
    """A new attempt at the call asks, by this worker."""
    return lambda machine: machine.admit(machine.attempt("left", "r1", worker))


def wait(milliseconds: int) -> Step:
    return lambda machine: machine.let_time_pass(milliseconds=milliseconds)


def end(outcome: AttemptOutcome, *, unproven: bool = False) -> Step:
    """The last attempt tells its end."""
    return lambda machine: machine.report(machine.all[-1], outcome, redelivered=True, unproven=unproven)


def cancel(machine: LedgerModelMachine) -> None:
    machine.cancel(name="left", requests=["r1"])


def renew(machine: LedgerModelMachine) -> None:
    machine.renew(worker="w1")


def sweep(machine: LedgerModelMachine) -> None:
    machine.sweep()


LOST = [admit("w1"), wait(DEADLINE_MS + LOST_SETTLE_MS), renew, sweep]
JOINED = [admit("w1"), admit("w2")]
RETRIED = [admit("w1"), end(AttemptOutcome.RETRY, unproven=True)]

#: What chance seldom does in this order, and what becomes of the call.
SELDOM: dict[str, tuple[list[Step], CallState]] = {
    "nothing is cancelled that another waits for": ([*JOINED, wait(DUPLICATE_WAIT_MS - 1), cancel], CallState.RUNNING),
    "until that waits no more": ([*JOINED, wait(DUPLICATE_WAIT_MS), cancel, renew], CallState.RUNNING),
    "it may ask meanwhile": (
        [*JOINED, wait(DUPLICATE_WAIT_MS - 1000), admit("w2"), wait(2000), cancel],
        CallState.RUNNING,
    ),
    "who joins later does not uncancel": ([admit("w1"), cancel, admit("w2"), renew], CallState.RUNNING),
    "past its deadline a call runs on": ([admit("w1"), wait(DEADLINE_MS), renew, sweep], CallState.RUNNING),
    "one whose settle was lost is in doubt": (LOST, CallState.IN_DOUBT),
    "which was only late": ([*LOST, end(AttemptOutcome.RESULT)], CallState.COMMITTED),
    "attempts that are told to retry are not counted": (
        [*RETRIED * (MAX_ATTEMPTS + 1), admit("w1"), wait(LEASE_MS), renew, admit("w1")],
        CallState.RUNNING,
    ),
    "nor forgotten": ([*RETRIED, admit("w1"), end(AttemptOutcome.REFUND)], CallState.IN_DOUBT),
}


@pytest.mark.parametrize(("steps", "state"), SELDOM.values(), ids=SELDOM)
def test_what_chance_seldom_reaches(machine: LedgerModelMachine, steps: list[Step], state: CallState) -> None:
    for step in steps:
        step(machine)
        machine.every_counter_is_the_number_of_calls_that_count()
    assert machine.model.calls["left", "r1"].state is state
