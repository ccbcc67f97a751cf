"""A thread with its own event loop and broker connection.

A controller calls `set_config` and `query` synchronously on its event loop's thread; the reply must arrive without that
loop running.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from quintain.bus.base import Bus
from quintain.bus.connect import connect_bus
from quintain.errors import HostLost
from quintain.rpc.client import RpcClient

Returned = TypeVar("Returned")


class Executor(Protocol):
    """How an application's loop reaches the loop that carries: another thread's, or its own."""

    async def run(self, coroutine: Coroutine[Any, Any, Returned]) -> Returned:
        """Run a coroutine there. Cancelled here, it is cancelled there."""

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        """Have a function called there, soon; nothing happens where the carrying is over."""


class ConnectionThread:
    """One connection on a thread of its own. Open it, use it from any thread, close it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="quintain line", daemon=True)
        self._bus: Bus | None = None
        self._rpc_client: RpcClient | None = None

    @property
    def bus(self) -> Bus:
        """The connection's bus, for use on the line's loop."""
        assert self._bus is not None, "the line is open"
        return self._bus

    @property
    def rpc_client(self) -> RpcClient:
        """The connection's caller, for use on the line's loop."""
        assert self._rpc_client is not None, "the line is open"
        return self._rpc_client

    def open(self, timeout_seconds: float = 30.0) -> None:
        """Connect. Raises `BrokerUnavailable`, `BrokerRefused`."""
        self._thread.start()
        try:
            self.run_blocking(self._connect(timeout_seconds))
        except BaseException:
            self.close()
            raise

    def run_blocking(self, coroutine: Coroutine[Any, Any, Returned]) -> Returned:
        """Run a coroutine on the line, and block until it is done; raises what it raises, and `HostLost` once the
        line is closed."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("The line's own thread must not wait for itself")
        return self._submit(coroutine).result()

    async def run(self, coroutine: Coroutine[Any, Any, Returned]) -> Returned:
        """Run a coroutine on the line, from another loop. Cancelled there, it is cancelled here."""
        return await asyncio.wrap_future(self._submit(coroutine))

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        """Have a function called on the line, soon; nothing happens once it is closed."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(callback, *args)

    def close(self) -> None:
        """Let go of the connection and end the thread; whoever still waits for an answer is cancelled."""
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
        self._rpc_client = RpcClient(self._bus)
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


class InlineExecutor:
    """The way of an application whose own loop carries: nothing on it may block."""

    async def run(self, coroutine: Coroutine[Any, Any, Returned]) -> Returned:
        """Run the coroutine."""
        return await coroutine

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        """Have it called soon."""
        asyncio.get_running_loop().call_soon(callback, *args)


def open_connection_thread(url: str) -> ConnectionThread:
    """An open line. Raises `BrokerUnavailable`, `BrokerRefused`."""
    thread = ConnectionThread(url)
    thread.open()
    return thread
