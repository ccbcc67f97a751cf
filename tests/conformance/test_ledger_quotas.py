"""Quotas in the ledger of either kind: what workers register, what an administrator sets, and which calls use them."""

from __future__ import annotations

from quintain.contracts.fleet import SetQuota
from quintain.contracts.headers import PROTOCOL_VERSION
from quintain.contracts.ledger import Register, TargetCard
from quintain.contracts.quota import QuotaCard, QuotaTerms
from quintain_metadata.ledger import leases
from quintain_metadata.quotas import quota_rows
from support.ledger_driver import Driver


def quota(**terms: object) -> QuotaCard:
    return QuotaCard(id="key", name="team", terms=QuotaTerms.model_validate(terms))


async def read(driver: Driver) -> quota_rows.QuotaRegistration:
    found, _ = await driver.transact(quota_rows.read_quotas)
    return found["key"]


async def test_the_smallest_numbers_of_live_workers_count_and_what_is_set_goes_before_them(driver: Driver) -> None:
    await driver.register("w1", limit=7, quota=quota(requests_per_minute=100, max=50))
    await driver.register("w2", limit=7, quota=quota(requests_per_minute=60.5, max=80))
    read_quota = await read(driver)
    assert (read_quota.name, read_quota.targets) == ("team", {"a": 7})
    assert (read_quota.terms.requests_per_minute, read_quota.terms.max) == (60.5, 50)
    for fields in ({"requests_per_minute": 200.5}, {"concurrency": 90}):
        request = SetQuota.model_validate({"quota": "team", "reason": "more was bought", **fields})
        settings = await driver.transact(lambda moment, ask=request: quota_rows.set_quota(moment, ask))  # type: ignore[misc]
    assert (settings.requests_per_minute, settings.concurrency) == (200.5, 90)
    info = await driver.info(await driver.open_session(allowed_targets=["a", "b"]))
    assert info.quotas == {"a": "team"}
    terms = (await read(driver)).terms
    assert (terms.requests_per_minute, terms.max, terms.start) == (200.5, 90, 20)


async def test_a_quota_that_nobody_names_has_as_many_in_flight_as_its_targets_allow_together(driver: Driver) -> None:
    limits = {"a": 4000, "b": 100}
    for quota_id, expected in (("key:0", 4100), ("team", QuotaTerms().max)):
        implied = QuotaCard(id=quota_id, name="x", terms=QuotaTerms())
        cards = [
            TargetCard(name=name, provider="mock", max_concurrency=most, quota=implied) for name, most in limits.items()
        ]
        for incarnation, own in (("w1", cards), ("w2", cards[:1])):
            request = Register(worker_id=incarnation, incarnation=incarnation, targets=own, protocol=PROTOCOL_VERSION)
            await driver.transact(
                lambda moment, request=request: leases.register_worker(moment.now, request)  # type: ignore[misc]
            )
        found, _ = await driver.transact(quota_rows.read_quotas)
        assert found[quota_id].terms.max == expected
    few = quota_rows.QuotaRegistration("x", is_implied=True, registered=[QuotaTerms()], targets={"a": 3, "b": 4})
    assert (few.terms.start, few.terms.max) == (7, 7)


async def test_attempts_of_lost_workers_and_ended_calls_run_no_more(driver: Driver) -> None:
    session = await driver.open_session()
    granted = [await driver.admit_granted(session, name) for name in ("r1", "r2")]
    running = await driver.transact(lambda _: quota_rows.read_running(["a"]))
    assert {call.attempt_id for call in running} == {each.attempt_id for each in granted}
    asked = [(call.session_id, call.request_id, call.attempt_id) for call in running]
    asked.append((session.session_id, "r1", "another"))

    async def lost() -> set[str]:
        return await driver.transact(lambda moment: quota_rows.read_lost(moment, asked))

    assert await lost() == {"another"}
    driver.clock_ahead_ms += 60_000
    assert await lost() == {"another", *(each.attempt_id for each in granted)}
