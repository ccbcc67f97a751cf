"""The SDK for programs that are not asynchronous: the same interface, its own event loop on a thread in the background.

    with quintain.sync.connect() as target:
        print(target.invoke("What is the capital of France?").raw_text)

It works wherever a thread does, inside a running event loop (Jupyter) too. Any number of threads may ask at the same
time. Ctrl-C takes the call back that was waited for. What is left open is closed when the program ends.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self, TypeVar

from quintain.client import connect as over
from quintain.client.client import DEFAULT_DEADLINE_SECONDS, BatchItem
from quintain.client.evaluator import Asked, Evaluator
from quintain.contracts import metadata
from quintain.contracts.invoke import ChatMessage, InvokeRequest, InvokeSettings, Result
from quintain.errors import BusError

Returned = TypeVar("Returned")

#: What connects, called on the loop's own thread.
Connecting = Callable[[], AbstractAsyncContextManager[Evaluator]]

#: The end of a call that was taken back, and of the connection, are waited for so long, in seconds.
END_SECONDS = 10.0


def connect(url: str | None = None, token: str | None = None, *, timeout_seconds: float = 30.0) -> SyncEvaluator:
    """A session's client, connected and proven; close it, or use it in a ``with``.

    ``url`` and ``token`` come from the environment as with `quintain.connect`, and the same errors are raised.
    """
    return SyncEvaluator(lambda: over.connect(url, token, timeout_seconds=timeout_seconds))


class SyncEvaluator:
    """One session's right to call: `quintain.Evaluator`, each method of which waits for its answer."""

    def __init__(self, connecting: Connecting) -> None:
        self._connected: concurrent.futures.Future[Evaluator] = concurrent.futures.Future()
        self._closing = asyncio.Event()
        self._calls: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        # A daemon: a program that ends without closing is not kept alive by it, but closes it on its way out.
        self._thread = threading.Thread(target=self._run, args=(connecting,), name="quintain", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        try:
            self._evaluator = self._connected.result()
        except BaseException:
            self.close()
            raise

    def invoke(
        self,
        question: str | None = None,
        *,
        target: str | None = None,
        system_prompt: str | None = None,
        messages: Sequence[ChatMessage] | None = None,
        settings: InvokeSettings | None = None,
    ) -> Result:
        """Ask a target (the session's default where none is named). Raises a `Fault`."""
        return self._wait(
            self._evaluator.invoke(
                question, target=target, system_prompt=system_prompt, messages=messages, settings=settings
            )
        )

    def send(
        self,
        request: InvokeRequest,
        *,
        request_id: str | None = None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    ) -> Result:
        """Ask with a whole request. The same ``request_id`` is the same call: charged once, answered alike."""
        return self._wait(self._evaluator.send(request, request_id=request_id, deadline_seconds=deadline_seconds))

    def invoke_batch(
        self, requests: Sequence[Asked], *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS
    ) -> list[BatchItem]:
        """Ask all at once, answers in order; the budget is reserved all or nothing (`BudgetExhausted`)."""
        return self._wait(self._evaluator.invoke_batch(requests, deadline_seconds=deadline_seconds))

    def get_info(self, *, per_target: bool = False) -> metadata.Info:
        """The session, its counters and the targets it may call; and what went to which, where that is asked for."""
        return self._wait(self._evaluator.get_info(per_target=per_target))

    def open_child(self, ask: metadata.OpenSession) -> metadata.SessionOpened:
        """Open a session that may only narrow this one and draws on its budget."""
        return self._wait(self._evaluator.open_child(ask))

    def close(self) -> None:
        """Close the connection; what other threads still wait for is taken back. Nothing happens the second time."""
        atexit.unregister(self.close)
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(END_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self, work: Coroutine[Any, Any, Returned]) -> Returned:
        """The outcome of this work, done on the loop's thread; whatever interrupts the waiting cancels the work."""
        if self._closing.is_set() or not self._thread.is_alive():  # a forked process has no thread but its own
            work.close()
            raise BusError("This client is closed: connect again with quintain.sync.connect()")
        asked = asyncio.run_coroutine_threadsafe(self._tracked(work), self._loop)
        try:
            return asked.result()
        except concurrent.futures.CancelledError:
            raise BusError("This client was closed before the answer came") from None
        except BaseException:
            asked.cancel()
            raise

    async def _tracked(self, work: Coroutine[Any, Any, Returned]) -> Returned:
        task = asyncio.current_task()
        assert task is not None, "a coroutine that runs is a task"
        self._calls.add(task)
        try:
            return await work
        finally:
            self._calls.discard(task)

    def _run(self, connecting: Connecting) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._live(connecting))
        except BaseException as error:
            if not self._connected.done():
                self._connected.set_exception(error)

    async def _live(self, connecting: Connecting) -> None:
        """Connect, and stay connected until somebody closes: then this task is cancelled, wherever it is."""
        living = asyncio.current_task()
        assert living is not None, "a coroutine that runs is a task"
        closing = asyncio.ensure_future(self._closing.wait())
        closing.add_done_callback(lambda _: living.cancel())
        async with connecting() as evaluator:
            self._connected.set_result(evaluator)
            try:
                await asyncio.Event().wait()
            finally:
                # What is still asked is taken back while there is a connection to do it by.
                for call in self._calls:
                    call.cancel()
                await asyncio.gather(*self._calls, return_exceptions=True)
