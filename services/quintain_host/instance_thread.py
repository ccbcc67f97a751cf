"""The thread of one instance, with its own event loop.

A target may block its loop, hold the GIL or not be thread-safe; the host's connection, heartbeats and leases run
on another thread. Exceptions of the target never end this thread or the host: what is not an `Exception` is
raised as a `RuntimeError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Returned = TypeVar("Returned")

#: How long something that was cancelled may take to end, in seconds; then it is left to itself.
CANCEL_WAIT_SECONDS = 2.0

#: How long a stage may take to end once it is closed, in seconds; its thread is a daemon, and may be left behind.
JOIN_SECONDS = 2.0


class InstanceThread:
    """One thread with one loop, until it is closed."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._submit_lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self._thread.start()

    async def call(self, function: Callable[[], Returned]) -> Returned:
        """Run a plain function on the stage; raises what it raises."""

        async def call_function() -> Returned:
            return function()

        return await self.run(call_function())

    async def run(self, coroutine: Coroutine[Any, Any, Returned]) -> Returned:
        """Run a coroutine on the stage. Cancelled here, it is cancelled there, and waited for a little.

        Raises what it raises, and `RuntimeError` once the stage is closed.
        """
        result: asyncio.Future[Returned] = asyncio.get_running_loop().create_future()
        submitted = _SubmittedCoroutine(coroutine, result)
        with self._submit_lock:
            # What enters before the stop begins before it; after it nothing ever would.
            if self._is_closed:
                coroutine.close()
                raise RuntimeError("The target's stage is closed")
            self.loop.call_soon_threadsafe(submitted.start)
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            if result.cancelled():
                raise RuntimeError("The target cancelled what it was asked to do") from None
            self.loop.call_soon_threadsafe(submitted.cancel)
            await asyncio.wait([result], timeout=CANCEL_WAIT_SECONDS)
            raise
        finally:
            # Whoever waited has gone: what came of it is nobody's to hear.
            result.cancel()

    async def close(self) -> bool:
        """Cancel what runs and end the thread. Returns whether it ended: one that is blocked is left behind."""
        with self._submit_lock:
            if not self._is_closed:
                self._is_closed = True
                self.loop.call_soon_threadsafe(self.loop.stop)
        ends_at = asyncio.get_running_loop().time() + JOIN_SECONDS
        while self._thread.is_alive() and asyncio.get_running_loop().time() < ends_at:  # noqa: ASYNC110 -- a thread's end wakes nobody
            await asyncio.sleep(0.005)
        return not self._thread.is_alive()

    def _run_loop(self) -> None:
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


class _SubmittedCoroutine:
    """A coroutine on its way to the stage, and what comes of it on its way back."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], result: asyncio.Future[Any]) -> None:
        self._coroutine, self._result = coroutine, result
        self._caller_loop = result.get_loop()
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        """On the stage."""
        self._task = asyncio.get_running_loop().create_task(_convert_base_exceptions(self._coroutine))
        self._task.add_done_callback(self._on_task_done)

    def cancel(self) -> None:
        """On the stage."""
        if self._task is not None:
            self._task.cancel()

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        # What was cancelled before it began was never awaited, and is let go of here.
        self._coroutine.close()
        # A host that has ended meanwhile has no loop left to tell.
        with contextlib.suppress(RuntimeError):
            self._caller_loop.call_soon_threadsafe(self._set_result, task)

    def _set_result(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._result.done():
            return
        if task.cancelled():
            self._result.cancel()
        elif error is not None:
            self._result.set_exception(error)
        else:
            self._result.set_result(task.result())


async def _convert_base_exceptions(coroutine: Coroutine[Any, Any, Returned]) -> Returned:
    """The coroutine, with whatever would end a loop or pass by every handler turned into an error of its own."""
    try:
        return await coroutine
    except asyncio.CancelledError:
        raise
    except SystemExit as exit_error:
        raise RuntimeError(f"The target called exit({exit_error.code!r})") from None
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"The target raised {type(error).__name__}: {error}") from error
