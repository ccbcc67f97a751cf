"""A target's promise, kept in process and behind RabbitMQ alike: whoever drives it cannot tell where it stands."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from support.target_placements import (
    Controller,
    InProcessPlacement,
    RemotePlacement,
    TargetPlacement,
    scripted_target_class,
    target_interfaces,
    types_of,
)
from support.waiting import wait_until

Emit = Callable[[Any], None]
Send = Callable[[Any], Awaitable[Any]]


@pytest.fixture(params=["in process", "behind RabbitMQ"])
def placement_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=target_interfaces())
async def placement(request: pytest.FixtureRequest, placement_name: str) -> AsyncIterator[TargetPlacement]:
    kind, words = scripted_target_class(request.param), types_of(request.param)
    stand: TargetPlacement = InProcessPlacement(kind, words, [])
    if placement_name == "behind RabbitMQ":
        stand = RemotePlacement(
            kind, words, request.getfixturevalue("thread_target_host"), request.getfixturevalue("connection_thread")
        )
    yield stand
    await stand.close()


# Order.


async def test_what_is_said_while_a_request_waits_comes_after_it(placement: TargetPlacement) -> None:
    async def script(target: Any, emit: Emit, send: Send) -> None:
        emit(target.observation_event("a"))
        asking = asyncio.create_task(send(target.request_event("b")))
        await asyncio.sleep(0)
        emit(target.observation_event("c"))
        await asking

    came = asyncio.Event()

    async def answer(event: Any) -> Any:
        await wait_until(lambda: len(controller.seen) >= 3)
        came.set()
        return controller.injection(event)

    controller = Controller(placement.types, answer)
    await controller.drive(placement.create(script))
    assert came.is_set()
    assert controller.contents() == ["a", "b", "c"]


# Requests.


async def test_a_response_carries_the_very_event_and_the_very_controllable(placement: TargetPlacement) -> None:
    async def script(target: Any, emit: Emit, send: Send) -> None:
        event = target.request_event("a")
        response = await send(event)
        target.notes = [response.event is event, response.controllable is target.question]

    await Controller(placement.types).drive(placement.create(script))
    assert placement.instances[-1].notes == [True, True]


async def test_a_target_that_waits_no_longer_may_go_on_and_the_late_answer_harms_nobody(
    placement: TargetPlacement,
) -> None:
    async def script(target: Any, emit: Emit, send: Send) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await send(target.request_event("slow"))
        target.notes = [(await send(target.request_event("fast"))).value]

    release = asyncio.Event()

    async def answer(event: Any) -> Any:
        if event.request == "slow":
            await release.wait()
        else:
            release.set()
            await asyncio.sleep(0.05)
        return controller.injection(event)

    controller = Controller(placement.types, answer)
    await controller.drive(placement.create(script))
    assert placement.instances[-1].notes == ["FAST"]


# What an event carries.


async def test_content_is_what_it_was_when_it_was_said(placement: TargetPlacement, placement_name: str) -> None:
    async def script(target: Any, emit: Emit, send: Send) -> None:
        content = ["then"]
        emit(target.observation_event(content))
        content.append("later")

    controller = Controller(placement.types)
    await controller.drive(placement.create(script))
    # In process it goes by reference, and nobody promises anything; over the wire it is a snapshot.
    assert controller.seen[0].content == (["then", "later"] if placement_name == "in process" else ["then"])


# What is refused.


async def test_an_event_without_a_domain_is_refused_in_the_target(placement: TargetPlacement) -> None:
    async def script(target: Any, emit: Emit, send: Send) -> None:
        bare = target.types.events["Event"]()
        with pytest.raises(ValueError, match="security_domain"):
            emit(bare)
        with pytest.raises(ValueError, match="security_domain"):
            await send(bare)
        target.notes = ["went on"]

    controller = Controller(placement.types)
    await controller.drive(placement.create(script))
    assert placement.instances[-1].notes == ["went on"]
    assert controller.seen == []


async def test_what_is_said_after_the_end_is_refused(placement: TargetPlacement) -> None:
    async def script(target: Any, emit: Emit, send: Send) -> None:
        target.saved = (emit, send)

    controller = Controller(placement.types)
    await controller.drive(placement.create(script))
    target = placement.instances[-1]
    emit, send = target.saved
    with pytest.raises(RuntimeError, match="closed trajectory"):
        emit(target.observation_event("late"))
    with pytest.raises(RuntimeError, match="closed trajectory"):
        await send(target.request_event("late"))
    assert controller.seen == []


# What goes wrong.


async def test_what_a_run_raises_keeps_its_class_and_its_words(placement: TargetPlacement) -> None:
    error = LookupError("l")

    async def script(target: Any, emit: Emit, send: Send) -> None:
        emit(target.observation_event("so far"))
        raise error

    controller = Controller(placement.types)
    with pytest.raises(type(error)) as caught:
        await controller.drive(placement.create(script))
    assert type(caught.value) is type(error)
    assert str(caught.value) == str(error)
    assert controller.contents() == ["so far"]


async def test_what_the_controllers_side_raises_passes_the_target_and_comes_back_as_the_same_object(
    placement: TargetPlacement,
) -> None:
    class Broken(Exception):
        pass

    error = Broken("the optimizer is broken")

    async def script(target: Any, emit: Emit, send: Send) -> None:
        await send(target.request_event("a"))

    async def answer(event: Any) -> Any:
        raise error

    with pytest.raises(Broken) as caught:
        await Controller(placement.types, answer).drive(placement.create(script))
    assert caught.value is error


# Logs.


async def test_what_a_target_logs_reaches_its_controllers_log_in_its_tasks_context(placement: TargetPlacement) -> None:
    whose: contextvars.ContextVar[str] = contextvars.ContextVar("whose", default="nobody's")
    heard: list[tuple[str, str, str, int]] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append((whose.get(), record.name, record.getMessage(), record.levelno))

    async def script(target: Any, emit: Emit, send: Send) -> None:
        logging.getLogger("bot").warning("thinking of %s", "cats")
        await asyncio.to_thread(logging.getLogger("bot.tool").error, "from a thread")

    async def driven(name: str) -> None:
        whose.set(name)
        await Controller(placement.types).drive(placement.create(script))

    ear = Ear()
    logging.getLogger().addHandler(ear)
    try:
        await asyncio.gather(asyncio.create_task(driven("anne's")), asyncio.create_task(driven("bob's")))
    finally:
        logging.getLogger().removeHandler(ear)
    told = {name: [line[1:] for line in heard if line[0] == name] for name in ("anne's", "bob's")}
    wanted = [("bot", "thinking of cats", logging.WARNING), ("bot.tool", "from a thread", logging.ERROR)]
    assert told == {"anne's": wanted, "bob's": wanted}
