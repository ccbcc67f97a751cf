"""Attempts that are lost with their workers: which of them count."""

from __future__ import annotations

import pytest

from quintain.contracts.ledger import Admission, Admit, AttemptOutcome
from quintain.contracts.session import SessionOpened
from quintain_metadata.ledger import calls
from quintain_metadata.ledger.decisions import AdmitOperation
from quintain_metadata.ledger.lifecycle import MAX_ATTEMPTS, MAX_UNCOUNTED_ATTEMPTS
from support.ledger_driver import Driver, counters

LEASE_MS = 16_000


class Losses:
    """Runs calls at one worker after another, each of which is lost."""

    def __init__(self, driver: Driver, session: SessionOpened) -> None:
        self.driver, self.session, self.workers = driver, session, 1

    async def run(self, *names: str) -> list[Admission]:
        """Grant these calls to the worker of now."""
        by = f"w{self.workers}"
        return [await self.driver.admit_granted(self.session, name, by=by) for name in names]

    async def lose_worker(self) -> None:
        """Let the worker's lease lapse; the next one registers."""
        self.workers += 1
        self.driver.clock_ahead_ms += LEASE_MS
        await self.driver.register(f"w{self.workers}")

    async def lose(self, *names: str) -> list[Admission]:
        """Grant these calls to a worker, which is then lost."""
        granted = await self.run(*names)
        await self.lose_worker()
        return granted

    async def count_until_lost(self, name: str) -> int:
        """Lose the call alone until it may have no further attempt; returns how many more attempts it had."""
        for attempts in range(MAX_ATTEMPTS + MAX_UNCOUNTED_ATTEMPTS):
            admission = await self.driver.admit(self.session, name, by=f"w{self.workers}")
            assert isinstance(admission, Admission)
            if admission.fault is not None:
                assert (admission.fault.code, admission.fault.charged) == ("worker_lost", True)
                return attempts
            await self.lose_worker()
        raise AssertionError("there is no end of attempts")


@pytest.fixture
async def losses(driver: Driver) -> Losses:
    return Losses(driver, await driver.open_session())


async def test_a_call_that_ends_its_workers_is_lost_and_its_neighbour_is_answered(losses: Losses) -> None:
    driver, session = losses.driver, losses.session
    for _ in range(2):
        await losses.lose("poison", "neighbour")
    assert await losses.count_until_lost("poison") == MAX_ATTEMPTS
    (grant,) = await losses.run("neighbour")
    assert (grant.attempt, grant.unproven) == (3, True)
    await driver.settle(session, "neighbour", grant.attempt_id, AttemptOutcome.RESULT)
    found = counters(await driver.info(session))
    assert (found["used"], found["committed"], found["in_doubt"]) == (2, 1, 1)
    assert await driver.audit_findings() == ()


async def test_attempts_that_are_lost_in_company_count_from_the_fifth_on(losses: Losses) -> None:
    # The figures of docs/reliability.md: three attempts, and up to four that do not count.
    for _ in range(4):
        await losses.lose("r1", "r2")
    for number in range(3):
        first, _ = await losses.lose("r1", "r2")
        assert first.attempt == 4 + number + 1
    assert [await losses.count_until_lost(name) for name in ("r1", "r2")] == [0, 0]


async def test_the_calls_of_a_lost_worker_are_in_company_until_the_last_of_them_is_taken_over(losses: Losses) -> None:
    await losses.lose("r1", "r2")
    await losses.run("r1")
    await losses.lose_worker()
    await losses.run("r2")
    await losses.lose_worker()
    # Each had one attempt that does not count, and one that does.
    assert [await losses.count_until_lost(name) for name in ("r1", "r2")] == [MAX_ATTEMPTS - 1] * 2


async def test_a_call_that_ended_with_its_worker_was_company(losses: Losses) -> None:
    deadline = await losses.driver.ledger.now() + LEASE_MS // 2
    await losses.driver.admit_granted(losses.session, "r1", deadline=deadline)
    await losses.lose("r2")
    assert await losses.driver.sweep() == 1
    assert await losses.count_until_lost("r2") == MAX_ATTEMPTS


async def test_calls_of_any_target_are_company(losses: Losses) -> None:
    await losses.driver.admit_granted(losses.session, "other", target="b")
    await losses.lose("r1")
    assert await losses.count_until_lost("r1") == MAX_ATTEMPTS


async def test_a_worker_that_is_back_and_lost_again_is_counted_anew(losses: Losses) -> None:
    await losses.lose("r1", "r2")
    await losses.run("r2")
    await losses.driver.renew("w1")
    await losses.lose_worker()
    # It ran one call when it was lost for good: that attempt counts.
    assert await losses.count_until_lost("r1") == MAX_ATTEMPTS - 1


async def test_calls_that_are_taken_over_together_have_been_company(losses: Losses) -> None:
    driver, names = losses.driver, [f"r{number}" for number in range(6)]
    await losses.lose(*names)

    admits = [
        Admit(token=losses.session.token, request_id=name, attempt_id=f"of {name}", target="a", body_sha256="body")
        for name in names
    ]
    operations = [AdmitOperation(admit, "w2", admit.credential()) for admit in admits]
    outcomes = await driver.transact(lambda moment: calls.run_batch(moment, operations))
    assert [isinstance(outcome, Admission) and outcome.attempt for outcome in outcomes] == [2] * len(names)
    await losses.lose_worker()
    # Twice in company: none of it counts.
    assert [await losses.count_until_lost(name) for name in names[::5]] == [MAX_ATTEMPTS] * 2
