"""A failed try, and the next one of its call: when it begins, and what its worker is told of those before it."""

from __future__ import annotations

import pytest

from quintain.contracts.ledger import Admission, AttemptOutcome
from quintain.contracts.quota import QuotaCard, QuotaTerms, RateReport, TryOutcome, TryReport
from quintain.contracts.session import SessionOpened
from quintain_metadata.ledger.decisions import DeferReason, Deferred
from support.ledger_driver import Driver


async def retry(driver: Driver, session: SessionOpened, *, seconds: float = 0, counts: bool = True) -> None:
    granted = await driver.admit_granted(session, "r1")
    told = {"retry_after_ms": int(seconds * 1000), "is_counted": counts or None}
    await driver.settle(session, "r1", granted.attempt_id, AttemptOutcome.RETRY, **told)


async def test_the_next_try_waits_for_its_time_whoever_asks(driver: Driver) -> None:
    session = await driver.open_session()
    await retry(driver, session, seconds=5)
    await driver.register("w2")
    waits = await driver.admit(session, "r1", by="w2")
    assert isinstance(waits, Deferred)
    assert waits.reason is DeferReason.RETRY
    driver.clock_ahead_ms += 5_000
    again = await driver.admit(session, "r1", by="w2")
    assert isinstance(again, Admission)
    assert (again.is_grant, again.tries) == (True, 1)
    assert (await driver.info(session)).call_count == 1


async def test_tries_that_do_not_count_are_not_told(driver: Driver) -> None:
    session = await driver.open_session()
    for counts in (True, False, True):
        await retry(driver, session, counts=counts)
    assert (await driver.admit_granted(session, "r1")).tries == 2


@pytest.mark.parametrize("end", [AttemptOutcome.REFUND, AttemptOutcome.RETRY], ids=["refunded", "released"])
async def test_a_call_that_ended_uncharged_begins_anew(driver: Driver, end: AttemptOutcome) -> None:
    session = await driver.open_session()
    await retry(driver, session)
    granted = await driver.admit_granted(session, "r1")
    await driver.settle(session, "r1", granted.attempt_id, end, is_counted=True)
    if end is AttemptOutcome.RETRY:
        driver.clock_ahead_ms += 10**7
        await driver.sweep()
        await driver.register("w1")
        assert await driver.reserve(session, ["r1"], seconds=10**5 / 4) == 1
    assert (await driver.admit_granted(session, "r1")).tries == 0


@pytest.mark.parametrize(("seconds", "has_quota", "pauses"), [(30, False, True), (2, False, False), (30, True, False)])
async def test_what_a_provider_asks_for_pauses_its_target_unless_that_has_a_quota(
    driver: Driver, seconds: int, has_quota: bool, pauses: bool
) -> None:
    session = await driver.open_session()
    quota = QuotaCard(id="q", name="team", terms=QuotaTerms()) if has_quota else None
    await driver.register("w1", quota=quota)
    granted = await driver.admit_granted(session, "r1")
    report = TryReport(outcome=TryOutcome.THROTTLED, rates=RateReport(retry_after_seconds=seconds))
    await driver.settle(session, "r1", granted.attempt_id, AttemptOutcome.RETRY, report=report)
    assert list(await driver.paused()) == (["a"] if pauses else [])
