"""The event channel with its receiver: each end of either side reaches the other one. `tests/superred` has the rest."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from quintain.controller.channel import EventChannel, EventEnvelope, event_channel
from quintain.target import (
    Controllable,
    ControllableInjection,
    ControllablePreCallEvent,
    Event,
    EventResponse,
    SecurityDomainTag,
)

QUESTION = Controllable("question", SecurityDomainTag("user"))


def question(request: str) -> ControllablePreCallEvent:
    return ControllablePreCallEvent(controllable=QUESTION, request=request)


def answered(event: Event, value: str) -> EventResponse:
    return ControllableInjection(event=event, controllable=QUESTION, value=value)


async def echo(channel: EventChannel) -> None:
    async for envelope in channel:
        envelope.respond(answered(envelope.event, "echo"))


async def test_a_receiver_answers_at_its_own_pace_and_in_its_own_order() -> None:
    async def backwards(channel: EventChannel) -> None:
        envelopes = [await channel.receive() for _ in range(3)]
        for number, envelope in enumerate(reversed(envelopes)):
            assert envelope is not None
            envelope.respond(answered(envelope.event, str(number)))
        assert await channel.receive() is None
        assert await channel.receive() is None

    async with event_channel(backwards) as channel:
        responses = await asyncio.gather(*(channel.send(question(text)) for text in "abc"))
    assert [getattr(each, "value", None) for each in responses] == ["2", "1", "0"]
    with pytest.raises(RuntimeError, match="closed"):
        await channel.send(question("late"))


async def test_a_thread_answers() -> None:
    async def hand_over(channel: EventChannel) -> None:
        async for envelope in channel:
            threading.Thread(target=envelope.respond, args=[answered(envelope.event, "from a thread")]).start()

    async with event_channel(hand_over) as channel:
        assert getattr(await channel.send(question("a")), "value", None) == "from a thread"


async def test_what_the_receiver_raises_reaches_the_senders_and_the_end() -> None:
    async def fail_at_the_second(channel: EventChannel) -> None:
        first, _ = await channel.receive(), await channel.receive()
        assert first is not None
        first.respond(answered(first.event, "the only one"))
        raise LookupError("no idea")

    with pytest.raises(LookupError, match="no idea"):
        async with event_channel(fail_at_the_second) as channel:
            results = await asyncio.gather(*(channel.send(question(text)) for text in "abc"), return_exceptions=True)
            assert getattr(results[0], "value", None) == "the only one"
            assert [type(result) for result in results[1:]] == [LookupError, LookupError]
            with pytest.raises(LookupError):
                await channel.send(question("d"))


async def test_a_receiver_that_returns_early_is_told_to_the_senders() -> None:
    async def return_at_once(channel: EventChannel) -> None:
        await channel.receive()

    async with event_channel(return_at_once) as channel:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="receiver of this event channel has ended"):
                await channel.send(question("a"))


async def test_a_receiver_that_ends_after_the_close_is_told_to_who_still_waits() -> None:
    held: list[EventEnvelope] = []

    async def hold(channel: EventChannel) -> None:
        async for envelope in channel:
            held.append(envelope)

    async with event_channel(hold) as channel:
        waiting = asyncio.create_task(channel.send(question("a")))
        while not held:
            await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="has ended"):
        await waiting
    with pytest.raises(RuntimeError, match="before"):
        held[0].respond(answered(held[0].event, "too late"))


async def test_an_exception_of_the_run_cancels_the_receiver() -> None:
    ended = asyncio.Event()

    async def never_ends(channel: EventChannel) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(LookupError):
        async with event_channel(never_ends):
            await asyncio.sleep(0)
            raise LookupError
    assert ended.is_set()


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda event: EventResponse(event=event), TypeError),
        (lambda event: "only a text", TypeError),
        (lambda event: answered(question("another"), "x"), ValueError),
    ],
)
async def test_a_wrong_answer_is_an_error_on_both_sides(make: Any, error: type[Exception]) -> None:
    async def answer_wrongly(channel: EventChannel) -> None:
        async for envelope in channel:
            with pytest.raises(error):
                envelope.respond(make(envelope.event))
            with pytest.raises(RuntimeError):
                envelope.respond(answered(envelope.event, "mended too late"))
            envelope.reject(LookupError("of no effect"))

    async with event_channel(answer_wrongly) as channel:
        with pytest.raises(error):
            await channel.send(question("a"))


async def test_an_answer_for_nobody_is_dropped() -> None:
    received: list[EventEnvelope] = []

    async def hold(channel: EventChannel) -> None:
        async for envelope in channel:
            received.append(envelope)

    async with event_channel(hold) as channel:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(channel.send(question("a")), 0.01)
        received[0].respond(answered(received[0].event, "late"))
        await asyncio.sleep(0)
