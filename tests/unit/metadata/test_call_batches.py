"""Admits and settles that run together come to what they come to one after another."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import pytest

from quintain.contracts.credentials import SessionToken
from quintain.contracts.headers import PROTOCOL_VERSION
from quintain.contracts.invoke import FaultReply, OutputMessage, Result, TokenUsage
from quintain.contracts.ledger import Admit, AttemptOutcome, Register, Settle, TargetCard
from quintain.contracts.session import AmendSession, OpenSession, SessionState
from quintain.errors import Fault, ProviderFailed
from quintain_metadata import cancellation, leases, replies, reservations, sessions
from quintain_metadata.calls import AdmitOperation, SettleOperation
from quintain_metadata.decisions import Deferred
from quintain_metadata.sqlite import SqliteLedger
from quintain_metadata.store import Moment, Operation, SqlProgram
from support.ledger_operations import assert_ledger_consistent, is_granted

#: The wide session has no limit that is reached here; the others are a parent and its child, which reserves calls.
TOKENS = {name: SessionToken.mint() for name in ("wide", "parent", "child", "narrow", "paused", "unknown")}
NOW = 1_700_000_000_000
DEADLINE = NOW + 600_000
OUTCOMES = [AttemptOutcome.RESULT] * 4 + [*AttemptOutcome]

TABLES = ("call", "attempt", "session", "reply", "running_calls")


@pytest.fixture(autouse=True)
def fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintain_metadata.sqlite._now_ms", lambda: NOW)


def open_sessions(moment: Moment) -> SqlProgram[None]:
    open_one = partial(sessions.open_session, moment.now)
    yield from open_one(OpenSession(default_target="a", max_calls=1000), TOKENS["wide"], None)
    parent = OpenSession(default_target="a", max_calls=6, store_replies=False)
    yield from open_one(parent, TOKENS["parent"], None)
    owner = yield from sessions.require_session(TOKENS["parent"].id)
    child = OpenSession(default_target="a", max_calls=5, reserve=2)
    yield from open_one(child, TOKENS["child"], owner)
    narrow = OpenSession(default_target="a", max_calls=3, allowed_targets=["a"])
    yield from open_one(narrow, TOKENS["narrow"], None)
    yield from open_one(OpenSession(default_target="a", max_calls=3), TOKENS["paused"], None)
    amendment = AmendSession(session_id=TOKENS["paused"].id, state=SessionState.PAUSED)
    yield from sessions.amend_session(moment.now, amendment)


@contextlib.asynccontextmanager
async def opened_ledger() -> AsyncIterator[SqliteLedger]:
    ledger = SqliteLedger(":memory:", asyncio.get_running_loop())
    limits = {"a": 8, "b": 1000}
    cards = [TargetCard(name=name, provider="mock", max_concurrency=limit) for name, limit in limits.items()]
    request = Register(worker_id="w1", incarnation="w1", targets=cards, protocol=PROTOCOL_VERSION)
    await ledger.transact(lambda moment: leases.register_worker(moment.now, request))
    await ledger.transact(open_sessions)
    yield ledger
    await ledger.close()


def admit_request(token: SessionToken, request_id: str, attempt_id: str, **fields: Any) -> Admit:
    given = {"target": "a", "body_sha256": request_id, "deadline": DEADLINE, **fields}
    return Admit(token=token.text, request_id=request_id, attempt_id=attempt_id, **given)


def settle_request(session_id: str, request_id: str, attempt_id: str, outcome: AttemptOutcome, text: str) -> Settle:
    is_result = outcome is AttemptOutcome.RESULT
    reply = Result(output=[OutputMessage(content=text)], target="a", call_count=1, max_calls=1)
    return Settle(
        session_id=session_id,
        request_id=request_id,
        attempt_id=attempt_id,
        outcome=outcome,
        reply=reply if is_result else None,
        fault=None if is_result else FaultReply.from_fault(ProviderFailed("it broke", charged=True)),
        token_usage=TokenUsage(input=len(text), output=2, cached=1) if text else None,
    )


class RandomCalls:
    """Draws batches of admits and settles, of few calls and few attempts, so that they meet each other."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._attempts: list[tuple[str, str, str]] = []
        self._outcomes: dict[str, AttemptOutcome] = {}

    def admits(self) -> list[AdmitOperation]:
        return [self._admit() for _ in range(self._random.randint(1, 8))]

    def settles(self) -> list[SettleOperation]:
        drawn = self._random.choices(self._attempts or [("s", "r", "a")], k=self._random.randint(1, 8))
        return [SettleOperation(self._settle(*each)) for each in drawn]

    def _settle(self, session_id: str, request_id: str, attempt_id: str) -> Settle:
        # An attempt ends once; its end may be told again.
        outcome = self._outcomes.setdefault(attempt_id, self._random.choice(OUTCOMES))
        text = self._random.choice(["", "yes"])
        return settle_request(session_id, request_id, attempt_id, outcome, text)

    def request_ids(self) -> list[str]:
        return sorted({f"r{self._random.randint(0, 40)}" for _ in range(3)})

    def _admit(self) -> AdmitOperation:
        draw = self._random
        name = draw.choice(["wide"] * 8 + ["parent", "child"] * 3 + ["narrow"] * 2 + ["paused", "unknown"])
        is_repeated = bool(self._attempts) and draw.random() < 0.05
        key = (TOKENS[name].id, f"r{draw.randint(0, 40)}", f"attempt {len(self._attempts)}")
        session_id, request_id, attempt_id = draw.choice(self._attempts) if is_repeated else key
        self._attempts.append((session_id, request_id, attempt_id))
        token = next(token for token in TOKENS.values() if token.id == session_id)
        fields: dict[str, Any] = {}
        if draw.random() < 0.05:
            fields = draw.choice(
                [{"target": "b"}, {"target": "c"}, {"body_sha256": "x"}, {"deadline": 1}, {"body_bytes": 2**40}]
            )
        worker = "w1" if draw.random() < 0.95 else "gone"
        return AdmitOperation(
            admit_request(token, request_id, attempt_id, **fields), worker, after_others=draw.random() < 0.02
        )


