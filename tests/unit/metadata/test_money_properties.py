"""Money in the decisions of the ledger, without a store: whatever happens to calls, no level of a family spends more.

Rounds of admits, reports, deaths of workers, late and repeated reports, cancellations, sweeps and closings are decided
by rows in memory, to which the writes that come out are applied. After each round the amounts of each session are
compared with its attempts, and with what the provider has billed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from quintain.contracts.credentials import SessionToken
from quintain.contracts.ledger import Admission, Admit, AttemptOutcome, Settle
from quintain.errors import Fault
from quintain_metadata.ledger import call_rows, decisions, settles
from quintain_metadata.ledger.call_rows import CallKey, CallRow, Rows, WorkerRow
from quintain_metadata.ledger.changes import Changes
from quintain_metadata.ledger.decisions import AdmitOperation, DeferReason, Deferred
from quintain_metadata.ledger.lifecycle import CallState
from quintain_metadata.ledger.money import MoneyAsk, payable
from quintain_metadata.ledger.session_rows import TOKEN_KINDS, CostChange, SessionRow
from quintain_metadata.store.base import ForEach, Moment, SqlValue

ROUNDS, FAMILIES = 10_000, 50

#: In picodollars, small enough for a family to be at its limits most of the time.
CENT = 100

#: How a try can end: its outcome, whether the worker knows the cost, and whether the provider may have billed it.
ENDS = [
    (AttemptOutcome.RESULT, True, True),
    (AttemptOutcome.RESULT, False, True),
    (AttemptOutcome.CHARGED, True, True),
    (AttemptOutcome.CHARGED, False, True),
    (AttemptOutcome.IN_DOUBT, False, True),
    (AttemptOutcome.REFUND, False, False),
    (AttemptOutcome.NEVER_SENT, False, False),
    (AttemptOutcome.THROTTLED, False, False),
    (AttemptOutcome.THROTTLED, False, True),
]


@dataclass
class AttemptRow:
    call: CallKey
    state: str
    cost: int


@dataclass
class Family:
    """The rows of one family of sessions, and what the writes of the ledger's decisions do to them."""

    tokens: dict[str, SessionToken]
    sessions: dict[str, SessionRow]
    calls: dict[CallKey, CallRow] = field(default_factory=dict)
    attempts: dict[str, AttemptRow] = field(default_factory=dict)
    workers: dict[str, WorkerRow] = field(default_factory=dict)
    now: int = 1_000_000

    def rows(self) -> Rows:
        sessions = {each.id: replace(each, ancestors=tuple(self.ancestors(each))) for each in self.sessions.values()}
        attempts: dict[CallKey, dict[str, str]] = {}
        for attempt_id, attempt in self.attempts.items():
            attempts.setdefault(attempt.call, {})[attempt_id] = attempt.state
        rows = Rows(sessions, dict(self.calls), attempts, dict(self.workers))
        rows.attempt_costs = {attempt_id: attempt.cost for attempt_id, attempt in self.attempts.items()}
        rows.lost_costs = {name: self.lost(name) for name, each in sessions.items() if each.max_cost is not None}
        return rows

    def ancestors(self, session: SessionRow) -> Iterator[SessionRow]:
        while session.parent_id is not None:
            session = self.sessions[session.parent_id]
            yield session

    def of_family(self, root: str) -> list[CallRow]:
        return [call for call in self.calls.values() if self.is_paid_by(call.session_id, root)]

    def is_paid_by(self, session_id: str, payer: str) -> bool:
        session = self.sessions[session_id]
        return payer in {each.id for each in (session, *self.ancestors(session))}

    def is_lost(self, call: CallRow) -> bool:
        return call.state is CallState.RUNNING and not self.workers[call.incarnation or ""].is_alive

    def lost(self, root: str) -> int:
        return sum(call.cost for call in self.of_family(root) if self.is_lost(call))

    def changes(self) -> Changes:
        return Changes(Moment(self.now, self.now), self.rows())

    def write(self, changes: Changes) -> None:
        for step in changes.write():
            assert isinstance(step, ForEach)
            for parameters in step.parameters:
                self.apply(step.sql, parameters)

    def apply(self, sql: str, values: tuple[SqlValue, ...]) -> None:
        match sql:
            case call_rows.START_CALL_SQL:
                before, started = self.calls.get((values[0], values[1])), CallRow(*values[:10], fault=None)  # type: ignore[arg-type,index]
                kept = (None, 0) if before is None else (before.cancelled_at, before.joined_until)
                self.calls[started[:2]] = started._replace(
                    cancelled_at=kept[0],
                    joined_until=kept[1],
                    uncounted_attempts=values[10],
                    cost=values[11],  # type: ignore[arg-type]
                )
            case call_rows.TRANSITION_SQL:
                *key, state = values[-3:]
                if self.calls[tuple(key)].state == state:  # type: ignore[index]
                    self.change(tuple(key), state=values[0], fault=values[1], cost=values[2], lost=values[3])
            case call_rows.CANCEL_SQL:
                if (key := (values[0], values[1])) not in self.calls:
                    self.calls[key] = CallRow(*key, "", "", values[2], 0, None, None, 0, 0, None)  # type: ignore[arg-type]
                self.change(key, state=values[2], cancelled_at=values[3])
            case call_rows.UNCOUNT_ATTEMPT_SQL:
                self.change((values[0], values[1]), attempts=self.calls[values[0], values[1]].attempts - 1)  # type: ignore[index]
            case call_rows.RESOLVE_CALL_COST_SQL:
                self.change((values[0], values[1]), cost=0, lost=0)
            case call_rows.INSERT_ATTEMPT_SQL | call_rows.UPSERT_ATTEMPT_SQL:
                attempt_id, session_id, request_id, _, _, state, _, cost = values
                new = AttemptRow((session_id, request_id), state, cost)  # type: ignore[arg-type]
                kept_row = self.attempts.setdefault(attempt_id, new)  # type: ignore[arg-type]
                if sql == call_rows.UPSERT_ATTEMPT_SQL:
                    kept_row.state = new.state
            case call_rows.RECORD_UNPROVEN_SQL:
                self.attempts[values[1]].state = "unproven"  # type: ignore[index]
            case call_rows.RESOLVE_ATTEMPT_COST_SQL:
                self.attempts[values[0]].cost = 0  # type: ignore[index]
            case (
                call_rows.COUNT_RUNNING_SQL
                | call_rows.RECORD_LOSS_SQL
                | call_rows.STORE_FAULT_SQL
                | call_rows.JOIN_SQL
                | call_rows.COUNT_SQL
                | call_rows.HELD_FOR_SQL
            ):
                pass  # no decision is made by it
            case _:
                assert sql.startswith("UPDATE session SET used = used + ?"), sql
                *added, session_id = values
                counted = self.sessions[session_id]  # type: ignore[index]
                money = (f"cost_{name}" for name in CostChange._fields)
                names = ("used", *(f"tokens_{kind}" for kind in TOKEN_KINDS), *money, "tries", "unproven_tries")
                total = {name: getattr(counted, name) + more for name, more in zip(names, added, strict=True)}  # type: ignore[operator]
                self.sessions[session_id] = replace(counted, **total)  # type: ignore[index]

    def change(self, key: object, **fields: object) -> None:
        self.calls[key] = self.calls[key]._replace(**fields)  # type: ignore[index,arg-type]


