"""The store of answers: what it finds, who may read it, how it stays small, and what it says where it is of no use."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from quintain.errors import ConfigError
from quintain_runner.results.answer_store import AnswerStore, AskingState, StoredAnswer, StoreUnusable
from quintain_runner.results.cache_file import CacheSetting, network_file_system

DAY = 86_400


def stored(
    address: str, asking: int = 1, *, state: AskingState = AskingState.ANSWERED, at: int = 100, size: int = 2
) -> StoredAnswer:
    return StoredAnswer(address, asking, "1.1.0", "bot", "f", b"{}", b"x" * size, state, at)


def test_the_last_whole_answer_is_found_of_this_asking_or_a_later_one(tmp_path: Path) -> None:
    with closing(AnswerStore.open(tmp_path / "a.sqlite3")) as store:
        kept = [
            stored("a", 1),
            stored("a", 2, at=200),
            stored("a", 3, state=AskingState.FAILED),
            stored("b", state=AskingState.FAILED),
        ]
        store.write(kept, now=0)
        assert (store.find("a"), store.find("a", 2), store.find("a", 3)) == (kept[1], kept[1], None)
        assert (store.find("a", since=201), store.find("b"), store.find("c")) == (None, None, None)
        assert (store.find_last("a"), store.find_last("b")) == (kept[1], kept[3])
        assert list(store.answers()) == kept
        assert [(one.target, one.answers) for one in store.sizes()] == [("bot", 4)]


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.sqlite3"
    AnswerStore.open(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_sealed_store_is_read_where_nothing_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite3"
    for address in "ab":
        # It can be written again.
        with closing(AnswerStore.open(path)) as store:
            store.write([stored(address)], now=0)
            store.seal()
    uri = f"{path.as_uri()}?immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        assert connection.execute("SELECT count(*) FROM answers").fetchone() == (2,)
    with closing(AnswerStore.open(path, is_read_only=True)) as store:
        assert store.find("a") == stored("a")
    assert [file.name for file in tmp_path.iterdir()] == ["a.sqlite3"]


def test_several_processes_may_use_it_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite3"
    with closing(AnswerStore.open(path)) as one, closing(AnswerStore.open(path)) as other:
        one.write([stored("a")], now=0)
        other.write([stored("b")], now=0)
        assert (one.find("b"), other.find("a")) == (stored("b"), stored("a"))


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    with closing(AnswerStore.open(tmp_path / "a.sqlite3")) as store:
        store.write([stored(f"{number:03}", size=10_000) for number in range(100)], now=0)
        store.write([], used=[f"{number:03}" for number in range(50)], now=5 * DAY)
        before = store.bytes
        assert store.prune(max_bytes=before // 2 + 50_000) >= 40
        assert store.bytes <= before // 2 + 50_000
        assert {answer.address for answer in store.answers()} >= {f"{number:03}" for number in range(50)}


def test_what_is_too_old_goes(tmp_path: Path) -> None:
    with closing(AnswerStore.open(tmp_path / "a.sqlite3")) as store:
        store.write([stored("a", at=1), stored("b", at=2)], now=0)
        assert store.prune(before=2) == 1
        assert [answer.address for answer in store.answers()] == ["b"]


def text(path: Path) -> None:
    path.write_text("no database, but a text that is long enough to be one" * 100)


def of_another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a)")


def of_another_version(path: Path) -> None:
    AnswerStore.open(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 9")


def damaged(path: Path) -> None:
    with closing(AnswerStore.open(path)) as store:
        store.write([stored(f"{number}", size=9_000) for number in range(20)], now=0)
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + b"\xff" * 40_000 + whole[40_200:])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (text, "no store of answers"),
        (of_another_program, "no store of answers"),
        (of_another_version, "of version 9"),
        (damaged, "damaged"),
        (Path.mkdir, "cannot be"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_reason(
    tmp_path: Path, spoil: Callable[[Path], None], said: str
) -> None:
    path = tmp_path / "a.sqlite3"
    spoil(path)
    with pytest.raises(StoreUnusable, match=said) as raised, closing(AnswerStore.open(path)) as store:
        store.find("a")
        store.sizes()
    assert str(path) in str(raised.value)


def test_a_store_that_another_process_holds_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite3"
    with closing(AnswerStore.open(path, lock_seconds=0)) as store, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnusable, match="another process"):
            store.write([stored("a")], now=0)


def test_a_network_file_system_is_known_by_its_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nhost:/x {tmp_path}/far\\040away nfs4 rw 0 0\n")
    assert network_file_system(tmp_path / "far away" / "a.sqlite3", mounts) == "nfs4"
    assert network_file_system(tmp_path / "a.sqlite3", mounts) is None


def test_the_command_says_before_the_file_where_the_cache_is_and_how_old_answers_may_be() -> None:
    env = {"XDG_CACHE_HOME": "/c"}
    own = Path("/c/quintain/answers.sqlite3")
    assert CacheSetting.of(None, None, env) is CacheSetting.of("off", "30d", env) is CacheSetting.of(None, "off", env)
    assert CacheSetting.of(None, "30d", env) == CacheSetting(own, 30 * DAY)
    assert CacheSetting.of("12h", "30d", env) == CacheSetting(own, DAY / 2)
    assert CacheSetting.of("a/file", "1d", env) == CacheSetting(Path("a/file"), DAY)
    assert CacheSetting.of("a/file", None, env) == CacheSetting(Path("a/file"), None)
    for unclear in ("2w", "30", "30D", "on", ""):
        with pytest.raises(ConfigError, match="neither"):
            CacheSetting.of(unclear, None, env)
