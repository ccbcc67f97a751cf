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
from typing import Any, TypeAlias, TypeVar

from quintain.bus.base import Bus
from quintain.bus.connect import open_bus
from quintain.errors import HostLost
from quintain.rpc.requests import RpcClient
from quintain.runtime.concurrency import cancel_and_wait

Returned = TypeVar("Returned")


class ConnectionThread:
    """A broker connection on a thread of its own, which can be used from any thread; the bus is for its own loop.

    Raises `BrokerUnavailable`, `BrokerRefused`.
    """

    bus: Bus
    rpc_client: RpcClient

    def __init__(self, url: str, timeout_seconds: float = 30.0) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="quintain connection", daemon=True)
        self._thread.start()
        self._stack = contextlib.AsyncExitStack()
        try:
            self.run_blocking(self._connect(url, timeout_seconds))
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

    async def _connect(self, url: str, timeout_seconds: float) -> None:
        opening = open_bus(url, "controller", timeout_seconds=timeout_seconds)
        self.bus = await self._stack.enter_async_context(opening)
        # Exclusive: a host takes no request of a process that has ended.
        self.rpc_client = await self._stack.enter_async_context(RpcClient(self.bus, exclusive=True))

    async def _disconnect(self) -> None:
        await self._stack.aclose()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await cancel_and_wait(*others)


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
    """Has the methods of a `ConnectionThread` for a connection on the application's own loop, which must not block."""

    async def run(self, coroutine: Coroutine[Any, Any, Returned]) -> Returned:
        """Await the coroutine."""
        return await coroutine

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        """Schedule a function call on the running loop."""
        asyncio.get_running_loop().call_soon(callback, *args)


#: How code on an application's event loop runs code on the connection's loop, which may be the same one.
Executor: TypeAlias = ConnectionThread | InlineExecutor
