"""Copies of the messages of calls that wait for a quota: they wait beside their calls, and go on where these end."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from quintain.contracts.ledger import AttemptOutcome
from quintain.contracts.quota import RateReport, TryOutcome, TryReport
from support.queue_driver import QueueDriver, memory_queue_driver

THROTTLED = TryReport(outcome=TryOutcome.THROTTLED, rates=RateReport(retry_after_seconds=1))


@pytest.fixture
async def desk() -> AsyncIterator[QueueDriver]:
    """A queue whose quota takes one call at a time; the worker ``w1`` runs one, and ``w2`` gets copies."""
    async with memory_queue_driver() as desk:
        for worker in ("w1", "w2"):
            await desk.register("a", incarnation=worker, start=1)
        yield desk


def attempts_of(desk: QueueDriver, name: str) -> list[str]:
    """The attempts that were asked for at this call, in order."""
    return [attempt_id for attempt_id, (_, admit) in desk.asked.items() if admit.request_id == name]


async def test_a_copy_of_a_waiting_call_waits_beside_it_and_keeps_its_place(desk: QueueDriver) -> None:
    assert await desk.admit("first", "second", "third") == ["granted", "waits", "waits"]
    (second,) = attempts_of(desk, "second")
    assert await desk.admit("second", copy_of=second, incarnation="w2") == ["waits"]
    await desk.sweep()
    for running, following in (("first", "second"), ("second", "third")):
        await desk.settle(attempts_of(desk, running)[0])
        assert desk.order[-1] == following
    # The copy is told what its call was answered.
    assert desk.answer(attempts_of(desk, "second")[1]) == "replayed"


async def test_what_is_no_copy_of_the_waiting_attempt_needs_a_slot(desk: QueueDriver) -> None:
    await desk.admit("first", "second", "third")
    (second,) = attempts_of(desk, "second")
    for name, copied in (("second", "forged"), ("third", second)):
        await desk.admit(name, copy_of=copied, incarnation="w2")
        assert desk.answers[attempts_of(desk, name)[-1]].needs_slot


async def test_a_copy_goes_on_once_its_worker_waits_no_more(desk: QueueDriver) -> None:
    await desk.admit("first", "second")
    (second,) = attempts_of(desk, "second")
    await desk.admit("second", copy_of=second, incarnation="w2")
    await desk.settle(second, AttemptOutcome.NEVER_SENT, None)
    assert desk.answers[attempts_of(desk, "second")[1]].needs_slot


async def test_a_copy_goes_on_once_its_worker_does_not_repeat_its_admit(
    desk: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.admit("first", "second")
    (second,) = attempts_of(desk, "second")
    await desk.admit("second", copy_of=second, incarnation="w2")
    lost = desk.queue._waiting.of_calls([(desk.session.session_id, "second")])[:1]
    monkeypatch.setattr(desk.queue._waiting, "requested_before", lambda _: lost)
    await desk.sweep()
    assert desk.answers[attempts_of(desk, "second")[1]].needs_slot


async def test_a_copy_of_a_throttled_call_waits_for_its_next_attempt(desk: QueueDriver) -> None:
    await desk.admit("call")
    (first,) = attempts_of(desk, "call")
    assert await desk.admit("call", copy_of=first, incarnation="w2") == ["waits"]
    await desk.settle(first, AttemptOutcome.THROTTLED, THROTTLED)
    await desk.sweep()
    # Its worker asks again, and whoever has another copy of the first attempt asks then.
    assert await desk.admit("call") == ["waits"]
    await desk.admit("call", copy_of=first, incarnation="w2")
    await desk.sweep()
    assert desk.answers.keys() == {first}
    desk.now += 5
    await desk.sweep()
    again = attempts_of(desk, "call")[2]
    assert desk.answer(again) == "granted"
    await desk.settle(again)
    assert desk.answer(attempts_of(desk, "call")[1]) == "replayed"


async def test_a_copy_of_a_throttled_call_whose_worker_asks_no_more_goes_on(
    desk: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.admit("call")
    (first,) = attempts_of(desk, "call")
    await desk.admit("call", copy_of=first, incarnation="w2")
    monkeypatch.setattr(desk.queue._copies, "_held_admit_seconds", 0.0)
    await desk.settle(first, AttemptOutcome.THROTTLED, THROTTLED)
    await desk.sweep()
    assert desk.answers[attempts_of(desk, "call")[1]].needs_slot
