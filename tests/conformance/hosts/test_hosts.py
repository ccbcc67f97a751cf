"""What the public driver promises, over any host: a lease from its beginning to its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from conformance.hosts.checked_host import TAGS, CheckedHost
from quintain.errors import NoAnswer
from quintain.remote.factory import RemoteFactory
from quintain.remote.lease import TargetTimeouts
from quintain.target.type_registry import QUINTAIN_TYPES
from support.target_placements import Controller

pytestmark = pytest.mark.every_broker

MANY = 3_000


def controller(answer: Callable[[Any], Awaitable[Any]] | None = None) -> Controller:
    return Controller(QUINTAIN_TYPES, answer)


def set_script(target: Any, *script: list[Any]) -> None:
    target.set_config("script", json.dumps(script))


async def shown(target: Any, *script: list[Any], answer: Callable[[Any], Awaitable[Any]] | None = None) -> list[Any]:
    """What one run of a script showed and asked, in order."""
    set_script(target, *script)
    one = controller(answer)
    await one.drive(target)
    return one.contents()


async def test_a_reset_clears_the_last_run_and_a_lease_begins_anew(remote: RemoteFactory) -> None:
    for _ in range(3):  # there are two slots
        target = remote.create()
        for _ in range(2):
            await shown(target)
        assert [target.query("runs", since=since) for since in ("reset", "lease")] == ["2", "2"]
        await target.reset_ephemeral_state()
        assert [target.query("runs", since=since) for since in ("reset", "lease")] == ["0", "2"]
        await target.teardown()


async def test_events_come_in_order_and_answers_reach_the_target(remote: RemoteFactory) -> None:
    target = remote.create()
    texts = ["", "ü 漢字 🎯", "a\u2028b\u0000c", '{"$": [1]}', {"deep": [None, True, 0, 1.5, "", {}]}, 0, None]
    script = [["emit", "a"], ["ask", "b"], ["emit", "c"], ["ask", "d"], *(["emit", text] for text in texts)]
    set_script(target, *script)
    one = controller()
    await one.drive(target)
    assert [getattr(event, "request", None) or event.content for event in one.seen] == [
        *("a", "b", ["B"], "c", "d", ["D"]),
        *texts,
    ]
    assert {event.security_domain for event in one.seen} <= set(TAGS)
    assert len({event.event_id for event in one.seen}) == len(one.seen)
    await target.teardown()


async def test_several_events_wait_at_once_and_are_answered_in_any_order(remote: RemoteFactory) -> None:
    waiting: dict[str, asyncio.Future[Any]] = {}

    async def answer(event: Any) -> Any:
        waiting[event.request] = asyncio.get_running_loop().create_future()
        if len(waiting) == 3:
            for request in ("c", "a", "b"):
                waiting[request].set_result(None)
        await waiting[event.request]
        return one.injection(event, f"{event.request}!")

    one, target = controller(answer), remote.create()
    set_script(target, ["ask", "a", "b", "c"])
    await asyncio.wait_for(one.drive(target), 20)
    assert one.contents() == ["a", "b", "c", ["a!", "b!", "c!"]]
    await target.teardown()


async def test_many_events_and_large_ones_arrive_once_and_in_order(remote: RemoteFactory) -> None:
    target = remote.create()
    large = "ü" * 400_000
    contents = await shown(target, ["count_to", MANY], ["ask", large])
    assert contents == [*range(1, MANY + 1), large, [large.upper()]]
    await target.teardown()


async def test_what_a_target_raises_ends_the_run_and_not_the_lease(remote: RemoteFactory) -> None:
    target = remote.create()
    with pytest.raises(Exception, match="out of paper"):
        await shown(target, ["emit", "a"], ["fail", "out of paper"], ["emit", "b"])
    assert await shown(target, ["emit", "c"]) == ["c"]
    await target.teardown()


async def test_each_slot_has_one_instance_and_a_third_lease_waits(
    host: CheckedHost, remote: RemoteFactory, broker_url: str
) -> None:
    first, second = remote.create(), remote.create()
    patience = TargetTimeouts(slot_seconds=1)
    with (
        RemoteFactory(host.name, url=broker_url, tags=TAGS, prefetch=0, timeouts=patience) as impatient,
        pytest.raises(NoAnswer),
    ):
        impatient.create()
    for target, count in ((first, 2), (second, 1), (first, 0)):
        for _ in range(count):
            target.query("count")
    assert [target.query("count") for target in (first, second)] == ["3", "2"]
    both = await asyncio.gather(shown(first, ["ask", "a"]), shown(second, ["ask", "b"]))
    assert both == [["a", ["A"]], ["b", ["B"]]]
    third = asyncio.create_task(asyncio.to_thread(remote.create))
    await asyncio.sleep(0.3)
    assert not third.done()
    await first.teardown()
    for target in (await third, second):
        await target.teardown()
