"""Instances: from `module:factory` to a target, and the thread that each one lives on."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from quintain.errors import ConfigError
from quintain_host.instances import InstanceThread, factory_fingerprint, load_factory, probe_factory
from support.target_placements import scripted_target_class

# From `module:factory` to a target: what is wrong with either is a sentence for whoever starts the host.


Bot: Any = scripted_target_class("ours")


async def do_nothing(target: Any, emit: Any, send: Any) -> None: ...


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for name in ("some_bots", "broken_bots"):
        sys.modules.pop(name, None)
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]


def test_a_factory_is_found_in_the_folder(folder: Path) -> None:
    (folder / "some_bots.py").write_text("def make(): return 'a bot'")
    assert load_factory("some_bots:make", folder)() == "a bot"


def test_what_a_factory_imports_from_its_folder_counts(folder: Path) -> None:
    (folder / "some_bots.py").write_text("import words\ndef make(): return 'a bot'")
    (folder / "words.py").write_text("")
    before = factory_fingerprint("some_bots:make", folder)
    (folder / "words.py").write_text("changed = True")
    assert factory_fingerprint("some_bots:make", folder) != before


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("some_bots", "'some_bots' names no factory: write it as module:factory"),
        (":make", "':make' names no factory"),
        ("some_bots:other", "some_bots has no factory other"),
        ("some_bots:NUMBER", "some_bots:NUMBER is of type int, and no agent"),
        ("no_bots:make", "no_bots cannot be imported: ModuleNotFoundError: No module named 'no_bots'"),
        ("broken_bots:make", "broken_bots cannot be imported: ZeroDivisionError: division by zero"),
    ],
)
def test_what_is_no_factory_is_said(folder: Path, path: str, said: str) -> None:
    (folder / "some_bots.py").write_text("NUMBER = 5\ndef make(): return 'a bot'")
    (folder / "broken_bots.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match=said):
        load_factory(path, folder)


async def test_a_probe_makes_one_and_lets_it_go() -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(Bot(do_nothing))
        return made[-1]

    await probe_factory(make, "bots:make", 10)
    assert [each.torn_down for each in made] == [True]


class Half:
    def run(self) -> None: ...


class Mute(Bot):
    def get_controllables(self) -> Any:
        raise RuntimeError("not yet")


def keyless() -> Any:
    raise ValueError("the key is empty: set BOT_KEY")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (keyless, "made no target: ValueError: the key is empty: set BOT_KEY"),
        (Half, "made Half, which is not a Target: it lacks config_specs, get_con"),
        (lambda: Mute(do_nothing), "made no target: RuntimeError: not yet"),
        (lambda: threading.Event().wait(2), "TimeoutError: .* within 0.05 s: --boot-timeout-seconds"),
    ],
)
async def test_what_makes_no_target_is_told_to_who_starts_the_host(
    make: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wait in ("CANCEL_WAIT_SECONDS", "JOIN_SECONDS"):
        monkeypatch.setattr(f"quintain_host.instances.{wait}", 0.05)
    with pytest.raises(ConfigError, match=f"bots:make .*{said}"):
        await probe_factory(make, "bots:make", 0.05 if "Timeout" in said else 10)


# The thread on which a hosted instance stands: what happens there stays there, and comes out as an error at most.


@pytest.fixture
async def instance_thread() -> AsyncIterator[InstanceThread]:
    stage = InstanceThread("test")
    yield stage
    await stage.close()


async def test_what_would_end_a_loop_is_an_error_and_the_thread_continues(instance_thread: InstanceThread) -> None:
    with pytest.raises(RuntimeError, match=r"The target called exit\(3\)"):
        await instance_thread.call(lambda: sys.exit(3))

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(RuntimeError, match="The target raised KeyboardInterrupt"):
        await instance_thread.call(interrupted)

    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="The target cancelled its own task"):
        await instance_thread.run(cancels_itself())
    assert await instance_thread.call(lambda: "alive") == "alive"


async def test_a_closed_instance_thread_has_cancelled_its_work_and_accepts_none() -> None:
    stage = InstanceThread("test")
    began, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    playing = asyncio.create_task(stage.run(wait()))
    await asyncio.to_thread(began.wait)
    assert await stage.close() is True
    assert ended.is_set()
    with pytest.raises(RuntimeError, match="cancelled its own task"):
        await playing
    with pytest.raises(RuntimeError, match="thread is closed"):
        await stage.call(lambda: None)
    assert await stage.close() is True


async def test_what_enters_while_it_closes_ends_one_way_or_the_other() -> None:
    for _ in range(20):
        stage = InstanceThread("test")
        entering = [asyncio.create_task(stage.call(lambda: 1)) for _ in range(5)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(stage.close())
        entering += [asyncio.create_task(stage.call(lambda: 1)) for _ in range(5)]
        async with asyncio.timeout(10):
            outcomes = await asyncio.gather(*entering, return_exceptions=True)
        assert await closing is True
        assert all(outcome == 1 or isinstance(outcome, RuntimeError) for outcome in outcomes)