def family_of_sessions(rng: random.Random, limit: int) -> Family:
    """A root, two children of which one is narrower, and a grandchild."""
    tokens, sessions, parents = dict[str, SessionToken](), dict[str, SessionRow](), [None, 0, 0, 1]
    limits = [limit, limit // rng.randrange(1, 4), None, rng.choice([None, limit // 5])]
    for parent, own_limit in zip(parents, limits, strict=True):
        token = SessionToken.mint()
        values: dict[str, object] = dict.fromkeys(SessionRow.__slots__, 0)
        values |= dict.fromkeys(
            ("allowed_targets", "label", "expires_at", "max_body_bytes", "own_weight", "own_priority")
        )
        values |= {
            "id": token.id,
            "token_sha256": token.sha256,
            "parent_id": None if parent is None else list(sessions)[parent],
            "default_target": "a",
            "max_calls": 10**9,
            "state": "open",
            "deadline_ms": 600_000,
            "max_cost": own_limit,
            "ancestors": (),
        }
        tokens[token.id], sessions[token.id] = token, SessionRow(**values)  # type: ignore[arg-type]
    return Family(tokens, sessions)


@dataclass
class Rounds:
    """Random rounds with one family. ``bills`` are what the provider bills for each attempt that it was sent."""

    rng: random.Random
    family: Family
    bills: dict[str, tuple[CallKey, int, int]] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)
    settled: list[Settle] = field(default_factory=list)
    waiting: dict[str, AdmitOperation] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    def run(self) -> None:
        rng, living = self.rng, self.living()
        if not living or rng.random() < 0.01:
            self.family.workers[f"w{len(self.family.workers)}"] = WorkerRow(is_alive=True, lost_calls=0)
        actions = [
            (45, self.admit),
            (30, self.end),
            (6, self.repeat),
            (6, self.retry_waiting),
            (4, self.cancel),
            (5, self.kill_or_revive),
            (3, self.sweep),
            (1, self.close),
        ]
        rng.choices([action for _, action in actions], [weight for weight, _ in actions])[0]()

    def living(self) -> list[str]:
        return [name for name, worker in self.family.workers.items() if worker.is_alive]

    def admit(self) -> None:
        session = self.rng.choice([each for each in self.family.sessions.values() if each.state == "open"] or [None])
        if session is None or not (living := self.living()):
            return
        request = Admit(
            token=self.family.tokens[session.id].text,
            request_id=f"r{self.rng.randrange(12)}",
            attempt_id=f"attempt-{self.rng.getrandbits(64)}",
            target="a",
            body_sha256="body",
            max_cost=self.rng.randrange(1, 2 * CENT),
        )
        awaited = {session.id} if self.rng.random() < 0.05 else ()
        self.ask(AdmitOperation(request, self.rng.choice(living), request.credential(), awaited_payers=awaited))

    def ask(self, operation: AdmitOperation) -> None:
        changes, request = self.family.changes(), operation.request
        self.waiting.pop(request.attempt_id, None)
        try:
            decision = decisions.admit(changes, operation)
        except Fault as refusal:
            self.seen.add(refusal.code)
            decision = None
        self.family.write(changes)
        if isinstance(decision, Deferred):
            self.seen.add(f"{decision.reason.name}{' takeover' * decision.is_takeover}")
            if decision.reason is DeferReason.MONEY:
                self.waiting[request.attempt_id] = operation
        elif isinstance(decision, Admission) and decision.is_grant:
            self.seen.add("granted" if decision.attempt == 1 else "granted again")
            if request.attempt_id not in self.bills:
                assert request.max_cost is not None
                # The provider bills it as soon as it is sent; whether the worker ever hears of it is another question.
                key = (operation.credential.id, request.request_id)
                self.bills[request.attempt_id] = (key, self.rng.randrange(request.max_cost + 1), request.max_cost)
                self.sent.append(request.attempt_id)

    def end(self) -> None:
        if not self.sent:
            return
        attempt = self.sent.pop(self.rng.randrange(len(self.sent)))
        (session_id, request_id), cost, bound = self.bills[attempt]
        outcome, is_known, is_billed = self.rng.choice(ENDS)
        if not is_billed:
            self.bills[attempt] = ((session_id, request_id), 0, bound)
        is_unproven = outcome is AttemptOutcome.THROTTLED and is_billed
        report = Settle(
            session_id=session_id,
            request_id=request_id,
            attempt_id=attempt,
            outcome=outcome,
            cost=cost if is_known else None,
            tries=1,
            unproven=int(is_unproven) or None,
        )
        self.settled.append(report)
        self.settle(report)

    def settle(self, report: Settle) -> None:
        changes = self.family.changes()
        settles.settle(changes, report)
        self.family.write(changes)

    def repeat(self) -> None:
        if self.settled:
            self.settle(self.rng.choice(self.settled))

    def retry_waiting(self) -> None:
        """What fits is granted or refused: none of it waits for money again."""
        rows, line = self.family.rows(), list[MoneyAsk]()
        for attempt_id, operation in self.waiting.items():
            key, cost = (operation.credential.id, operation.request.request_id), operation.request.max_cost
            call = self.family.calls.get(key)
            line.append(MoneyAsk(attempt_id, key[0], cost or 0, call is not None and call.state is CallState.RUNNING))
        for attempt_id in payable(sorted(line, key=lambda each: not each.is_takeover), rows.sessions, rows.lost_costs):
            self.ask(self.waiting[attempt_id])

    def cancel(self) -> None:
        changes = self.family.changes()
        changes.cancel((self.rng.choice(list(self.family.sessions)), f"r{self.rng.randrange(12)}"))
        self.family.write(changes)

    def kill_or_revive(self) -> None:
        name, worker = self.rng.choice(list(self.family.workers.items()))
        running = sum(
            call.incarnation == name for call in self.family.calls.values() if call.state is CallState.RUNNING
        )
        lost_calls = running if worker.is_alive else 0
        self.family.workers[name] = WorkerRow(is_alive=not worker.is_alive, lost_calls=lost_calls)

    def sweep(self) -> None:
        """Calls of workers that are gone end, as at their deadlines; so do reservations of throttled calls."""
        changes = self.family.changes()
        for call in self.family.calls.values():
            if self.rng.random() < 0.2:
                if self.family.is_lost(call):
                    changes.end_lost(call)
                changes.release(call)
        self.family.write(changes)

    def close(self) -> None:
        closed = self.rng.choice(list(self.family.sessions))
        if self.rng.random() < 0.7 and self.family.sessions[closed].parent_id is None:
            return
        self.end_family(closed)
        self.family.sessions[closed] = replace(self.family.sessions[closed], state="closed")

    def end_family(self, root: str) -> None:
        changes = self.family.changes()
        for call in self.family.of_family(root):
            if self.family.is_lost(call):
                changes.end_lost(call)
            changes.release(call)
        self.family.write(changes)

    def check(self) -> None:
        for name, session in self.family.sessions.items():
            calls = self.family.of_family(name)
            reserved = sum(call.cost for call in calls if call.state is CallState.RUNNING)
            unknown = sum(call.cost for call in calls if call.state is not CallState.RUNNING)
            unknown += sum(
                each.cost for each in self.family.attempts.values() if self.family.is_paid_by(each.call[0], name)
            )
            billed = sum(cost for key, cost, _ in self.bills.values() if self.family.is_paid_by(key[0], name))
            shown = session.cost_spent + session.cost_held + session.cost_reserved
            assert session.cost_reserved == reserved
            assert session.cost_held >= unknown
            assert min(session.cost_spent, session.used, unknown) >= 0
            assert session.cost_excess == 0
            assert billed <= shown
            assert session.max_cost is None or shown <= session.max_cost


def test_no_level_of_a_family_is_billed_more_than_it_shows_nor_shows_more_than_its_limit() -> None:
    seen, seed = set[str](), 7
    for family in range(FAMILIES):
        rng = random.Random(f"{seed} {family}")
        rounds = Rounds(rng, family_of_sessions(rng, rng.choice([4, 10, 30]) * CENT))
        for _ in range(ROUNDS // FAMILIES):
            rounds.run()
            rounds.check()
        # All workers are gone, and the root is closed: nothing is reserved any more.
        for name, worker in rounds.family.workers.items():
            rounds.family.workers[name] = worker._replace(is_alive=False)
        rounds.end_family(next(iter(rounds.family.sessions)))
        rounds.check()
        assert all(session.cost_reserved == 0 for session in rounds.family.sessions.values())
        seen |= rounds.seen
    # Each kind of decision was among them.
    assert seen >= {"granted", "granted again", "CALL", "MONEY", "MONEY takeover", "budget_exhausted"}
