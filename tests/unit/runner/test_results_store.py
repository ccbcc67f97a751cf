"""results.jsonl: nothing that was written is lost, and nothing half-written is believed."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quintain.errors import ConfigError, QuintainError
from quintain_runner.results import store
from quintain_runner.results.row import Row, RowKey, RowStatus
from quintain_runner.results.store import KeyHashSet, key_hash, open_results, read_resume_state
from support.results_folder import errored_row, graded_row


def row(case_id: str, *, status: RowStatus = RowStatus.GRADED, tries: int = 1) -> Row:
    made = graded_row(case_id, 1.0) if status is RowStatus.GRADED else errored_row(case_id)
    return made.with_fields(tries=tries)


def read_rows(folder: Path) -> list[Row]:
    lines = (folder / "results.jsonl").read_bytes().splitlines()
    return [Row.model_validate_json(line) for line in lines]


async def write_rows(folder: Path, *rows: Row) -> None:
    async with open_results(folder) as results:
        await asyncio.gather(*(results.append(one) for one in rows))


async def resume_statuses(folder: Path, *case_ids: str) -> dict[str, tuple[RowStatus, int]]:
    """What is kept of these cases, and its tries. That there are no others is checked."""
    async with open_results(folder) as results:
        found = {name: one for name in case_ids if (one := results.find(RowKey(name, "bot", 1))) is not None}
        assert len(list(results.rows_at_opening())) == len(found)
        return {name: (one.status, one.tries) for name, one in found.items()}


async def test_a_torn_last_line_is_cut_at_every_byte_it_may_be_torn_at(tmp_path: Path) -> None:
    await write_rows(tmp_path, row("1"), row("2"))
    path = tmp_path / "results.jsonl"
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        assert list(await resume_statuses(tmp_path, "1", "2")) == ["1"]
        assert path.read_bytes() == whole[:first]
    # New rows stand on lines of their own.
    path.write_bytes(whole[:-5])
    await write_rows(tmp_path, row("3"))
    assert [one.case_id for one in read_rows(tmp_path)] == ["1", "3"]


async def test_the_latest_row_of_a_key_wins_and_the_others_are_compacted_away(tmp_path: Path) -> None:
    await write_rows(tmp_path, row("1", status=RowStatus.ERROR), row("2"))
    async with open_results(tmp_path) as results:
        before = results.find(RowKey("1", "bot", 1))
        assert before.status is RowStatus.ERROR
        await results.append(row("1", tries=2), supersedes=True)
        assert [one.case_id for one in read_rows(tmp_path)] == ["1", "2", "1"]
    assert [(one.case_id, one.tries) for one in read_rows(tmp_path)] == [("2", 1), ("1", 2)]
    assert await resume_statuses(tmp_path, "1", "2") == {"1": (RowStatus.GRADED, 2), "2": (RowStatus.GRADED, 1)}
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl"]


@pytest.mark.parametrize(
    ("lines", "says"),
    [("nonsense\n{row}", "line 1 is not JSON"), ('{{"schemaVersion":3}}\n', "not a row of this version")],
)
async def test_a_line_that_is_no_row_is_named_and_nothing_is_thrown_away(tmp_path: Path, lines: str, says: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(lines.format(row=row("1").to_line().decode()))
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=says):
        await resume_statuses(tmp_path)
    assert path.read_bytes() == before


async def test_the_counts_are_those_of_the_rows_that_count_and_superseded_ones_are_read_past(tmp_path: Path) -> None:
    spent = [row("1", status=RowStatus.ERROR), row("1", tries=2), row("2", status=RowStatus.ERROR)]
    lines = [one.with_fields(calls=calls) for one, calls in zip(spent, (1, 3, 5), strict=True)]
    (tmp_path / "results.jsonl").write_bytes(b"".join(one.to_line() for one in lines))
    async with open_results(tmp_path) as results:
        tally = results.resume_state.tallies["bot", 1]
    assert (tally.graded, tally.errors, tally.calls, tally.done) == (1, 1, 8, 2)
    assert read_resume_state(tmp_path).calls_in_rows == 8
    # A run that was killed left rows that others supersede: they are read past.
    assert await resume_statuses(tmp_path, "1", "2") == {"1": (RowStatus.GRADED, 2), "2": (RowStatus.ERROR, 1)}
    assert [one.tries for one in read_rows(tmp_path)] == [2, 1]
    assert read_resume_state(tmp_path / "nowhere").calls_in_rows == 0


async def test_an_interrupted_owner_leaves_complete_rows_only(tmp_path: Path) -> None:
    async def interrupted() -> None:
        async with open_results(tmp_path) as results:
            appending = [asyncio.create_task(results.append(row(str(number)))) for number in range(50)]
            await asyncio.sleep(0)
            for task in appending:
                task.cancel()
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await interrupted()
    assert len(read_rows(tmp_path)) == 50


async def test_rows_are_for_this_user_alone_unless_the_user_shares_them(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    await write_rows(tmp_path, row("1"))
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    await write_rows(tmp_path, row("1"))
    await write_rows(tmp_path)
    assert len(read_rows(tmp_path)) == 1, "the first row was superseded, and the file replaced"
    assert path.stat().st_mode & 0o777 == 0o640


async def test_two_runs_cannot_write_to_one_folder(tmp_path: Path) -> None:
    async with open_results(tmp_path):
        with pytest.raises(ConfigError, match="another `quintain run` is writing there"):
            await resume_statuses(tmp_path)
    assert await resume_statuses(tmp_path) == {}


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file/out: cannot be written to"):
        await resume_statuses(tmp_path / "file" / "out")


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_disk_that_takes_no_more_is_a_sentence_and_the_rows_before_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    async with open_results(tmp_path) as results:
        await results.append(row("1"))
        with (
            no_file_larger_than(path.stat().st_size + 10),
            pytest.raises(QuintainError, match=r"File too large.*The rows before it are kept"),
        ):
            await results.append(row("2"))
        assert path.read_bytes().endswith(b"}\n")
        await results.append(row("3"))
    assert [one.case_id for one in read_rows(tmp_path)] == ["1", "3"]


def test_a_large_set_of_keys_knows_what_it_was_given_and_nothing_else() -> None:
    count = 3 * store._MIN_MERGE_SIZE
    held = KeyHashSet()
    assert (len(held), key_hash("a") in held) == (0, False)
    for number in range(count):
        held.add(key_hash("case", number))
        held.add(key_hash("case", 0))
    assert len(held) == count
    assert all(key_hash("case", number) in held for number in range(count))
    assert not any(key_hash("other", number) in held for number in range(1000))
    # No part can be shifted into the next one, and text that is no Unicode has a hash too.
    alike = [("a", "b", 1), ("ab", "", 1), ("a", "b1"), ("a", "b", "1"), ("a",), ("half \ud800",), ("half \ud801",)]
    assert len({key_hash(*parts) for parts in alike}) == 7
