"""A thread with its own event loop and broker connection.

A controller calls `set_config` and `query` synchronously on its event loop's thread; the reply must arrive without that
loop running.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol, TypeVar

from quintain.bus.base import Bus
from quintain.bus.connect import connect_bus
from quintain.errors import HostLost
from quintain.rpc.requests import RpcClient

Returned = TypeVar("Returned")


class Executor(Protocol):
    """How code on an application's event loop runs code on the connection's loop, which may be the same one."""

    async def run(self, coroutine: Coroutine[Any, Any, Returned]) -> Returned:
        """Run a coroutine on the connection's loop; cancelling the caller cancels it."""

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        """Schedule a function call on the connection's loop; does nothing after the connection is closed."""


class ConnectionThread:
    """A broker connection on a thread of its own, which can be used from any thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="quintain connection", daemon=True)
        self._bus: Bus | None = None
        self._rpc_client: RpcClient | None = None

    @property
    def bus(self) -> Bus:
        """The connection's bus, to be used on its own loop."""
        assert self._bus is not None, "the connection is open"
        return self._bus

    @property
    def rpc_client(self) -> RpcClient:
        """The connection's RPC client, to be used on its own loop."""
        assert self._rpc_client is not None, "the connection is open"
        return self._rpc_client

    def open(self, timeout_seconds: float = 30.0) -> None:
        """Start the thread and connect. Raises `BrokerUnavailable`, `BrokerRefused`."""
        self._thread.start()
        try:
            self.run_blocking(self._connect(timeout_seconds))
        except BaseException:
            self.close()
            raise

    def run_blocking(self, coroutine: Coroutine[Any, Any, Returned]) -> Returned:
        """Run a coroutine on the connection's loop and block until it is done.

        Raises what the coroutine raises, `HostLost` after the connection is closed, and `RuntimeError` on its own
        thread. Ctrl-C raises `KeyboardInterrupt` here, and cancels the coroutine.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("run_blocking would wait for itself on the connection's own thread")
        with _interruptible():
            submitted = self._submit(coroutine)
            try:
                return submitted.result()
            except KeyboardInterrupt:
                submitted.cancel()
                raise

    async def run(self, coroutine: Coroutine[Any, Any, Returned]) -> Returned:
        """Run a coroutine on the connection's loop from another loop; cancelling the caller cancels it."""
        return await asyncio.wrap_future(self._submit(coroutine))

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        """Schedule a function call on the connection's loop; does nothing after the connection is closed."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(callback, *args)

    def close(self) -> None:
        """Close the connection and end the thread; coroutines that still run there are cancelled."""
        if self._thread.is_alive():
            self.run_blocking(self._disconnect())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()

    def _submit(self, coroutine: Coroutine[Any, Any, Returned]) -> asyncio.Future[Returned] | Any:
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:
            coroutine.close()
            raise HostLost("The connection to the target's host was closed here") from None

    async def _connect(self, timeout_seconds: float) -> None:
        self._bus = await connect_bus(self._url, "controller", timeout_seconds=timeout_seconds)
        # Exclusive: a host takes no request of a process that has ended.
        self._rpc_client = RpcClient(self._bus, exclusive=True)
        await self._rpc_client.start()

    async def _disconnect(self) -> None:
        current = asyncio.current_task()
        if self._rpc_client is not None:
            await self._rpc_client.close()
        if self._bus is not None:
            await self._bus.close()
        others = [task for task in asyncio.all_tasks() if task is not current]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C interrupt a wait that blocks an event loop of `asyncio.run`.

    Such a loop only cancels its main task at the first Ctrl-C, which has no effect while the loop is blocked.
    """
    handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if isinstance(handler, functools.partial) and isinstance(getattr(handler.func, "__self__", None), asyncio.Runner):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, handler)
    else:
        yield


class InlineExecutor:
    """An `Executor` for an application that runs the connection on its own loop, which must not block."""

    async def run(self, coroutine: Coroutine[Any, Any, Returned]) -> Returned:
        """Await the coroutine."""
        return await coroutine

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        """Schedule a function call on the running loop."""
        asyncio.get_running_loop().call_soon(callback, *args)


def open_connection_thread(url: str) -> ConnectionThread:
    """Open a connection on a new thread. Raises `BrokerUnavailable`, `BrokerRefused`."""
    thread = ConnectionThread(url)
    thread.open()
    return thread
