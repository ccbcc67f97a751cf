"""From `module:factory` to a target: what is wrong with either is a sentence for whoever starts the host."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quintain.errors import ConfigError
from quintain_host.instances import factory_fingerprint, load_factory, probe_factory
from support.target_placements import scripted_target_class

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


async def test_a_constructors_words_reach_whoever_starts_the_host() -> None:
    def make() -> Any:
        raise ValueError("the key is empty: set BOT_KEY")

    with pytest.raises(ConfigError, match="bots:make made no target: ValueError: the key is empty: set BOT_KEY"):
        await probe_factory(make, "bots:make", 10)


async def test_a_factory_that_never_returns_ends_the_probe_in_time() -> None:
    may_end = threading.Event()
    with pytest.raises(ConfigError, match=r"TimeoutError: .* within 0.05 s: --boot-timeout-seconds"):
        await probe_factory(lambda: may_end.wait(20), "bots:make", 0.05)
    may_end.set()


async def test_what_is_no_target_is_told_what_it_lacks() -> None:
    class Half:
        def run(self) -> None: ...

    with pytest.raises(ConfigError, match="bots:Half made Half, which is not a Target: it lacks config_specs, get_con"):
        await probe_factory(Half, "bots:Half", 10)


async def test_a_target_that_cannot_say_what_it_exposes_is_refused_at_once() -> None:
    class Mute(Bot):
        def get_controllables(self) -> Any:
            raise RuntimeError("not yet")

    with pytest.raises(ConfigError, match="made no target: RuntimeError: not yet"):
        await probe_factory(lambda: Mute(do_nothing), "bots:Mute", 10)
