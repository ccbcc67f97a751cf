"""The thread that carries: its own loop, its own connection, apart from whatever the application's loop is doing.

A controller calls `set_config` and `query` on its loop's thread and blocks there until the answer is in; the answer
must not need that loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from quintain.bus.base import Bus
from quintain.bus.connect import connect_bus
from quintain.caller import Caller
from quintain.errors import HostLost

Returned = TypeVar("Returned")


class Way(Protocol):
    """How an application's loop reaches the loop that carries: another thread's, or its own."""

    async def on_line(self, act: Coroutine[Any, Any, Returned]) -> Returned:
        """Run a coroutine there. Cancelled here, it is cancelled there."""

    def tell(self, act: Callable[..., None], *words: Any) -> None:
        """Have a function called there, soon; nothing happens where the carrying is over."""


class Line:
    """One connection on a thread of its own. Open it, use it from any thread, close it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="quintain line", daemon=True)
        self._bus: Bus | None = None
        self._caller: Caller | None = None

    @property
    def bus(self) -> Bus:
        """The connection's bus, for use on the line's loop."""
        assert self._bus is not None, "the line is open"
        return self._bus

    @property
    def caller(self) -> Caller:
        """The connection's caller, for use on the line's loop."""
        assert self._caller is not None, "the line is open"
        return self._caller

    def open(self, timeout_seconds: float = 30.0) -> None:
        """Connect. Raises `BrokerUnavailable`, `BrokerRefused`."""
        self._thread.start()
        try:
            self.call(self._connect(timeout_seconds))
        except BaseException:
            self.close()
            raise

    def call(self, act: Coroutine[Any, Any, Returned]) -> Returned:
        """Run a coroutine on the line, and block until it is done; raises what it raises, and `HostLost` once the
        line is closed."""
        if threading.current_thread() is self._thread:
            act.close()
            raise RuntimeError("The line's own thread must not wait for itself")
        return self._begun(act).result()

    async def on_line(self, act: Coroutine[Any, Any, Returned]) -> Returned:
        """Run a coroutine on the line, from another loop. Cancelled there, it is cancelled here."""
        return await asyncio.wrap_future(self._begun(act))

    def tell(self, act: Callable[..., None], *words: Any) -> None:
        """Have a function called on the line, soon; nothing happens once it is closed."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(act, *words)

    def close(self) -> None:
        """Let go of the connection and end the thread; whoever still waits for an answer is cancelled."""
        if self._thread.is_alive():
            self.call(self._disconnect())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()

    def _begun(self, act: Coroutine[Any, Any, Returned]) -> asyncio.Future[Returned] | Any:
        try:
            return asyncio.run_coroutine_threadsafe(act, self.loop)
        except RuntimeError:
            act.close()
            raise HostLost("The connection to the target's host was closed here") from None

    async def _connect(self, timeout_seconds: float) -> None:
        self._bus = await connect_bus(self._url, "controller", timeout_seconds=timeout_seconds)
        self._caller = Caller(self._bus)
        await self._caller.start()

    async def _disconnect(self) -> None:
        me = asyncio.current_task()
        if self._caller is not None:
            await self._caller.close()
        if self._bus is not None:
            await self._bus.close()
        rest = [task for task in asyncio.all_tasks() if task is not me]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


class Here:
    """The way of an application whose own loop carries: nothing on it may block."""

    async def on_line(self, act: Coroutine[Any, Any, Returned]) -> Returned:
        """Run the coroutine."""
        return await act

    def tell(self, act: Callable[..., None], *words: Any) -> None:
        """Have it called soon."""
        asyncio.get_running_loop().call_soon(act, *words)


def opened(url: str) -> Line:
    """An open line. Raises `BrokerUnavailable`, `BrokerRefused`."""
    line = Line(url)
    line.open()
    return line
