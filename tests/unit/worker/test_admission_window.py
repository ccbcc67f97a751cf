"""Many admits of one worker: a window of them is under way, and silence is counted from the last answer to any."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Admission, Admit
from quintain.errors import BudgetUnavailable, Expired
from quintain.rpc.requests import RpcClient
from quintain.timings import Clock
from quintain_worker import admissions
from quintain_worker.admissions import AdmissionClient
from support.fake_ledger_service import FakeLedgerService, fake_ledger_service, grant
from support.quick import timings

WINDOW = 4

SILENCE_SECONDS = 0.3


class ManyAdmits:
    """A worker's admission client with a window of `WINDOW`, and its ledger."""

    def __init__(self, ledger: FakeLedgerService) -> None:
        self.ledger = ledger
        self.rpc_client = RpcClient(ledger.bus)
        quick = timings(admit_repeat_seconds=0.03, ledger_silence_seconds=SILENCE_SECONDS, deadline_grace_seconds=0.1)
        self.client = AdmissionClient(ledger.bus, self.rpc_client, Clock(), "w1", quick)

    def admit(self, number: int, *, seconds: float = 5) -> asyncio.Task[Admission | None]:
        request = Admit(token="t", request_id=f"r{number}", attempt_id=f"a{number}", target="a", body_sha256="b")
        loop = asyncio.get_running_loop()
        return loop.create_task(self.client.admit(request, ends_at=loop.time() + seconds))


@pytest.fixture
async def many_admits(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ManyAdmits]:
    monkeypatch.setattr(admissions, "MAX_UNDER_WAY", WINDOW)
    async with fake_ledger_service() as ledger:
        many = ManyAdmits(ledger)
        await many.rpc_client.start()
        many.client.start()
        yield many


async def test_a_ledger_that_is_slower_than_its_silence_admits_all_and_has_few_at_a_time(
    many_admits: ManyAdmits,
) -> None:
    loop = asyncio.get_running_loop()
    asked, granted = set[str](), set[str]()
    free_at = loop.time()

    def one_at_a_time(ask: Admit) -> Admission | None:
        nonlocal free_at
        asked.add(ask.attempt_id)
        assert len(asked - granted) <= WINDOW
        if loop.time() < free_at:
            return None
        free_at = loop.time() + 0.02
        granted.add(ask.attempt_id)
        return grant(ask)

    many_admits.ledger.admit_policy = one_at_a_time
    began = loop.time()
    answers = await asyncio.gather(*(many_admits.admit(number) for number in range(30)))
    assert all(answers)
    assert loop.time() - began > 1.5 * SILENCE_SECONDS


async def test_any_answer_of_a_metadata_service_ends_the_silence(many_admits: ManyAdmits) -> None:
    many_admits.ledger.admit_policy = lambda _: None
    waiting = many_admits.admit(1)
    for _ in range(10):
        await asyncio.sleep(SILENCE_SECONDS / 5)
        many_admits.client.note_renewal(None)
    assert not waiting.done()
    with pytest.raises(BudgetUnavailable):
        await waiting


async def test_what_is_held_makes_room_for_the_next(many_admits: ManyAdmits) -> None:
    many_admits.ledger.admit_policy = lambda ask: "held" if ask.attempt_id != "a9" else grant(ask)
    held = [many_admits.admit(number) for number in range(9)]
    assert await many_admits.admit(9) is not None
    assert not any(task.done() for task in held)
    many_admits.client.stop()
    assert await asyncio.gather(*held) == [None] * 9


async def test_behind_the_window_there_is_only_the_deadline(many_admits: ManyAdmits) -> None:
    many_admits.ledger.admit_policy = lambda _: None
    first = [many_admits.admit(number) for number in range(WINDOW)]
    behind = many_admits.admit(WINDOW, seconds=2)
    for waiting in first:
        with pytest.raises(BudgetUnavailable):
            await waiting
    many_admits.ledger.admit_policy = grant
    assert await behind is not None


async def test_at_the_deadline_the_ledger_is_asked_for_its_word(many_admits: ManyAdmits) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 0.2

    def decide(ask: Admit) -> Admission | str:
        if loop.time() < deadline:
            return "held"
        return Admission(attempt_id=ask.attempt_id, fault=FaultReply.from_fault(Expired("the ledger's word")))

    many_admits.ledger.admit_policy = decide
    admission = await many_admits.admit(1, seconds=0.2)
    assert admission is not None
    assert admission.fault is not None
    assert (admission.fault.charged, admission.fault.charge_unknown) == (False, None)