def comparable(outcome: Any) -> Any:
    return FaultReply.from_fault(outcome) if isinstance(outcome, Fault) else outcome


def run_alone(operation: Operation[Any], moment: Moment) -> SqlProgram[Any]:
    return operation(moment)


async def one_by_one(ledger: SqliteLedger, operations: Sequence[Operation[Any]]) -> list[Any]:
    return [outcome for each in operations for outcome in await ledger.transact_each([partial(run_alone, each)])]


def contents(ledger: SqliteLedger) -> list[Any]:
    return [list(ledger._connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2")) for name in TABLES]


def reserve_or_cancel(name: str, request_ids: list[str], *, reserves: bool) -> Operation[Any]:
    def steps(moment: Moment) -> SqlProgram[Any]:
        owner = yield from sessions.require_session(TOKENS[name].id)
        if reserves:
            return (yield from reservations.reserve(moment.now, owner, request_ids, DEADLINE))
        return (yield from cancellation.cancel_calls(moment, owner, request_ids))

    return steps


@pytest.mark.parametrize("seed", range(12))
async def test_a_batch_comes_to_what_its_operations_come_to_one_after_another(seed: int) -> None:
    drawn, draw = RandomCalls(seed), random.Random(seed)
    async with opened_ledger() as together, opened_ledger() as alone:
        for _ in range(16):
            if draw.random() < 0.2:
                name, reserves = draw.choice(["wide", "parent", "child"]), draw.random() < 0.7
                operation = reserve_or_cancel(name, drawn.request_ids(), reserves=reserves)
                for ledger in (together, alone):
                    await ledger.transact_each([operation])
            operations: list[Any] = [*drawn.admits(), *drawn.settles()] if draw.random() < 0.3 else drawn.admits()
            for batch in (operations, drawn.settles()):
                expected = [comparable(each) for each in await one_by_one(alone, batch)]
                found = [comparable(each) for each in await together.transact_each(batch)]
                assert found == expected
                assert contents(together) == contents(alone)
        await assert_ledger_consistent(together)


async def test_none_of_the_plain_admits_and_settles_of_a_batch_is_run_by_itself() -> None:
    async with opened_ledger() as ledger:
        admits = [AdmitOperation(admit_request(TOKENS["wide"], f"r{n}", f"a{n}", target="b"), "w1") for n in range(50)]
        settles = [
            SettleOperation(settle_request(TOKENS["wide"].id, f"r{n}", f"a{n}", AttemptOutcome.RESULT, "yes"))
            for n in range(50)
        ]
        executed = list[str]()

        def note(_: object, sql: str, __: object) -> bool:
            executed.append(sql)
            return True

        ledger._cursor.exec_trace = note
        assert all(map(is_granted, await ledger.transact_each(admits)))
        outcomes = await ledger.transact_each(settles)
        assert all(isinstance(each, tuple) and each[1].to == "committed" for each in outcomes)
        assert "SAVEPOINT operation" not in executed, "none was run by itself"
        await assert_ledger_consistent(ledger)


async def test_a_defect_of_the_batch_leaves_its_operations_to_themselves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> Any:
        raise RuntimeError("a defect")

    settle = SettleOperation(settle_request(TOKENS["wide"].id, "r", "a", AttemptOutcome.RESULT, "yes"))
    async with opened_ledger() as ledger:
        await ledger.transact_each([AdmitOperation(admit_request(TOKENS["wide"], "r", "a"), "w1")])
        with monkeypatch.context() as patched:
            # After the first write of the batch.
            patched.setattr(replies, "reply_parameters", broken)
            outcomes = await ledger.transact_each([settle])
        assert isinstance(outcomes[0], RuntimeError)
        assert "run by itself" in caplog.text
        (_, change) = (await ledger.transact_each([settle]))[0]
        assert change.to == "committed"
        await assert_ledger_consistent(ledger)


async def test_what_exceeds_a_limit_is_refused_or_waits_within_one_batch() -> None:
    async with opened_ledger() as ledger:
        admits = [AdmitOperation(admit_request(TOKENS["narrow"], f"n{n}", f"n{n}"), "w1") for n in range(5)]
        admits += [AdmitOperation(admit_request(TOKENS["wide"], f"r{n}", f"a{n}"), "w1") for n in range(9)]
        outcomes = await ledger.transact_each(admits)
        assert [is_granted(each) for each in outcomes] == [True] * 3 + [False] * 2 + [True] * 5 + [False] * 4
        assert all(isinstance(each, Deferred) for each in outcomes[10:])
        await assert_ledger_consistent(ledger)
