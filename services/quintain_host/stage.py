"""The thread on which one hosted instance lives, with an event loop of its own.

A target may block its loop, hold the GIL for a while, or be unsafe beside another: it stands on a stage of its own,
and the host's connection, heartbeats and leases go on beside it. Nothing that a target raises ends its stage or the
host: what is no `Exception` comes out as a `RuntimeError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Returned = TypeVar("Returned")

#: How long something that was cancelled may take to end, in seconds; then it is left to itself.
LEAVE_SECONDS = 2.0

#: How long a stage may take to end once it is closed, in seconds; its thread is a daemon, and may be left behind.
CLOSE_SECONDS = 2.0


class Stage:
    """One thread with one loop, until it is closed."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._entering = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    async def do(self, act: Callable[[], Returned]) -> Returned:
        """Run a plain function on the stage; raises what it raises."""

        async def call() -> Returned:
            return act()

        return await self.play(call())

    async def play(self, act: Coroutine[Any, Any, Returned]) -> Returned:
        """Run a coroutine on the stage. Cancelled here, it is cancelled there, and waited for a little.

        Raises what it raises, and `RuntimeError` once the stage is closed.
        """
        ended: asyncio.Future[Returned] = asyncio.get_running_loop().create_future()
        playing = _Playing(act, ended)
        with self._entering:
            # What enters before the stop begins before it; after it nothing ever would.
            if self._closed:
                act.close()
                raise RuntimeError("The target's stage is closed")
            self.loop.call_soon_threadsafe(playing.begin)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            if ended.cancelled():
                raise RuntimeError("The target cancelled what it was asked to do") from None
            self.loop.call_soon_threadsafe(playing.cancel)
            await asyncio.wait([ended], timeout=LEAVE_SECONDS)
            raise
        finally:
            # Whoever waited has gone: what came of it is nobody's to hear.
            ended.cancel()

    async def close(self) -> bool:
        """Cancel what runs and end the thread. Returns whether it ended: one that is blocked is left behind."""
        with self._entering:
            if not self._closed:
                self._closed = True
                self.loop.call_soon_threadsafe(self.loop.stop)
        ends = asyncio.get_running_loop().time() + CLOSE_SECONDS
        while self._thread.is_alive() and asyncio.get_running_loop().time() < ends:  # noqa: ASYNC110 -- a thread's end wakes nobody
            await asyncio.sleep(0.005)
        return not self._thread.is_alive()

    def _live(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            pending = asyncio.all_tasks(self.loop)
            for task in pending:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()


class _Playing:
    """A coroutine on its way to the stage, and what comes of it on its way back."""

    def __init__(self, act: Coroutine[Any, Any, Any], ended: asyncio.Future[Any]) -> None:
        self._act, self._ended = act, ended
        self._here = ended.get_loop()
        self._task: asyncio.Task[Any] | None = None

    def begin(self) -> None:
        """On the stage."""
        self._task = asyncio.get_running_loop().create_task(_tamed(self._act))
        self._task.add_done_callback(self._done)

    def cancel(self) -> None:
        """On the stage."""
        if self._task is not None:
            self._task.cancel()

    def _done(self, task: asyncio.Task[Any]) -> None:
        # What was cancelled before it began was never awaited, and is let go of here.
        self._act.close()
        # A host that has ended meanwhile has no loop left to tell.
        with contextlib.suppress(RuntimeError):
            self._here.call_soon_threadsafe(self._tell, task)

    def _tell(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._ended.done():
            return
        if task.cancelled():
            self._ended.cancel()
        elif error is not None:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(task.result())


async def _tamed(act: Coroutine[Any, Any, Returned]) -> Returned:
    """The coroutine, with whatever would end a loop or pass by every handler turned into an error of its own."""
    try:
        return await act
    except asyncio.CancelledError:
        raise
    except SystemExit as leaving:
        raise RuntimeError(f"The target called exit({leaving.code!r})") from None
    except Exception:
        raise
    except BaseException as wild:
        raise RuntimeError(f"The target raised {type(wild).__name__}: {wild}") from wild
