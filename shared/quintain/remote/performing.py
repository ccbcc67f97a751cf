"""One run of a leased instance, on the application's loop: items in order, every event its own task.

It works in callbacks rather than in a task that waits for items: each would cost the loop another turn, and every
turn is in the way of a response.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from quintain.contracts.hosted import LogLine, Said, WireResponse
from quintain.errors import HostLost
from quintain.remote.lease import RemoteLease
from quintain.remote.line import Way
from quintain.remote.run import Ear, Listening
from quintain.routes import CANCEL_RUN, START_RUN
from quintain.target.codec import Codec, write_response


def relay(line: LogLine) -> None:
    """Put a log record of the hosted target into this process's log."""
    logging.getLogger(line.logger).log(line.level, "%s", line.text)


class RemoteRun:
    """One run, from its start to its end or the host's loss."""

    def __init__(  # noqa: PLR0913 -- one run, with all that surrounds it
        self,
        way: Way,
        lease: RemoteLease,
        ear: Ear,
        codec: Codec,
        emit: Callable[[Any], None],
        send_event: Callable[[Any], Any],
        *,
        relay: Callable[[LogLine], None] = relay,
    ) -> None:
        self._way, self._lease, self._ear, self._codec = way, lease, ear, codec
        self._emit, self._send_event, self._relay = emit, send_event, relay
        self._loop = asyncio.get_running_loop()
        # What is emitted and logged is so in the context of whoever runs the target.
        self._context = contextvars.copy_context()
        self._items: deque[Said] = deque()
        self._going = self._heard_end = False
        self._sends: set[asyncio.Task[None]] = set()
        self._listening: Listening | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()

    async def perform(self) -> None:
        """Run. Raises what the target raised, `HostLost`, and whatever the application's own ``emit`` raised."""
        try:
            await self._way.on_line(self._begin())
            await self._ended
        except BaseException:
            if not self._heard_end:
                with contextlib.suppress(HostLost):
                    await self._way.on_line(self._cancel())
            raise
        finally:
            self._items.clear()
            self._going = True
            if not self._ended.cancel() and not self._ended.cancelled():
                self._ended.exception()  # raised already, or nobody's to hear any more
            for send in self._sends:
                send.cancel()
            await asyncio.gather(*self._sends, return_exceptions=True)
            with contextlib.suppress(HostLost):
                await self._way.on_line(self._finish())

    # On the line.

    async def _begin(self) -> None:
        """Listen first, then start."""
        listening = self._listening = Listening(self._lease, partial(self._on_application, self._arrived))
        await self._ear.open(listening)
        self._lease.lost.add_done_callback(self._lost)
        kinds = sorted(self._codec.vocabulary.events)
        await self._lease.ask(START_RUN, run_id=listening.run_id, run_key=self._ear.key, kinds=kinds)

    async def _cancel(self) -> None:
        if self._listening is not None:
            await self._lease.ask(CANCEL_RUN, run_id=self._listening.run_id)

    async def _finish(self) -> None:
        self._lease.lost.remove_done_callback(self._lost)
        if self._listening is not None:
            await self._listening.close()

    def _lost(self, _: asyncio.Future[None]) -> None:
        self._on_application(self._end, self._lease.loss())

    def _on_application(self, act: Callable[..., None], *words: Any) -> None:
        # An application that has ended has no loop left, and hears no more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act, *words, context=self._context)

    # On the application's loop.

    def _arrived(self, items: list[Said]) -> None:
        self._items.extend(items)
        if not self._going:
            self._go_on()

    def _go_on(self) -> None:
        self._going = False
        while self._items and not self._ended.done():
            said = self._items.popleft()
            try:
                sends = self._hear(said)
            except Exception as error:
                # Of the application's own emit, or of an event that cannot be read here: the run's end, either way.
                self._end(error)
                return
            assert self._listening is not None, "what runs is listened to"
            self._listening.dealt_with = said.seq
            if sends:
                # It runs to its first suspension, which records the event, before the next item is heard.
                self._going = True
                self._loop.call_soon(self._go_on)
                return

    def _hear(self, said: Said) -> bool:
        """Deal with one item; returns whether it is an event that is being sent."""
        if said.what == "end":
            self._heard_end = True
            self._end(None if said.failure is None else self._lease.errands.back(said.failure))
        elif said.log is not None:
            self._relay(said.log)
        elif said.event is not None and said.what == "emit":
            # Its time is its arrival here: a host's clock may be an hour off, and files are read in order.
            self._emit(self._codec.event(said.event, timestamp=now()))
        elif said.event is not None:
            task = self._loop.create_task(self._send(said))
            self._sends.add(task)
            task.add_done_callback(self._sends.discard)
            return True
        return False

    def _end(self, error: BaseException | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    async def _send(self, said: Said) -> None:
        assert said.event is not None, "an event is sent"
        assert self._listening is not None, "what runs is listened to"
        try:
            event = self._codec.event(said.event, timestamp=now())
            response = write_response(await self._send_event(event))
        except Exception as error:
            # Whatever the other end of the channel raises is the target's to hear, and comes back as the same object.
            response = WireResponse(failure=self._lease.errands.send(error))
        self._way.tell(self._listening.respond, said.seq, response)


def now() -> datetime:
    """This side's time, naive and local as superred writes it."""
    return datetime.now()  # noqa: DTZ005 -- superred's events carry naive local time, and files compare them
