"""Quotas in the ledger of either kind: what workers register, what an administrator sets, and which calls use them."""

from __future__ import annotations

from quintain.contracts.fleet import SetQuota
from quintain.contracts.headers import PROTOCOL_VERSION
from quintain.contracts.ledger import Register, TargetCard
from quintain.contracts.quota import QuotaCard, QuotaTerms
from quintain_metadata.ledger import call_rows, leases, targets
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


async def test_what_runs_is_read_and_what_does_not_run_any_more(driver: Driver) -> None:
    session = await driver.open_session()
    granted = [await driver.admit_granted(session, name) for name in ("r1", "r2")]
    running = await driver.transact(lambda _: targets.running_calls())
    assert {call[2] for call in running} == {each.attempt_id for each in granted}
    asked = [*(call[:3] for call in running), (session.session_id, "r3", "another")]
    assert await driver.transact(lambda _: call_rows.read_ended(asked)) == [(session.session_id, "r3")]
    await driver.settle(session, "r1", granted[0].attempt_id)
    ended = await driver.transact(lambda _: call_rows.read_ended(asked))
    assert {request_id for _, request_id in ended} == {"r1", "r3"}
