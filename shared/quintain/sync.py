"""The SDK for programs without asyncio: the methods of `quintain.Client`, run on an event loop in a background thread.

    with quintain.sync.connect() as target:
        print(target.invoke("What is the capital of France?").raw_text)

It also works while an event loop is running (Jupyter), and from several threads at once. Ctrl-C cancels the call that
was waited for. Connections left open are closed when the program exits.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from quintain.client import connect as asynchronous
from quintain.client.client import Client
from quintain.errors import BusError

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

#: What connects, called on the loop's own thread.
ConnectFunction = Callable[[], AbstractAsyncContextManager[Client]]

#: The end of a call that was taken back, and of the connection, are waited for so long, in seconds.
CLOSE_TIMEOUT_SECONDS = 10.0


def connect(url: str | None = None, token: str | None = None, *, timeout_seconds: float = 30.0) -> SyncClient:
    """A session's client, connected and proven; close it, or use it in a ``with``.

    ``url`` and ``token`` come from the environment as with `quintain.connect`, and the same errors are raised.
    """
    return SyncClient(lambda: asynchronous.connect(url, token, timeout_seconds=timeout_seconds))


def _blocking(
    method: Callable[Concatenate[Client, Parameters], Coroutine[Any, Any, Returned]],
) -> Callable[Concatenate[SyncClient, Parameters], Returned]:
    """A method of `Client` as one that blocks, with the same parameters and documentation."""

    @functools.wraps(method)
    def blocking(self: SyncClient, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        return self._run_blocking(method(self._client, *args, **kwargs))

    return blocking


class SyncClient:
    """One session's right to call: the methods of `quintain.Client`, each of which blocks until its answer is there.

    ``heard`` and ``progress`` of `send` are called on the thread in the background.
    """

    def __init__(self, connect_async: ConnectFunction) -> None:
        self._connected: concurrent.futures.Future[Client] = concurrent.futures.Future()
        self._closing = asyncio.Event()
        self._calls: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        # A daemon: a program that ends without closing is not kept alive by it, but closes it on its way out.
        self._thread = threading.Thread(target=self._run_loop, args=(connect_async,), name="quintain", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        try:
            self._client = self._connected.result()
        except BaseException:
            self.close()
            raise

    invoke = _blocking(Client.invoke)
    send = _blocking(Client.send)
    invoke_batch = _blocking(Client.invoke_batch)
    get_info = _blocking(Client.get_info)
    open_child = _blocking(Client.open_child)

    def close(self) -> None:
        """Close the connection; what other threads still wait for is taken back. Nothing happens the second time."""
        atexit.unregister(self.close)
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(CLOSE_TIMEOUT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run_blocking(self, coroutine: Coroutine[Any, Any, Returned]) -> Returned:
        """The outcome of this work, done on the loop's thread; whatever interrupts the waiting cancels the work."""
        if self._closing.is_set() or not self._thread.is_alive():  # a forked process has no thread but its own
            coroutine.close()
            raise BusError("This client is closed: connect again with quintain.sync.connect()")
        future = asyncio.run_coroutine_threadsafe(self._run_tracked(coroutine), self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise BusError("This client was closed before the answer came") from None
        except BaseException:
            future.cancel()
            raise

    async def _run_tracked(self, coroutine: Coroutine[Any, Any, Returned]) -> Returned:
        task = asyncio.current_task()
        assert task is not None, "a coroutine that runs is a task"
        self._calls.add(task)
        try:
            return await coroutine
        finally:
            self._calls.discard(task)

    def _run_loop(self, connect_async: ConnectFunction) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._stay_connected(connect_async))
        except BaseException as error:
            if not self._connected.done():
                self._connected.set_exception(error)

    async def _stay_connected(self, connect_async: ConnectFunction) -> None:
        """Connect, and stay connected until somebody closes: then this task is cancelled, wherever it is."""
        current = asyncio.current_task()
        assert current is not None, "a coroutine that runs is a task"
        closing = asyncio.ensure_future(self._closing.wait())
        closing.add_done_callback(lambda _: current.cancel())
        async with connect_async() as client:
            self._connected.set_result(client)
            try:
                await asyncio.Event().wait()
            finally:
                # What is still asked is taken back while there is a connection to do it by.
                for call in self._calls:
                    call.cancel()
                await asyncio.gather(*self._calls, return_exceptions=True)
