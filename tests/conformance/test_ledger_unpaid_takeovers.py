"""Calls of lost workers that cannot be paid again: they end at once, with a word that is true of their charge."""

from __future__ import annotations

import pytest

from conformance.clocked_ledger_driver import ClockedLedgerDriver
from conformance.test_ledger_money import CENT, amounts, settle, settle_with, told
from quintain.contracts.ledger import AttemptOutcome
from quintain.contracts.session import PauseTarget
from quintain_metadata.ledger import targets
from quintain_metadata.ledger.decisions import Deferred


async def test_a_take_over_that_cannot_be_paid_waits_neither_for_its_target_nor_to_be_alone(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    driver = ledger_driver
    session = await driver.open_session(max_cost_usd=0.05)
    for worker in ("w1", "w2"):  # of calls that were lost twice each would have to be alone
        for call in ("r1", "r2"):
            await driver.admit_granted(session, call, by=worker, max_cost=CENT)
        driver.clock_ahead_ms += 20_000
        await driver.register(f"w{int(worker[1]) + 1}")
    pause = PauseTarget(target="a", for_seconds=60)
    await driver.ledger.transact(lambda moment: targets.pause_target(driver.with_clock(moment).now, pause))
    for call, copied in (("r1", None), ("r2", "attempt-4")):
        fault = await driver.admit_fault(session, call, by="w3", max_cost=2 * CENT, copy_of=copied)
        assert (fault.code, fault.charged) == ("worker_lost", True)
    assert await amounts(driver, session) == {"held": 4 * CENT}
    assert await driver.audit_findings() == ()


async def test_lost_calls_that_cannot_be_paid_end_although_nobody_takes_them_over(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    """All workers may be busy with calls that wait for what the lost ones reserve."""
    driver = ledger_driver
    payable, unpayable = await driver.open_session(max_cost_usd=0.04), await driver.open_session(max_cost_usd=0.03)
    for session in (payable, unpayable):
        for call in ("r1", "r2"):
            await told(driver, session, call)
        driver.clock_ahead_ms += 1_000
    await driver.sweep()
    assert await amounts(driver, unpayable) == {"reserved": 2 * CENT}
    driver.clock_ahead_ms += 20_000
    await driver.register("w2")
    attempt = await driver.admit_granted(unpayable, "r3", by="w2", max_cost=CENT)
    await settle(driver, settle_with(unpayable, "r3", attempt.attempt_id, AttemptOutcome.RESULT, CENT // 2))
    assert isinstance(await driver.admit(unpayable, "r4", by="w2", max_cost=CENT), Deferred)
    await driver.sweep()
    assert await amounts(driver, payable) == {"reserved": 2 * CENT}
    assert await amounts(driver, unpayable) == {"spent": CENT // 2, "held": 2 * CENT}
    fault = await driver.admit_fault(unpayable, "r1", by="w2", max_cost=CENT)
    assert (fault.code, fault.charged) == ("worker_lost", True)
    assert await told(driver, unpayable, "r4") == "budget_exhausted"
    assert await driver.audit_findings() == ()


@pytest.mark.parametrize("refused", [{"cost_problem": "no price of a"}, {"max_cost": CENT, "body_bytes": 2**24}])
async def test_a_take_over_that_is_refused_says_that_its_call_was_charged(
    ledger_driver: ClockedLedgerDriver, refused: dict[str, object]
) -> None:
    session = await ledger_driver.open_session(max_cost_usd=0.05)
    await told(ledger_driver, session, "r1")
    ledger_driver.clock_ahead_ms += 20_000
    await ledger_driver.register("w2")
    fault = await ledger_driver.admit_fault(session, "r1", by="w2", **refused)
    assert (fault.code, fault.charged) == ("worker_lost", True)
    assert (await ledger_driver.info(session)).in_doubt == 1
