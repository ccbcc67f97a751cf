"""The SDK for programs without asyncio: the methods of `quintain.Client`, run on an event loop in a background thread.

    with quintain.sync.connect() as target:
        print(target.invoke("What is the capital of France?").raw_text)

It also works while an event loop is running (Jupyter), and from several threads at once. Ctrl-C cancels the call that
is being waited for. Connections left open are closed when the program exits.
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

from quintain.client import client as asynchronous
from quintain.client.client import Client
from quintain.errors import BusError
from quintain.runtime.concurrency import cancel_and_wait

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

#: Connects a client; called on the background thread.
ConnectFunction = Callable[[], AbstractAsyncContextManager[Client]]

#: Timeout for ending cancelled calls and closing the connection, in seconds.
CLOSE_TIMEOUT_SECONDS = 10.0


def connect(url: str | None = None, token: str | None = None, *, timeout_seconds: float = 30.0) -> SyncClient:
    """Connect a session's client and verify its token; close it, or use it in a ``with`` statement.

    The defaults of ``url`` and ``token`` and the errors are those of `quintain.connect`.

    Example::

        with quintain.sync.connect() as target:
            print(target.invoke("What is the capital of France?").raw_text)
    """
    return SyncClient(lambda: asynchronous.connect(url, token, timeout_seconds=timeout_seconds))


def _blocking(
    method: Callable[Concatenate[Client, Parameters], Coroutine[Any, Any, Returned]],
) -> Callable[Concatenate[SyncClient, Parameters], Returned]:
    """Return a method of `Client` as a blocking method with the same parameters and docstring."""

    @functools.wraps(method)
    def blocking(self: SyncClient, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        return self._run_blocking(method(self._client, *args, **kwargs))

    return blocking


class SyncClient:
    """Client of one session: the methods of `quintain.Client`, each of which blocks until its result is there.

    ``on_chunk`` and ``on_progress`` of `send` are called on the background thread.

    Example::

        with quintain.sync.connect() as target:
            results = target.invoke_batch(["2 + 2?", "3 + 3?"])
    """

    def __init__(self, connect_async: ConnectFunction) -> None:
        self._connected: concurrent.futures.Future[Client] = concurrent.futures.Future()
        self._closing = asyncio.Event()
        self._calls: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        # A daemon thread does not keep a program alive that ends without closing; atexit closes the connection then.
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
        """Close the connection and cancel calls of other threads; calling it again has no effect.

        Example::

            target = quintain.sync.connect()
            try:
                print(target.invoke("2 + 2?").raw_text)
            finally:
                target.close()
        """
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
        """Run the coroutine on the background thread and return its result; an interrupt cancels it."""
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
        """Connect, and hold the connection until `close`, which cancels this task."""
        current = asyncio.current_task()
        assert current is not None, "a coroutine that runs is a task"
        closing = asyncio.ensure_future(self._closing.wait())
        closing.add_done_callback(lambda _: current.cancel())
        async with connect_async() as client:
            self._connected.set_result(client)
            try:
                await asyncio.Event().wait()
            finally:
                # Cancel running calls while the connection is still open.
                await cancel_and_wait(*self._calls)
