"""What an administrator does to targets and workers: the same on every store."""

from __future__ import annotations

import pytest

from conformance.ledger_desk import Desk
from quintain.contracts.ledger import Drain, Heartbeat, LeaseRenewed, Outcome, Register, TargetCard
from quintain.contracts.operating import PauseTarget, ResumeTarget, TargetPause, WorkerList
from quintain.errors import BadRequest, UnknownTarget
from quintain_metadata import drains, targets, upkeep
from quintain_metadata.records import Held


async def pause(desk: Desk, seconds: float, target: str = "a") -> TargetPause:
    ask = PauseTarget(target=target, for_seconds=seconds)
    return await desk.ledger.do(lambda moment: targets.pause(desk.at(moment).now, ask))


async def resume(desk: Desk, target: str = "a") -> TargetPause:
    ask = ResumeTarget(target=target)
    return await desk.ledger.do(lambda moment: targets.resume(desk.at(moment).now, ask))


async def drain(desk: Desk, worker: str) -> WorkerList:
    return await desk.ledger.do(lambda moment: drains.ask(desk.at(moment).now, worker))


async def begin(desk: Desk, worker: str, *, incarnation: str = "", able: Drain | None = Drain.ABLE) -> LeaseRenewed:
    card = TargetCard(name="a", provider="mock", max_concurrency=64)
    ask = Register(worker_id=worker, incarnation=incarnation or worker, targets=[card], drain=able)
    return await desk.ledger.do(lambda moment: upkeep.register(desk.at(moment).now, ask))


async def beat(desk: Desk, worker: str, *, incarnation: str = "", drain: Drain | None = None) -> bool:
    """Whether this heartbeat's answer asks the worker to drain."""
    ask = Heartbeat(worker_id=worker, incarnation=incarnation or worker, drain=drain)
    return (await desk.ledger.do(lambda moment: upkeep.renew(desk.at(moment).now, ask))).drain is True


async def known(desk: Desk) -> dict[str, tuple[Drain, int]]:
    """How far each known process is, and what it runs."""
    told = await desk.ledger.do(lambda moment: drains.registered(desk.at(moment).now))
    return {one.incarnation: (one.drain, one.running) for one in told.workers}


async def test_a_target_that_is_paused_by_an_administrator_starts_nothing_until_it_is_resumed(desk: Desk) -> None:
    session = await desk.open()
    paused = await pause(desk, 600)
    assert paused.paused_until == paused.now + 600_000
    assert (await desk.renew("w1")).paused == {"a": paused.paused_until}
    assert isinstance(await desk.admit(session, "r1"), Held)
    assert (await resume(desk)).paused_until is None
    assert (await desk.renew("w1")).paused is None
    await desk.granted(session, "r1")


async def test_of_a_providers_pause_and_an_administrators_the_later_end_counts_and_resume_ends_both(desk: Desk) -> None:
    await desk.renew("w1", pauses={"a": 20_000})
    longer = await pause(desk, 60)
    assert longer.paused_until == longer.now + 60_000
    assert (await pause(desk, 1)).paused_until == longer.paused_until
    assert (await desk.renew("w1", pauses={"a": 30_000})).paused == {"a": longer.paused_until}
    await resume(desk)
    assert (await desk.renew("w1")).paused is None
    # What the provider asks for afterwards is a new pause.
    assert list((await desk.renew("w1", pauses={"a": 5_000})).paused or {}) == ["a"]


async def test_an_unknown_target_is_told_with_those_there_are(desk: Desk) -> None:
    for unknown in (pause(desk, 60, "b"), resume(desk, "b")):
        with pytest.raises(UnknownTarget, match=r"^Unknown target 'b'\. Available: a") as refusal:
            await unknown
        assert "a" in (refusal.value.available_targets or [])


async def test_a_worker_hears_that_it_is_to_drain_until_it_says_that_it_does(desk: Desk) -> None:
    for worker in ("one", "other"):
        assert (await begin(desk, worker)).drain is None
        assert not await beat(desk, worker)
    session = await desk.open()
    grant = await desk.granted(session, "r1", by="one")
    (asked,) = (await drain(desk, "one")).workers
    assert (asked.worker_id, asked.drain, asked.running) == ("one", Drain.ASKED, 1)
    assert [await beat(desk, "one") for _ in range(2)] == [True, True]
    assert (await begin(desk, "one")).drain is True  # registered again, it is asked as before
    assert not await beat(desk, "one", drain=Drain.DRAINING)
    (draining,) = (await drain(desk, "one")).workers  # asked again, nothing begins anew
    assert (draining.drain, draining.running) == (Drain.DRAINING, 1)
    await desk.settle(session, "r1", grant.attempt_id, Outcome.RESULT)
    await beat(desk, "one", drain=Drain.DRAINED)
    await beat(desk, "one", drain=Drain.DRAINING)  # a word that comes late takes nothing back
    assert not await beat(desk, "other")
    assert await known(desk) == {"one": (Drain.DRAINED, 0), "other": (Drain.ABLE, 0), "w1": (Drain.UNABLE, 0)}
    desk.ahead = 16_000
    assert await known(desk) == {"one": (Drain.DRAINED, 0)}


async def test_a_process_that_follows_under_the_same_id_is_not_the_one_that_was_asked(desk: Desk) -> None:
    await begin(desk, "pod-1", incarnation="first")
    await drain(desk, "pod-1")
    await begin(desk, "pod-1", incarnation="second")
    assert await beat(desk, "pod-1", incarnation="first")
    assert not await beat(desk, "pod-1", incarnation="second")
    told = await known(desk)
    assert (told["first"][0], told["second"][0]) == (Drain.ASKED, Drain.ABLE)


async def test_who_cannot_be_asked_to_drain_is_told_with_the_reason_and_with_those_who_live(desk: Desk) -> None:
    await begin(desk, "embedded", able=Drain.UNABLE)
    for unable in ("embedded", "w1"):
        with pytest.raises(BadRequest, match=f"Worker '{unable}' does not drain .* `quintain up`"):
            await drain(desk, unable)
    with pytest.raises(BadRequest, match="No worker 'nobody' lives; there are embedded, w1$"):
        await drain(desk, "nobody")
    assert not await beat(desk, "embedded")
    desk.ahead = 16_000
    with pytest.raises(BadRequest, match="No worker 'w1' lives; none lives: start one with `quintain serve worker`"):
        await drain(desk, "w1")
