"""Quotas in the ledger of either kind: what workers register, what an administrator sets, and which calls use them."""

from __future__ import annotations

from conformance.clocked_ledger_driver import ClockedLedgerDriver
from quintain.contracts.fleet import SetQuota
from quintain.contracts.headers import PROTOCOL_VERSION
from quintain.contracts.ledger import Register, TargetCard
from quintain.contracts.quota import QuotaCard, QuotaTerms
from quintain_metadata.ledger import leases
from quintain_metadata.quotas import quota_rows


async def register(driver: ClockedLedgerDriver, incarnation: str, **terms: object) -> None:
    quota = QuotaCard(id="key", name="team", terms=QuotaTerms.model_validate(terms))
    card = TargetCard(name="a", provider="mock", max_concurrency=7, quota=quota)
    request = Register(worker_id=incarnation, incarnation=incarnation, targets=[card], protocol=PROTOCOL_VERSION)
    await driver.ledger.transact(lambda moment: leases.register_worker(driver.with_clock(moment).now, request))


async def read(driver: ClockedLedgerDriver) -> quota_rows.QuotaRegistration:
    found, _ = await driver.ledger.transact(lambda moment: quota_rows.read_quotas(driver.with_clock(moment)))
    return found["key"]


async def test_the_smallest_numbers_of_live_workers_count_and_what_is_set_goes_before_them(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    await register(ledger_driver, "w1", requests_per_minute=100, max=50)
    await register(ledger_driver, "w2", requests_per_minute=60.5, max=80)
    quota = await read(ledger_driver)
    assert (quota.name, quota.targets) == ("team", {"a": 7})
    assert (quota.terms.requests_per_minute, quota.terms.max) == (60.5, 50)
    for fields in ({"requests_per_minute": 200.5}, {"concurrency": 90}):
        request = SetQuota.model_validate({"quota": "team", "reason": "more was bought", **fields})
        settings = await ledger_driver.ledger.transact(
            lambda moment, request=request: quota_rows.set_quota(moment, request)  # type: ignore[misc]
        )
    assert (settings.requests_per_minute, settings.concurrency) == (200.5, 90)
    info = await ledger_driver.info(await ledger_driver.open_session(allowed_targets=["a", "b"]))
    assert info.quotas == {"a": "team"}
    terms = (await read(ledger_driver)).terms
    assert (terms.requests_per_minute, terms.max, terms.start) == (200.5, 90, 20)


async def test_attempts_of_lost_workers_and_ended_calls_run_no_more(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    granted = [await ledger_driver.admit_granted(session, name) for name in ("r1", "r2")]
    running = await ledger_driver.ledger.transact(lambda _: quota_rows.read_running(["a"]))
    assert {call.attempt_id for call in running} == {each.attempt_id for each in granted}
    asked = [(call.session_id, call.request_id, call.attempt_id) for call in running]
    asked.append((session.session_id, "r1", "another"))

    async def lost() -> set[str]:
        return await ledger_driver.ledger.transact(
            lambda moment: quota_rows.read_lost(ledger_driver.with_clock(moment), asked)
        )

    assert await lost() == {"another"}
    ledger_driver.clock_ahead_ms += 60_000
    assert await lost() == {"another", *(each.attempt_id for each in granted)}
