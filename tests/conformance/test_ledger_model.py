"""The ledger against a model of it: whatever is asked, in whatever order, the books agree and nothing is charged twice.

The model is the table of ``design.md`` §3 written down once more, with no SQL and no transactions. Every operation
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

from quintain.contracts.invoke import FaultReply, OutputMessage, Result, TokenUsage
from quintain.contracts.ledger import (
    Admission,
    Admit,
    Heartbeat,
    LeaseRenewed,
    Outcome,
    Register,
    Settle,
    TargetCard,
)
from quintain.contracts.metadata import AmendSession, OpenSession, SessionOpened, SessionState
from quintain.contracts.token import SessionToken
from quintain.errors import Cancelled, Fault, ProviderFailed, Throttled
from quintain.timings import DEFAULT_TIMINGS
from quintain_metadata import audit, calls, cancels, reservations, sessions, upkeep
from quintain_metadata.calls import JOINED_MS
from quintain_metadata.cancels import TakenBack
from quintain_metadata.ledger import Ledger
from quintain_metadata.ledger_factory import open_ledger
from quintain_metadata.lifecycle import COUNTED, MOST_ATTEMPTS, State
from quintain_metadata.records import Held, Moment
from quintain_metadata.steps import Steps, run
from support.servers.postgres_sql import run_sql

NAMES = ("parent", "left", "right")
PARENT_OF = {"parent": None, "left": "parent", "right": "parent"}
REQUESTS = ("r1", "r1", "r2")  # most of what is interesting happens to one call
WORKERS = ("w1", "w2")
LEASE_MS = DEFAULT_TIMINGS.lease_ms

#: A deadline further ahead than any lease, so that leases lapse before and after it.
DEADLINE_MS = 40_000


@dataclass
class Attempt:
    """One attempt: ``state`` is running, proven, unproven or void. It ends once; its end may be told again."""

    name: str
    session: str
    request: str
    worker: str
    state: str = "running"
    end: Outcome | None = None


@dataclass
class Call:
    """What the table says of one call."""

    state: State = State.NONE
    attempts: int = 0
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
    target_paused_until: int = 0

    def lineage(self, name: str) -> list[str]:
        parent = PARENT_OF[name]
        return [name] if parent is None else [name, parent]

    def used(self, name: str) -> int:
        family = [one for one in NAMES if name in self.lineage(one)]
        return sum(call.state in COUNTED for (owner, _), call in self.calls.items() if owner in family)

    def room(self, name: str, calls: int) -> bool:
        return all(self.used(one) + calls <= self.sessions[one].limit for one in self.lineage(name))

    def paused(self, name: str) -> bool:
        return any(self.sessions[one].paused for one in self.lineage(name))

    def alive(self, call: Call) -> bool:
        return call.holder is not None and self.lives(call.holder.worker)

    def lives(self, worker: str) -> bool:
        return self.leases.get(worker, 0) > self.now

    def must_wait(self, attempt: Attempt) -> bool:
        return not self.lives(attempt.worker) or self.target_paused_until > self.now

    def admit(self, attempt: Attempt) -> str:
        """What the one who asks is told: granted, held, told (the stored answer), or the code of a refusal."""
        key = (attempt.session, attempt.request)
        call = self.calls.get(key, Call())
        if call.state in {State.COMMITTED, State.IN_DOUBT}:
            return "told"
        if call.state is State.RUNNING:
            return self._follow(call, attempt)
        if call.cancelled:
            return "cancelled"
        refusal = self._refusal(call, attempt)
        if refusal == "held":
            return refusal
        if refusal is not None:
            if call.state is State.RESERVED:
                call.state = State.RELEASED
            return refusal
        self.calls[key] = call
        self._run(call, attempt, self.now + DEADLINE_MS)
        return "granted"

    def _follow(self, call: Call, attempt: Attempt) -> str:
        if call.holder is attempt:
            return "granted" if self.alive(call) else "held"
        if self.alive(call):
            if not call.cancelled:
                call.joined_until = self.now + JOINED_MS
            return "held"
        if call.deadline <= self.now or call.cancelled or call.attempts >= MOST_ATTEMPTS:
            call.state = State.IN_DOUBT
            return "told"
        if attempt.name in self.attempts:
            return "cancelled"
        if self.must_wait(attempt):
            return "held"
        self._run(call, attempt, call.deadline)
        return "granted"

    def _refusal(self, call: Call, attempt: Attempt) -> str | None:
        if self.paused(attempt.session):
            return "overloaded"
        if attempt.name in self.attempts:
            return "cancelled"
        if self.must_wait(attempt):
            return "held"
        if call.state is not State.RESERVED and not self.room(attempt.session, 1):
            return "budget_exhausted"
        return None

    def _run(self, call: Call, attempt: Attempt, deadline: int) -> None:
        call.state, call.holder, call.deadline = State.RUNNING, attempt, deadline
        call.attempts += 1
        attempt.state = "running"
        self.attempts[attempt.name] = attempt

    def settle(self, attempt: Attempt, outcome: Outcome, *, told: bool) -> None:
        call = self.calls.get((attempt.session, attempt.request))
        known = self.attempts.get(attempt.name)
        if call is None or known is None or known.state == "void":
            if outcome is Outcome.NEVER_SENT:
                attempt.state = "void"
                self.attempts.setdefault(attempt.name, attempt)
                if told and call is not None and call.state is State.RESERVED:
                    call.state = State.RELEASED
            return
        unbilled = outcome in {Outcome.REFUND, Outcome.NEVER_SENT}
        attempt.state = "proven" if unbilled else "unproven"
        if outcome is Outcome.NEVER_SENT:
            attempt.state = "void"
            call.attempts -= 1
        if outcome is Outcome.RESULT and call.state in {State.RUNNING, State.IN_DOUBT}:
            call.state = State.COMMITTED
        elif call.state is State.RUNNING and call.holder is attempt:
            if unbilled:
                call.state = State.REFUNDED if self._all_proven(attempt) else State.IN_DOUBT
            else:
                call.state = State.COMMITTED if outcome is Outcome.CHARGED else State.IN_DOUBT

    def _all_proven(self, attempt: Attempt) -> bool:
        return all(one.state in {"proven", "void"} for one in (attempt, *self.others(attempt)))

    def others(self, attempt: Attempt) -> list[Attempt]:
        mine = (attempt.session, attempt.request)
        same = [one for one in self.attempts.values() if (one.session, one.request) == mine]
        return [one for one in same if one is not attempt]

    def reserve(self, name: str, requests: list[str], deadline: int) -> str:
        fresh = [one for one in dict.fromkeys(requests) if (name, one) not in self.calls]
        if self.paused(name):
            return "overloaded"
        if not self.room(name, len(fresh)):
            return "budget_exhausted"
        for one in fresh:
            self.calls[name, one] = Call(State.RESERVED, deadline=deadline)
        return str(len(fresh))

    def release(self, name: str, requests: list[str]) -> str:
        held = [self.calls[name, one] for one in dict.fromkeys(requests) if (name, one) in self.calls]
        held = [call for call in held if call.state is State.RESERVED]
        for call in held:
            call.state = State.RELEASED
        return str(len(held))

    def cancel(self, name: str, requests: list[str]) -> TakenBack:
        taken = TakenBack()
        for one in sorted(set(requests)):
            call = self.calls.setdefault((name, one), Call(State.RELEASED))
            joined = call.state is State.RUNNING and call.joined_until > self.now
            if call.cancelled or joined or call.state in {State.COMMITTED, State.IN_DOUBT}:
                continue
            call.cancelled = True
            taken.cancelled += 1
            if call.state is State.RUNNING:
                taken.to_abort.append(one)
            elif call.state is State.RESERVED:
                call.state = State.RELEASED
        return taken

    def taken_back(self, worker: str) -> set[tuple[str, str]]:
        return {
            key
            for key, call in self.calls.items()
            if call.state is State.RUNNING and call.cancelled and call.holder and call.holder.worker == worker
        }

    def sweep(self) -> None:
        for call in self.calls.values():
            if call.deadline > self.now:
                continue
            if call.state is State.RESERVED:
                call.state = State.RELEASED
            elif call.state is State.RUNNING and not self.alive(call):
                call.state = State.IN_DOUBT


class LedgerAgainstItsModel(RuleBasedStateMachine):
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
            assert self.do(lambda _: audit.verify_counters()).findings == ()
        self.loop.run_until_complete(self.ledger.close())
        self.loop.close()

    def do(self, operation: Callable[[Moment], Steps[object]]) -> object:
        moment = Moment(self.model.now)
        return self.loop.run_until_complete(self.ledger.do(lambda _: operation(moment)))  # type: ignore[arg-type]

    def told(self, operation: Callable[[Moment], Steps[object]]) -> object:
        """What came back, or the fault that did."""
        try:
            return self.do(operation)
        except Fault as fault:
            return fault

    @initialize(limits=st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 3)))
    def open_sessions(self, limits: tuple[int, int, int]) -> None:
        for name, drawn in zip(NAMES, limits, strict=True):
            limit = min(drawn, limits[0])  # a child may not have more than its parent
            ask = OpenSession(default_target="a", max_calls=limit)

            def steps(moment: Moment, name: str = name, ask: OpenSession = ask) -> Steps[SessionOpened]:
                parent = PARENT_OF[name]
                owner = None if parent is None else (yield from self.proven(moment, parent))
                return (yield from sessions.open_session(moment.now, ask, SessionToken.mint(), owner))

            self.opened[name] = self.do(steps)  # type: ignore[assignment]
            self.model.sessions[name] = Session(limit)
        card = TargetCard(name="a", provider="mock", max_concurrency=64)
        for worker in WORKERS:
            ask = Register(worker_id=worker, incarnation=worker, targets=[card])
            self.do(lambda moment, ask=ask: upkeep.register(moment.now, ask))  # type: ignore[misc]
            self.model.leases[worker] = self.model.now + LEASE_MS

    def proven(self, moment: Moment, name: str) -> Steps[sessions.Session]:
        return (yield from sessions.prove(moment.now, SessionToken.parse(self.opened[name].token)))

    @rule(name=st.sampled_from(NAMES), request=st.sampled_from(REQUESTS), worker=st.sampled_from(WORKERS))
    def admit_anew(self, name: str, request: str, worker: str) -> None:
        self.admit(self.attempt(name, request, worker))

    def attempt(self, name: str, request: str, worker: str) -> Attempt:
        self.all.append(Attempt(f"attempt-{len(self.all)}", name, request, worker))
        return self.all[-1]

    @precondition(lambda self: self.all)
    @rule(data=st.data())
    def admit_again(self, data: st.DataObject) -> None:
        """The worker heard no answer, or gave up while its question was on its way."""
        self.admit(self.drawn(data))

    def drawn(self, data: st.DataObject) -> Attempt:
        return data.draw(st.one_of(st.sampled_from(self.all[-2:]), st.sampled_from(self.all)))

    def admit(self, attempt: Attempt) -> str:
        ask = Admit(
            token=self.opened[attempt.session].token,
            request_id=attempt.request,
            attempt_id=attempt.name,
            target="a",
            body_sha256="body",
            deadline=self.model.now + DEADLINE_MS,
        )
        expected = self.model.admit(attempt)
        verdict = self.told(lambda moment: calls.admit(moment, ask, attempt.worker))
        assert self.read(verdict) == expected
        if expected == "granted":
            assert isinstance(verdict, Admission)
            assert verdict.unproven is any(one.state not in {"proven", "void"} for one in self.model.others(attempt))
        return expected

    def read(self, verdict: object) -> str:
        if isinstance(verdict, Held):
            return "held"
        if isinstance(verdict, Fault):
            verdict = Admission(attempt_id="", fault=FaultReply.of(verdict))
        assert isinstance(verdict, Admission)
        if verdict.replay is not None:
            assert verdict.replay.replayed
            return "told"
        if verdict.fault is None:
            return "granted"
        # What counts says that it was charged; a refusal says that it was not.
        if verdict.fault.code != "cancelled":
            assert verdict.fault.charged is (verdict.fault.code not in {"overloaded", "budget_exhausted"})
        return "told" if verdict.fault.charged else verdict.fault.code

    @precondition(lambda self: self.all)
    @rule(data=st.data(), outcome=st.sampled_from(Outcome), told=st.booleans())
    def settle(self, data: st.DataObject, outcome: Outcome, told: bool) -> None:
        """Any attempt, however old, tells its end; twice, where the broker delivers twice."""
        self.report(self.drawn(data), outcome, told=told)

    def report(self, attempt: Attempt, outcome: Outcome, *, told: bool = False) -> None:
        outcome = attempt.end = attempt.end or outcome
        self.model.settle(attempt, outcome, told=told)
        is_result = outcome is Outcome.RESULT
        call = self.model.calls.get((attempt.session, attempt.request))
        fault: Fault = Cancelled() if call is not None and call.cancelled else Throttled()
        if outcome is Outcome.CHARGED:
            fault = ProviderFailed("it broke", charged=True)
        item = Settle(
            session_id=self.opened[attempt.session].session_id,
            request_id=attempt.request,
            attempt_id=attempt.name,
            outcome=outcome,
            reply=kept_result() if is_result else None,
            fault=None if is_result or not told else FaultReply.of(fault),
            token_usage=TokenUsage(input=1, output=1) if is_result else None,
        )
        self.do(lambda moment: calls.settle(moment, item))

    @rule(
        name=st.sampled_from(NAMES),
        requests=st.lists(st.sampled_from(REQUESTS), max_size=4),
        ahead=st.sampled_from([0, 10_000, 30_000]),
    )
    def reserve(self, name: str, requests: list[str], ahead: int) -> None:
        deadline = self.model.now + ahead

        def steps(moment: Moment) -> Steps[int]:
            owner = yield from self.proven(moment, name)
            return (yield from reservations.reserve(moment.now, owner, requests, deadline))

        expected = self.model.reserve(name, requests, deadline)
        granted = self.told(steps)
        assert (granted.code if isinstance(granted, Fault) else str(granted)) == expected

    @rule(name=st.sampled_from(NAMES), requests=st.lists(st.sampled_from(REQUESTS), max_size=4))
    def release(self, name: str, requests: list[str]) -> None:
        def steps(moment: Moment) -> Steps[int]:
            return (yield from reservations.release(moment, (yield from self.proven(moment, name)), requests))

        expected = self.model.release(name, requests)
        assert str(self.do(steps)) == expected

    @rule(name=st.sampled_from(NAMES), requests=st.lists(st.sampled_from(REQUESTS), max_size=4))
    def cancel(self, name: str, requests: list[str]) -> None:
        def steps(moment: Moment) -> Steps[TakenBack]:
            return (yield from cancels.cancel(moment, (yield from self.proven(moment, name)), requests))

        expected = self.model.cancel(name, requests)
        assert self.do(steps) == expected

    @rule(milliseconds=st.sampled_from([0, 1, 20_000]))
    def pause_the_target(self, milliseconds: int) -> None:
        until = self.model.target_paused_until = max(self.model.target_paused_until, self.model.now + milliseconds)
        assert self.do(lambda moment: upkeep.pause(moment.now, "a", milliseconds)) == until

    @rule(milliseconds=st.sampled_from([1, 5_000, LEASE_MS, 25_000]))
    def let_time_pass(self, milliseconds: int) -> None:
        self.model.now += milliseconds

    @rule(worker=st.sampled_from(WORKERS))
    def renew(self, worker: str) -> None:
        beat = Heartbeat(worker_id=worker, incarnation=worker)
        renewed = self.do(lambda moment: upkeep.renew(moment.now, beat))
        assert isinstance(renewed, LeaseRenewed)
        names = {opened.session_id: name for name, opened in self.opened.items()}
        told = {(names[call.session_id], call.request_id) for call in renewed.taken_back or ()}
        assert told == self.model.taken_back(worker)
        until = self.model.target_paused_until
        assert renewed.paused == ({"a": until} if until > self.model.now else None)
        self.model.leases[worker] = self.model.now + LEASE_MS

    @rule()
    def sweep(self) -> None:
        self.model.sweep()
        self.do(upkeep.sweep)  # type: ignore[arg-type]

    @rule(name=st.sampled_from(NAMES), limit=st.one_of(st.none(), st.integers(0, 6)), paused=st.booleans())
    def amend(self, name: str, limit: int | None, paused: bool) -> None:
        state = SessionState.PAUSED if paused else SessionState.OPEN
        ask = AmendSession(session_id=self.opened[name].session_id, max_calls=limit, state=state)
        session = self.model.sessions[name]
        session.paused = paused
        session.limit = session.limit if limit is None else max(limit, self.model.used(name))
        self.do(lambda moment: sessions.amend(moment.now, ask))

    @invariant()
    def every_counter_is_the_number_of_calls_that_count(self) -> None:
        if not self.opened:
            return
        names = {opened.session_id: name for name, opened in self.opened.items()}
        rows = self.do(lambda _: run("SELECT session_id, request_id, state, attempts, cancelled_at FROM call"))
        found = {
            (names[row[0]], row[1]): (State(row[2]), row[3], row[4] is not None)
            for row in rows  # type: ignore[attr-defined]
        }
        assert found == {key: (call.state, call.attempts, call.cancelled) for key, call in self.model.calls.items()}
        for row in self.do(lambda _: run("SELECT id, used, max_calls FROM session")):  # type: ignore[attr-defined]
            name = names[row[0]]
            assert row[1] == self.model.used(name)
            assert row[1] <= row[2] == self.model.sessions[name].limit
        committed = {key for key, (state, *_) in found.items() if state is State.COMMITTED}
        assert self.committed <= committed, "what was committed stays so"
        self.committed = committed


def kept_result() -> Result:
    return Result(output=[OutputMessage(content="yes")], raw_text="yes", target="a", call_count=1, max_calls=1)


def in_memory(loop: asyncio.AbstractEventLoop) -> Ledger:
    return loop.run_until_complete(open_ledger("sqlite://"))


Store = Callable[[asyncio.AbstractEventLoop], Ledger]


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Store:
    """Opens an empty ledger, as often as it is asked."""
    if request.param == "sqlite":
        return in_memory
    url = request.getfixturevalue("fresh_postgres_url")

    def emptied(loop: asyncio.AbstractEventLoop) -> Ledger:
        run_sql(url, "DROP SCHEMA public CASCADE")
        run_sql(url, "CREATE SCHEMA public")
        return loop.run_until_complete(open_ledger(url))

    return emptied


def machine_on(store: Store) -> type[LedgerAgainstItsModel]:
    class Machine(LedgerAgainstItsModel):
        open_ledger = staticmethod(store)

    return Machine


def test_the_ledger_does_what_its_model_does(store: Store) -> None:
    run_state_machine_as_test(
        machine_on(store),
        settings=settings(
            max_examples=60 if store is in_memory else 10,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


class Told:
    """A machine told what to do, step by step, with every counter checked after each."""

    def __init__(self, machine: LedgerAgainstItsModel) -> None:
        self.machine = machine
        machine.open_sessions((3, 3, 3))

    def admit(self, worker: str = "w1", *, name: str = "left", request: str = "r1") -> Attempt:
        """A new attempt asks; whatever it is told, the model said so."""
        attempt = self.machine.attempt(name, request, worker)
        self.machine.admit(attempt)
        return self.seen(attempt)

    def report(self, attempt: Attempt, outcome: Outcome, *, told: bool = False) -> None:
        self.machine.report(attempt, outcome, told=told)
        self.seen(attempt)

    def seen(self, attempt: Attempt) -> Attempt:
        self.machine.every_counter_is_the_number_of_calls_that_count()
        return attempt

    def state(self, *, name: str = "left", request: str = "r1") -> State:
        return self.machine.model.calls[name, request].state


@pytest.fixture
def ledger(store: Store) -> Iterator[Told]:
    machine = machine_on(store)()
    yield Told(machine)
    machine.teardown()


def test_an_attempt_that_was_never_granted_is_no_doubt_about_another(ledger: Told) -> None:
    holder = ledger.admit("w1")
    duplicate = ledger.admit("w2")
    ledger.report(duplicate, Outcome.NEVER_SENT, told=True)
    ledger.report(holder, Outcome.REFUND)
    assert ledger.state() is State.REFUNDED


def test_an_attempt_given_back_with_its_grant_on_the_way_is_no_attempt(ledger: Told) -> None:
    granted = ledger.admit("w1")
    for _ in range(2):
        ledger.report(granted, Outcome.NEVER_SENT)
    assert ledger.state() is State.REFUNDED
    ledger.admit("w2")
    assert ledger.machine.model.calls["left", "r1"].attempts == 1


def test_a_tombstone_told_twice_stays_one(ledger: Told) -> None:
    ledger.admit("w1")
    duplicate = ledger.admit("w2")
    for _ in range(2):
        ledger.report(duplicate, Outcome.NEVER_SENT)
    assert duplicate.state == "void"


def test_a_call_that_is_taken_over_goes_on_though_its_session_was_paused(ledger: Told) -> None:
    ledger.admit("w1")
    ledger.machine.amend(name="left", limit=None, paused=True)
    ledger.machine.let_time_pass(milliseconds=LEASE_MS)
    ledger.machine.renew(worker="w2")
    follower = ledger.admit("w2")
    assert follower.state == "running"
    assert ledger.machine.model.calls["left", "r1"].attempts == 2


def test_a_refunded_call_that_is_asked_for_again_has_a_deadline_of_its_own(ledger: Told) -> None:
    ledger.report(ledger.admit("w1"), Outcome.REFUND)
    ledger.machine.let_time_pass(milliseconds=DEADLINE_MS)
    ledger.machine.renew(worker="w1")
    ledger.admit("w1")
    assert ledger.state() is State.RUNNING


def test_a_refusal_ends_a_reservation_and_giving_a_call_back_does_not(ledger: Told) -> None:
    ledger.machine.reserve(name="left", requests=["r1", "r2"], ahead=30_000)
    ledger.report(ledger.machine.attempt("left", "r1", "w1"), Outcome.NEVER_SENT, told=True)
    ledger.report(ledger.machine.attempt("left", "r2", "w1"), Outcome.NEVER_SENT)
    assert (ledger.state(), ledger.state(request="r2")) == (State.RELEASED, State.RESERVED)


def test_what_is_in_doubt_after_a_refund_says_that_it_was_charged(ledger: Told) -> None:
    ledger.admit("w1")
    ledger.machine.let_time_pass(milliseconds=LEASE_MS)
    ledger.machine.renew(worker="w2")
    second = ledger.admit("w2")
    ledger.report(second, Outcome.REFUND, told=True)
    assert ledger.state() is State.IN_DOUBT
    ledger.admit("w1")  # it is told the stored fault, which says so; the machine looks


def test_a_cancelled_call_whose_worker_is_lost_is_never_taken_over(ledger: Told) -> None:
    ledger.admit("w1")
    ledger.machine.cancel(name="left", requests=["r1"])
    ledger.machine.let_time_pass(milliseconds=LEASE_MS)
    ledger.machine.renew(worker="w2")
    ledger.admit("w2")
    assert ledger.state() is State.IN_DOUBT


def test_a_call_that_another_delivery_waits_for_is_cancelled_once_that_one_waits_no_more(ledger: Told) -> None:
    ledger.admit("w1")
    ledger.admit("w2")
    ledger.machine.cancel(name="left", requests=["r1"])
    assert not ledger.machine.model.calls["left", "r1"].cancelled
    ledger.machine.let_time_pass(milliseconds=JOINED_MS)
    ledger.machine.cancel(name="left", requests=["r1"])
    assert ledger.machine.model.calls["left", "r1"].cancelled
    ledger.machine.renew(worker="w1")


def test_a_cancelled_call_that_is_given_back_is_refused_and_what_is_unproven_is_in_doubt(ledger: Told) -> None:
    first = ledger.admit("w1")
    ledger.machine.cancel(name="left", requests=["r1"])
    ledger.report(first, Outcome.REFUND, told=True)
    ledger.admit("w2")
    assert ledger.state() is State.REFUNDED
    ledger.admit("w1", request="r2")
    ledger.machine.let_time_pass(milliseconds=LEASE_MS)
    ledger.machine.renew(worker="w2")
    second = ledger.admit("w2", request="r2")
    ledger.machine.cancel(name="left", requests=["r2"])
    ledger.report(second, Outcome.REFUND, told=True)
    assert ledger.state(request="r2") is State.IN_DOUBT
    ledger.admit("w2", request="r2")


def test_a_cancel_gives_a_reservation_back_and_what_is_unknown_is_known_from_then_on(ledger: Told) -> None:
    ledger.machine.reserve(name="left", requests=["r1"], ahead=30_000)
    ledger.machine.cancel(name="left", requests=["r1", "r2"])
    ledger.machine.reserve(name="left", requests=["r1", "r2"], ahead=30_000)
    ledger.admit("w1")
    ledger.admit("w1", request="r2")
    assert (ledger.state(), ledger.state(request="r2")) == (State.RELEASED, State.RELEASED)
