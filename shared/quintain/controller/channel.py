"""The event channel: events of a run, and the responses of a receiver that works at its own pace in another task.

`EventChannel` is superred's: `send` waits for the response, `receive` gives envelopes, and an envelope is answered
once, from any thread. Nobody waits for a receiver that has ended: `event_channel` tells the senders.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Self

from quintain.controller.scope import require_response
from quintain.runtime.concurrency import cancel_and_wait
from quintain.target import Event, EventResponse


class EventEnvelope:
    """An event that waits for its response; both methods may be called from any thread.

    Example::

        async for envelope in channel:
            envelope.respond(quintain.EventResponse(event=envelope.event))
    """

    __slots__ = ("_future", "_is_settled", "_lock", "event")

    def __init__(self, event: Event, future: asyncio.Future[EventResponse]) -> None:
        self.event = event
        self._future, self._is_settled, self._lock = future, False, threading.Lock()

    def respond(self, response: EventResponse) -> None:
        """Answer the event.

        Raises `TypeError` for a class of response that the event does not take and `ValueError` for a response to
        another event, both also in `EventChannel.send`; and `RuntimeError` if it was answered or rejected before.

        Example::

            event = envelope.event
            envelope.respond(ControllableInjection(event=event, controllable=event.controllable, value="injected text"))
        """
        try:
            require_response(self.event, response)
        except (TypeError, ValueError) as error:
            self.reject(error)
            raise
        if not self._take():
            raise RuntimeError("This event was answered or rejected before")
        self._future.get_loop().call_soon_threadsafe(_resolve, self._future, response)

    def reject(self, error: BaseException) -> None:
        """Raise an exception where the event was sent; does nothing if it was answered or rejected before.

        Example::

            envelope.reject(RuntimeError("The attacker's model did not answer"))
        """
        if self._take():
            self._future.get_loop().call_soon_threadsafe(_resolve, self._future, error)

    def _take(self) -> bool:
        with self._lock:
            was_settled, self._is_settled = self._is_settled, True
        return not was_settled


def _resolve(future: asyncio.Future[EventResponse], outcome: EventResponse | BaseException) -> None:
    # A sender that was cancelled does not wait any more.
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class EventChannel:
    """Passes events to a receiver and its responses back; an async iterator of `EventEnvelope`.

    `send` and `receive` belong to one event loop; `close` and `set_error` may be called from any thread.
    `event_channel` makes one with its receiver.
    """

    def __init__(self) -> None:
        self._queue: asyncio.Queue[EventEnvelope | None] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        #: The events that are not answered yet, received or not.
        self._open: set[EventEnvelope] = set()
        self._error: BaseException | None = None
        self._is_closed, self._lock = False, threading.Lock()

    async def send(self, event: Event) -> EventResponse:
        """Send an event and wait for its response: an ``on_event`` of `LeasedTarget.run`.

        Raises what the receiver rejected it with, `RuntimeError` after `close`, and the error of `set_error`.

        Example::

            await target.run(on_event=channel.send)
        """
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise RuntimeError("Cannot send on a closed EventChannel")
        self._loop = asyncio.get_running_loop()
        envelope = EventEnvelope(event, self._loop.create_future())
        self._open.add(envelope)
        try:
            self._queue.put_nowait(envelope)
            return await envelope._future  # noqa: SLF001 -- of this module
        finally:
            self._open.discard(envelope)

    async def receive(self) -> EventEnvelope | None:
        """Return the next event's envelope, or None once the channel is closed and all events were received.

        Example::

            while (envelope := await channel.receive()) is not None:
                envelope.respond(await answer(envelope.event))
        """
        self._loop = asyncio.get_running_loop()
        envelope = await self._queue.get()
        if envelope is None:
            # The next call is told, too.
            self._queue.put_nowait(None)
        return envelope

    def close(self) -> None:
        """Say that no further event will be sent; those that were sent can still be received and answered.

        Example::

            channel.close()
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._call_in_loop(self._queue.put_nowait, None)

    def set_error(self, error: BaseException) -> None:
        """Close the channel with an exception: it is raised for every event without a response, and by each `send`.

        After `close` only the events without a response are concerned.

        Example::

            channel.set_error(RuntimeError("The attacker has given up"))
        """
        with self._lock:
            if not self._is_closed:
                self._error = error
            self._is_closed = True
        self._call_in_loop(self._reject_open, error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventEnvelope:
        envelope = await self.receive()
        if envelope is None:
            raise StopAsyncIteration
        return envelope

    def _reject_open(self, error: BaseException) -> None:
        for envelope in list(self._open):
            envelope.reject(error)
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(None)

    def _call_in_loop(self, callback: Callable[..., None], *args: object) -> None:
        if self._loop is None:
            callback(*args)
        else:
            self._loop.call_soon_threadsafe(callback, *args)


@contextlib.asynccontextmanager
async def event_channel(receiver: Callable[[EventChannel], Awaitable[None]]) -> AsyncIterator[EventChannel]:
    """Open an event channel with its receiver, a coroutine function that is called with it in a task of its own.

    Leaving the context closes the channel and waits for the receiver; after an exception the receiver is cancelled.
    When the receiver ends in another way, every event without a response is rejected with its error, or a
    `RuntimeError`. Raises at the end what the receiver raised.

    Example::

        async def attack(channel):
            async for envelope in channel:
                envelope.respond(await answer(envelope.event))

        async with quintain.event_channel(attack) as channel:
            await target.run(on_event=channel.send)
    """
    channel = EventChannel()
    task = asyncio.create_task(_receive(receiver, channel))
    try:
        yield channel
    except BaseException:
        await cancel_and_wait(task)
        raise
    channel.close()
    await task


async def _receive(receiver: Callable[[EventChannel], Awaitable[None]], channel: EventChannel) -> None:
    error: BaseException = RuntimeError("The receiver of this event channel has ended, and answers no event any more")
    try:
        await receiver(channel)
    except Exception as raised:
        error = raised
        raise
    finally:
        channel.set_error(error)
