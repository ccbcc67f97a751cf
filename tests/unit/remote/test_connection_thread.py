"""The connection's thread: a wait that blocks the application's loop ends at the first Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading

import pytest

from quintain.remote import connection_thread
from quintain.remote.connection_thread import ConnectionThread


def test_the_first_ctrl_c_ends_a_wait_that_blocks_a_loop_and_what_follows_it_is_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("open_bus", "RpcClient"):
        monkeypatch.setattr(connection_thread, name, lambda *args, **options: contextlib.nullcontext())
    thread = ConnectionThread("amqp://nobody")
    begun, done = threading.Event(), []

    async def wait_long() -> None:
        begun.set()
        try:
            await asyncio.sleep(20)
            done.append("waited to the end")
        except asyncio.CancelledError:
            done.append("cancelled")
            raise

    async def query() -> None:
        try:
            thread.run_blocking(wait_long())
        finally:
            await asyncio.sleep(0)
            done.append("cleaned up")

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(query())

    def interrupt() -> None:
        begun.wait(20)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    thread.close()
    assert sorted(done) == ["cancelled", "cleaned up"]
    assert signal.getsignal(signal.SIGINT) is before
