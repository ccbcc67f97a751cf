"""The gate of a worker's calls: a call that is to be alone has nothing beside it, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from quintain.contracts.ledger import Admission, Admit
from quintain_worker.admissions import CallGate, GateVisit
from support.fake_ledger_service import FakeEvaluator, fake_ledger_service, grant, next_item
from support.quick import timings
from support.running_worker import GatedProvider, next_result, running_worker
from support.waiting import wait_until


class GateDriver:
    """Calls at a gate, by name, in the order in which they entered."""

    def __init__(self, max_wait_seconds: float = 60) -> None:
        self.gate = CallGate(max_wait_seconds)
        self.inside: list[str] = []
        self._calls: dict[str, tuple[asyncio.Task[None], asyncio.Event]] = {}

    async def send(self, name: str, *, alone: bool = False, timeout_seconds: float = 60) -> None:
        """Let a call come to the gate; it stays inside until it is ended."""
        ended, visit = asyncio.Event(), GateVisit()

        async def call() -> None:
            try:
                await self.gate.enter(visit, timeout_seconds)
                if alone:
                    await self.gate.enter_alone(visit, timeout_seconds)
                self.inside.append(name)
                await ended.wait()
            finally:
                self.gate.leave(visit)

        self._calls[name] = asyncio.create_task(call()), ended
        await settle()

    async def end(self, name: str) -> None:
        """End a call that is inside."""
        self.inside.remove(name)
        self._calls[name][1].set()
        await settle()

    async def cancel(self, name: str) -> None:
        """Cancel a call that waits."""
        self._calls[name][0].cancel()
        await settle()

    async def wait_inside(self, *names: str) -> None:
        await wait_until(lambda: self.inside == [*names])

    async def close(self) -> None:
        for task, _ in self._calls.values():
            task.cancel()
        await asyncio.gather(*(task for task, _ in self._calls.values()), return_exceptions=True)


async def settle() -> None:
    """Let every task come to where it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def gate_driver(max_wait_seconds: float = 60) -> AsyncIterator[GateDriver]:
    driver = GateDriver(max_wait_seconds)
    try:
        yield driver
    finally:
        await driver.close()
    # Whatever happened, the gate counts nobody any more.
    visit = GateVisit()
    async with asyncio.timeout(1):
        await driver.gate.enter(visit, 60)
        await driver.gate.enter_alone(visit, 60)


async def test_a_call_alone_waits_for_the_others_and_they_for_it() -> None:
    async with gate_driver() as gate:
        await gate.send("a")
        await gate.send("b")
        await gate.send("alone", alone=True)
        await gate.send("c")
        assert gate.inside == ["a", "b"]
        await gate.end("a")
        assert gate.inside == ["b"]
        await gate.end("b")
        assert gate.inside == ["alone"]
        await gate.end("alone")
        assert gate.inside == ["c"]


async def test_calls_alone_come_one_after_another_and_starve_no_other() -> None:
    async with gate_driver() as gate:
        await gate.send("first", alone=True)
        await gate.send("second", alone=True)
        await gate.send("other")
        assert gate.inside == ["first"]
        await gate.end("first")
        assert gate.inside == ["other"]
        await gate.send("late")
        await gate.end("other")
        assert gate.inside == ["second"]
        await gate.end("second")
        assert gate.inside == ["late"]


async def test_two_calls_that_run_and_are_both_to_be_alone_do_not_wait_for_each_other() -> None:
    async with gate_driver() as gate:
        visits = [GateVisit(), GateVisit()]
        for visit in visits:
            await gate.gate.enter(visit, 60)
        waiting = [asyncio.create_task(gate.gate.enter_alone(visit, 60)) for visit in visits]
        await settle()
        assert [task.done() for task in waiting] == [True, False]
        gate.gate.leave(visits[0])
        await waiting[1]
        gate.gate.leave(visits[1])


@pytest.mark.parametrize("is_inside", [True, False])
async def test_a_call_alone_that_is_cancelled_keeps_nobody_out(is_inside: bool) -> None:
    async with gate_driver() as gate:
        if not is_inside:
            await gate.send("a")
        await gate.send("alone", alone=True)
        await gate.send("b")
        await gate.cancel("alone")
        assert "b" in gate.inside


