"""Whatever happens to services that share a quota: its limit holds, and every call runs in the end."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.contracts.ledger import AttemptOutcome
from quintain.contracts.quota import TryOutcome, TryReport
from support.ledger_driver import admit_request, memory_ledger_driver
from support.quota_services import ClockedLedger, QuotaFleet, QuotaService

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("admit", "admit", "answer", "throttle", "give up", "repeat", "sweep"),
                *("kill", "freeze", "wake", "stop", "lose", "time"),
            ]
        ),
        st.integers(0, 7),
    ),
    max_size=40,
)

THROTTLED = TryReport(outcome=TryOutcome.THROTTLED)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS, limit=st.integers(1, 3))
def test_no_place_is_lost_or_given_twice_whichever_service_dies(steps: list[tuple[str, int]], limit: int) -> None:
    asyncio.run(Run(limit).run(steps))


class Run:
    """Three services at most, one worker at a time, and what happens to them."""

    def __init__(self, limit: int) -> None:
        self.limit, self.started, self.workers = limit, 0, 1
        self.fleet: QuotaFleet

    async def run(self, steps: list[tuple[str, int]]) -> None:
        async with memory_ledger_driver() as driver:
            self.fleet = QuotaFleet(ClockedLedger(driver.ledger), await driver.open_session(max_calls=1000))
            await self.renew()
            await self.start()
            await self.start()
            for step, number in steps:
                await self.step(step, number)
                assert await self.fleet.count_running() <= self.limit
            await self.end()

    @property
    def worker(self) -> str:
        return f"w{self.workers}"

    async def renew(self) -> None:
        await self.fleet.register(worker=self.worker, start=self.limit)

    async def start(self) -> None:
        self.started += 1
        await self.fleet.start_service(f"s{self.started}")

    async def step(self, step: str, number: int) -> None:
        fleet, running = self.fleet, sorted(self.fleet.running)
        service = fleet.living()[number % len(fleet.living())]
        chosen = running[number % len(running)] if running else None
        match step:
            case "admit":
                await fleet.send(service, admit_request(fleet.session, f"r{len(fleet.asked)}"), worker=self.worker)
            case "answer" if chosen:
                await fleet.settle(service, chosen)
            case "throttle" if chosen:
                await fleet.settle(service, chosen, AttemptOutcome.THROTTLED, THROTTLED)
            case "give up" if fleet.waiting():
                admit = fleet.waiting()[number % len(fleet.waiting())]
                await fleet.settle(service, admit.attempt_id, AttemptOutcome.NEVER_SENT, None)
                del fleet.asked[admit.attempt_id]
            case "repeat":
                await self.repeat(number)
            case "sweep":
                await service.sweep()
            case "kill" | "stop":
                if step == "stop":
                    await service.queue.quotas.stop()
                service.is_alive = False
                del fleet.services[service.key]
                await self.start()
            case "freeze":
                await self.freeze(fleet.owner() or service)
            case "wake":
                for frozen in fleet.services.values():
                    frozen.is_alive = True
                await fleet.grant()
            case "lose":
                await self.lose_worker()
            case "time":
                fleet.ledger.ahead_ms += 1000 * number
                await self.renew()

    async def freeze(self, service: QuotaService) -> None:
        """A service stands still for so long that another one takes its quota."""
        service.is_alive = False
        await self.start()
        self.fleet.ledger.ahead_ms += 6000
        await self.renew()
        for other in self.fleet.living():
            await other.sweep()

    async def lose_worker(self) -> None:
        """The worker dies, and what it had not begun is another one's."""
        self.workers += 1
        self.fleet.running.clear()
        await self.renew()
        for number, admit in enumerate(self.fleet.waiting()):
            del self.fleet.asked[admit.attempt_id]
            attempt_id = f"{self.worker}-{number}"
            self.fleet.asked[attempt_id] = admit.model_copy(update={"attempt_id": attempt_id})

    async def repeat(self, number: int) -> None:
        for admit in self.fleet.waiting():
            living = self.fleet.living()
            await self.fleet.send(living[number % len(living)], admit, worker=self.worker)

    async def end(self) -> None:
        """Time goes on, and all that waits is repeated."""
        fleet, is_over, number = self.fleet, False, 0
        while not is_over:
            number += 1
            assert number < 150, "no rate that is learned is so low"
            fleet.ledger.ahead_ms += 1000
            await self.renew()
            for service in fleet.living():
                await service.sweep()
            await self.repeat(number)
            for attempt_id in sorted(fleet.running):
                await fleet.settle(fleet.living()[0], attempt_id)
            assert await fleet.count_running() <= self.limit
            states = [(state.in_flight, state.waiting) for state in fleet.living()[0].queue.quotas.states()]
            is_over = not fleet.waiting() and states == [(0, 0)]
