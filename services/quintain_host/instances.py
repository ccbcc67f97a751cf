"""Loads the target factory ``module:name``, and runs each instance in a thread of its own, with its own event loop.

A target may block its loop, hold the GIL or not be thread-safe; therefore the host's connection, heartbeats and leases
run on another thread. An exception of the target never ends this thread or the host: a `BaseException` that is not an
`Exception` is raised as a `RuntimeError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

from quintain.agents.hosted_agent import target_factory
from quintain.config.fingerprint import dependency_digests, fingerprint_of, import_digests, module_digests
from quintain.config.python_imports import describe_raised, load_object
from quintain.contracts.remote_target import TargetDescriptor
from quintain.errors import ConfigError
from quintain.programs.agent_urls import AgentUrl
from quintain.target import Target
from quintain.target.codec import Codec
from quintain.target.type_registry import types_of_target

Returned = TypeVar("Returned")

#: How long a cancelled coroutine may take to end, in seconds; then it is no longer waited for.
CANCEL_WAIT_SECONDS = 2.0

#: How long a closed thread may take to end, in seconds; it is a daemon thread, and is left behind after that.
JOIN_SECONDS = 2.0


class InstanceThread:
    """One thread with one event loop, running until it is closed."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._submit_lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self._thread.start()

    async def call(self, function: Callable[[], Returned]) -> Returned:
        """Call a function on the instance's thread and return its result; raises what it raises."""

        async def call_function() -> Returned:
            return function()

        return await self.run(call_function())

    async def run(self, coroutine: Coroutine[Any, Any, Returned]) -> Returned:
        """Run a coroutine on the instance's thread and return its result.

        If the caller is cancelled, the coroutine is cancelled too and waited for, up to `CANCEL_WAIT_SECONDS`. Raises
        what the coroutine raises, and `RuntimeError` once the thread is closed.
        """
        result: asyncio.Future[Returned] = asyncio.get_running_loop().create_future()
        tasks: list[asyncio.Task[Returned]] = []

        def start() -> None:
            task = self.loop.create_task(_convert_base_exceptions(coroutine))
            tasks.append(task)
            task.add_done_callback(on_done)

        def on_done(task: asyncio.Task[Returned]) -> None:
            # A task that was cancelled before its first step never awaited the coroutine; closing it avoids a warning.
            coroutine.close()
            # The caller's loop may be closed if the host has ended meanwhile.
            with contextlib.suppress(RuntimeError):
                result.get_loop().call_soon_threadsafe(_copy_outcome, task, result)

        with self._submit_lock:
            # Under the lock, a coroutine is submitted either before the loop is stopped, and is started, or not at all.
            if self._is_closed:
                coroutine.close()
                raise RuntimeError("The target's thread is closed")
            self.loop.call_soon_threadsafe(start)
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            if result.cancelled():
                raise RuntimeError("The target cancelled its own task") from None
            self.loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            await asyncio.wait([result], timeout=CANCEL_WAIT_SECONDS)
            raise
        finally:
            # The caller no longer waits: a result that comes later is dropped.
            result.cancel()

    async def close(self) -> bool:
        """Cancel what runs and stop the thread. Returns whether it ended within `JOIN_SECONDS`; a blocked thread is
        left behind.
        """
        with self._submit_lock:
            if not self._is_closed:
                self._is_closed = True
                self.loop.call_soon_threadsafe(self.loop.stop)
        await asyncio.to_thread(self._thread.join, JOIN_SECONDS)
        return not self._thread.is_alive()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        pending = asyncio.all_tasks(self.loop)
        for task in pending:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


def _copy_outcome(task: asyncio.Task[Returned], result: asyncio.Future[Returned]) -> None:
    error = None if task.cancelled() else task.exception()
    if result.done():
        return
    if task.cancelled():
        result.cancel()
    elif error is not None:
        result.set_exception(error)
    else:
        result.set_result(task.result())


async def _convert_base_exceptions(coroutine: Coroutine[Any, Any, Returned]) -> Returned:
    """Await the coroutine; raise `SystemExit` and other non-`Exception` errors as `RuntimeError`."""
    try:
        return await coroutine
    except asyncio.CancelledError:
        raise
    except SystemExit as exit_error:
        raise RuntimeError(f"The target called exit({exit_error.code!r})") from None
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"The target raised {describe_raised(error, Path.cwd())}") from error


#: Creates one new instance of a target: a class, or a function without arguments.
InstanceFactory = Callable[[], Any]


def load_factory(path: str, folder: Path, agent_url: AgentUrl | None = None) -> InstanceFactory:
    """Import the factory or agent that ``module:name`` names; ``folder`` is searched first. Raises `ConfigError`.

    ``agent_url`` is that of the calls which its instances make, where there is one.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{path!r} names no factory: write it as module:factory, such as bots:SupportBot")
    return target_factory(load_object(path, folder, kind="factory"), path, agent_url)


def factory_fingerprint(path: str, folder: Path, depends_on: Iterable[str] = ()) -> str:
    """The fingerprint of a factory: of its name, and of the bytes of its module, of what that imports from its own
    folders, and of the files of ``depends_on``.

    It is to be read when the factory is imported. Raises `ConfigError` where a file cannot be read.
    """
    digest, imports = module_digests(path, folder)
    return fingerprint_of([path, digest, dependency_digests(depends_on, folder), *import_digests(imports.files)])


def require_target(instance: Any, path: str) -> None:
    """Raise `ConfigError`, listing the missing attributes, unless the instance has the Target interface."""
    missing = sorted(name for name in Target.__abstractmethods__ if not hasattr(type(instance), name))
    if missing:
        raise ConfigError(
            f"{path} made {type(instance).__name__}, which is not a Target: it lacks {', '.join(missing)}. "
            "An agent of another framework is hosted as it is: docs/agents.md"
        )


async def create_instance(
    factory: InstanceFactory, path: str, instance_thread: InstanceThread, boot_seconds: float
) -> tuple[Any, Codec, TargetDescriptor]:
    """Create an instance on this thread, and describe it: what its description waits for is as unbounded.

    Raises what the factory raises, `ConfigError` for what is no target, and `TimeoutError` after ``boot_seconds``.
    """
    limit = asyncio.timeout(boot_seconds)
    try:
        async with limit:
            target: Any = await instance_thread.call(factory)
            require_target(target, path)
            codec = Codec(types_of_target(type(target)))
            return target, codec, await instance_thread.call(lambda: codec.describe(target))
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimeoutError(
            f"{path} did not return a target that describes itself within {boot_seconds:g} s: "
            "--boot-timeout-seconds of its host is the limit"
        ) from None


async def probe_factory(factory: InstanceFactory, path: str, boot_seconds: float) -> None:
    """Create one instance and tear it down, each within ``boot_seconds``.

    So errors of the factory show when the host starts, and what it imports is imported before the first lease. Raises
    `ConfigError`.
    """
    instance_thread = InstanceThread("probe")
    try:
        instance, _, _ = await create_instance(factory, path, instance_thread, boot_seconds)
        async with asyncio.timeout(boot_seconds):
            await instance_thread.run(instance.teardown())
    except ConfigError:
        raise
    except Exception as error:
        # A constructor may raise anything; its message is shown to the user who starts the host.
        raise ConfigError(f"{path} made no target: {describe_raised(error, Path.cwd())}") from error
    finally:
        await instance_thread.close()
