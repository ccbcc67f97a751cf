"""One run of a hosted instance: what the target is given, and how its end becomes the controller's.

`emit` and `send_event` may be called from the target's loop and from threads of its own; both enter one ordered way
out. What superred raises at the call is raised at the call here: an event without a domain, a class that nobody
registered, a run that is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable
from typing import Any

from quintain import logs
from quintain.contracts.hosted import LogLine, RunHears, StartRun, WireResponse
from quintain.target.codec import Codec, write_event
from quintain.target.failures import failure_of, raised
from quintain.telemetry.conventions import hosted, sent_event
from quintain.telemetry.spans import joining, traceparent
from quintain_host.stage import Stage
from quintain_host.telling import OVER, Telling

#: The run whose target is speaking, for its log records.
current_run: contextvars.ContextVar[HostedRun | None] = contextvars.ContextVar("current_run", default=None)

#: Who waits for a response: the loop, its future, and the event that was sent.
Waiting = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Any]


class HostedRun:
    """A run, from its start to the moment its end was heard."""

    def __init__(self, target: Any, stage: Stage, codec: Codec, ask: StartRun, telling: Telling) -> None:
        self._target, self._stage, self._codec = target, stage, codec
        self._kinds = frozenset(ask.kinds)
        self._telling = telling
        self._waiting: dict[int, Waiting] = {}
        self._over = False
        self._end = "cancelled"
        self.run_id = ask.run_id
        self._task = asyncio.get_running_loop().create_task(self._live(), name=f"run {ask.run_id}")

    # What the target is given.

    def emit(self, event: Any) -> None:
        """Record an event, one way."""
        self._check(event)
        self._telling.say("emit", event=write_event(event))

    async def send_event(self, event: Any) -> Any:
        """Send an event and wait for its response."""
        self._check(event)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        mine = 0

        def numbered(number: int) -> None:
            nonlocal mine
            mine = number
            self._waiting[number] = (loop, answer, event)

        self._telling.say("send", event=write_event(event), numbered=numbered)
        try:
            with joining(sent_event(type(event).__name__), traceparent()):
                return await answer
        finally:
            self._waiting.pop(mine, None)

    def _check(self, event: Any) -> None:
        if self._over:
            raise RuntimeError(OVER)
        if event.security_domain is None:
            raise ValueError(f"{type(event).__name__} has no security_domain: nobody could say who may see it")
        if type(event).__name__ not in self._kinds:
            raise TypeError(
                f"Event type {type(event).__name__!r} is not registered with the controller: "
                "pass it to remote_factory(events=[...])"
            )

    def log(self, line: LogLine) -> None:
        """Say a log record, where the run still speaks."""
        if not self._over:
            with contextlib.suppress(RuntimeError):
                self._telling.say("log", line=line)

    # What the host does with it.

    def hear(self, heard: RunHears) -> None:
        """Take in responses, and how far the controller has come."""
        for answered in heard.answers:
            waiting = self._waiting.pop(answered.seq, None)
            if waiting is not None:
                self._respond(waiting, answered.response)
        self._telling.hear(heard.heard, again=heard.again)

    def _respond(self, waiting: Waiting, said: WireResponse) -> None:
        loop, answer, event = waiting
        response: Any = None
        error: BaseException | None = None
        try:
            if said.failure is None:
                response = self._codec.response(said, event)
            else:
                error = raised(said.failure)
        except Exception as mistake:
            # A response nobody can read is the target's to hear, as an error of this send.
            error = mistake
        # The loop may be one of the target's own, and may have ended.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, answer, response, error)

    def cancel(self) -> None:
        """Whoever awaited this run has gone."""
        self._over = True
        self._telling.stop()
        self._task.cancel()

    def when_over(self, heard: Callable[[str], None]) -> None:
        """Tell how it ended, once it has: ``ended``, ``failed`` or ``cancelled``."""
        self._task.add_done_callback(lambda _: heard(self._end))

    async def ended(self) -> None:
        """Wait for the run's end, and until it was heard; never raises."""
        await asyncio.gather(self._task, return_exceptions=True)

    async def _live(self) -> None:
        try:
            failure = None
            try:
                with joining(hosted("run", self.run_id), traceparent()), logs.about(run_id=self.run_id):
                    await self._stage.play(self._perform())
                self._end = "ended"
            except Exception as error:
                # Whatever a target raises is its run's end, and crosses with its class.
                failure, self._end = failure_of(error), "failed"
            self._over = True
            self._telling.end(failure)
            await self._telling.ended()
        finally:
            self._over = True
            await self._telling.close()

    async def _perform(self) -> None:
        current_run.set(self)
        await self._target.run(self.emit, self.send_event)


def _settle(answer: asyncio.Future[Any], response: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(response)
    else:
        answer.set_exception(error)