async def test_a_call_that_is_cancelled_at_the_gate_is_not_waited_for() -> None:
    async with gate_driver() as gate:
        await gate.send("first", alone=True)
        await gate.send("second", alone=True)
        await gate.send("other")
        await gate.cancel("other")
        await gate.end("first")
        assert gate.inside == ["second"]


async def test_nobody_is_kept_out_for_longer_than_the_longest_wait() -> None:
    async with gate_driver(max_wait_seconds=0.02) as gate:
        await gate.send("a")
        await gate.send("alone", alone=True)
        await gate.wait_inside("a", "alone")
        await gate.send("b")
        await gate.wait_inside("a", "alone", "b")


async def test_a_call_whose_deadline_passes_does_not_wait_on() -> None:
    async with gate_driver() as gate:
        await gate.send("first", alone=True)
        await gate.send("second", alone=True, timeout_seconds=0.02)
        await gate.send("other", timeout_seconds=0.02)
        await gate.wait_inside("first", "other", "second")


async def test_a_worker_that_stops_keeps_nobody_out() -> None:
    async with gate_driver() as gate:
        await gate.send("first", alone=True)
        await gate.send("second", alone=True)
        await gate.send("other")
        gate.gate.open()
        await gate.wait_inside("first", "other", "second")
        await gate.send("third", alone=True)
        await gate.wait_inside("first", "other", "second", "third")


async def test_a_call_to_be_alone_does_not_wait_for_those_that_the_ledger_lets_wait() -> None:
    waiting, suspect = GatedProvider(), GatedProvider()
    suspect.open.clear()

    def decide(admit: Admit) -> Admission | str:
        if admit.request_id == "r-waiting":
            return "held"
        must_be_alone = not admit.alone
        return Admission(attempt_id=admit.attempt_id, must_be_alone=True) if must_be_alone else grant(admit)

    async with fake_ledger_service(decide) as ledger:
        evaluators = [FakeEvaluator(ledger.bus, name) for name in "ab"]
        for evaluator in evaluators:
            await evaluator.start()
        async with running_worker(ledger, waiting, suspect, timings=timings(admit_repeat_seconds=20)):
            await evaluators[0].send_request("waiting")
            held = await next_item(ledger.admits)
            await evaluators[1].send_request("suspect")
            await next_item(suspect.requests)
            # What is granted meanwhile runs after the call that is alone.
            await ledger.answer_last_admit(grant(held))
            await asyncio.sleep(0.05)  # what must not happen now would
            assert waiting.requests.empty()
            suspect.open.set()
            assert [(await next_result(evaluator)).raw_text for evaluator in evaluators] == ["yes", "yes"]


async def test_a_worker_asks_again_when_nothing_runs_and_admits_nothing_beside_the_call() -> None:
    first, second, events = GatedProvider(), GatedProvider(), list[str]()
    first.open.clear()
    second.open.clear()

    def decide(admit: Admit) -> Admission:
        events.append(f"asked {admit.request_id}{' alone' if admit.alone else ''}")
        is_suspect = admit.request_id == "r-suspect" and not admit.alone
        return Admission(attempt_id=admit.attempt_id, must_be_alone=True) if is_suspect else grant(admit)

    async with fake_ledger_service(decide) as ledger:
        evaluators = [FakeEvaluator(ledger.bus, name) for name in "ab"]
        for evaluator in evaluators:
            await evaluator.start()
        async with running_worker(ledger, first, second, timings=timings(admit_repeat_seconds=20)):
            await evaluators[0].send_request("running")
            await next_item(first.requests)
            await evaluators[1].send_request("suspect")
            asked = [await next_item(ledger.admits) for _ in range(2)]
            await asyncio.sleep(0.05)  # what must not happen now would
            events.append("running ends")
            first.open.set()
            await next_item(second.requests)
            asked.append(await next_item(ledger.admits))
            await evaluators[0].send_request("late")
            await asyncio.sleep(0.05)
            events.append("suspect ends")
            second.open.set()
            assert (await next_result(evaluators[1])).raw_text == "yes"
            assert [(await next_result(evaluators[0])).raw_text for _ in range(2)] == ["yes", "yes"]
    assert asked[1].attempt_id == asked[2].attempt_id
    assert events == [
        "asked r-running",
        "asked r-suspect",
        "running ends",
        "asked r-suspect alone",
        "suspect ends",
        "asked r-late",
    ]
