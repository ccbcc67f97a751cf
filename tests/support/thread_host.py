"""A target host on a thread of the test process: real messages over a real broker, and a target whose Python object
a test can still look at."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from quintain.bus.base import Bus
from quintain.bus.connect import connect_bus
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import host_topology
from quintain_host.host import Host

Create = Callable[[], Any]


class LoopThread:
    """An event loop on a thread of its own; a test may block its own loop and this one goes on."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine there, and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def close(self) -> None:
        """Cancel what still runs there, as `asyncio.run` does at its end, and end the thread."""
        self.run(_cancel_others())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class ThreadHost:
    """One host that serves whatever factory is wanted next. What it made last is ``made[-1]``."""

    def __init__(self, url: str, slots: int, timings: Timings = DEFAULT_TIMINGS) -> None:
        self.name = f"thread.{secrets.token_hex(4)}"
        self.instances: list[Any] = []
        self._thread = LoopThread("host")
        self._factory: Create | None = None
        self._timings = timings
        self._one_at_a_time = threading.Lock()
        self.bus: Bus = self._thread.run(connect_bus(url, "hosts", timeout_seconds=30))
        self.host: Host = self._thread.run(self._started(slots))

    def lease_from(self, create: Create, remote_create: Create) -> Any:
        """What the remote side's `create` leases, when this factory makes it here."""
        with self._one_at_a_time:
            self._factory = create
            return remote_create()

    def serve(self, create: Create) -> None:
        """Serve this factory from now on."""
        self._factory = create

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the host's loop."""
        return self._thread.run(coroutine)

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call a function on the host's loop."""
        self._thread.loop.call_soon_threadsafe(function)

    def close(self) -> None:
        self.run(self.host.stop(0))
        self.run(self.bus.delete(host_topology(self.name).queues[0]))
        self.run(self.bus.close())
        self._thread.close()

    async def _started(self, slots: int) -> Host:
        host = Host(self.bus, self.name, self._create, slots, timings=self._timings)
        await host.start()
        return host

    def _create(self) -> Any:
        assert self._factory is not None, "a test says what is served"
        instance = self._factory()
        self.instances.append(instance)
        return instance


@contextlib.contextmanager
def thread_host(url: str, slots: int = 4, timings: Timings = DEFAULT_TIMINGS) -> Iterator[ThreadHost]:
    """A host on a thread, until left."""
    host = ThreadHost(url, slots, timings)
    try:
        yield host
    finally:
        host.close()
