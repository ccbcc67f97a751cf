"""results.jsonl: nothing that was written is lost, and nothing half-written is believed."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quintain.errors import ConfigError, QuintainError
from quintain_runner.results.row import Row, RowError, RowKey, RowStatus
from quintain_runner.results.store import charged_calls, open_results
from support.results_folder import MADE_OF


def row(case_id: str, *, status: RowStatus = RowStatus.GRADED, tries: int = 1) -> Row:
    error = RowError(code="x", error="x") if status is RowStatus.ERROR else None
    return Row(
        fingerprints=MADE_OF,
        case_id=case_id,
        target="bot",
        repeat=1,
        status=status,
        score=1.0,
        error=error,
        tries=tries,
    )


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


async def test_what_was_appended_is_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    await write_rows(tmp_path / "new" / "folder", *(row(str(number)) for number in range(200)))
    assert len(await resume_statuses(tmp_path / "new" / "folder", *map(str, range(200)))) == 200


async def test_a_row_is_on_the_disk_when_append_returns(tmp_path: Path) -> None:
    async with open_results(tmp_path) as results:
        await results.append(row("1"))
        assert [one.case_id for one in read_rows(tmp_path)] == ["1"]


async def test_a_torn_last_line_is_cut_at_every_byte_it_may_be_torn_at(tmp_path: Path) -> None:
    await write_rows(tmp_path, row("1"), row("2"))
    path = tmp_path / "results.jsonl"
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        assert list(await resume_statuses(tmp_path, "1", "2")) == ["1"]
        assert path.read_bytes() == whole[:first]


async def test_after_a_torn_line_new_rows_stand_on_lines_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_bytes(b'{"schemaVersion":1,"caseId":"to')
    await write_rows(tmp_path, row("2"))
    assert [one.case_id for one in read_rows(tmp_path)] == ["2"]


async def test_the_latest_row_of_a_key_wins_and_the_others_are_compacted_away(tmp_path: Path) -> None:
    await write_rows(tmp_path, row("1", status=RowStatus.ERROR), row("2"))
    async with open_results(tmp_path) as results:
        before = results.find(RowKey("1", "bot", 1))
        assert before is not None
        assert before.status is RowStatus.ERROR
        await results.append(row("1", tries=2), supersedes=True)
        assert [one.case_id for one in read_rows(tmp_path)] == ["1", "2", "1"]
    assert [(one.case_id, one.tries) for one in read_rows(tmp_path)] == [("2", 1), ("1", 2)]
    assert await resume_statuses(tmp_path, "1", "2") == {"1": (RowStatus.GRADED, 2), "2": (RowStatus.GRADED, 1)}
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl"]


async def test_superseded_rows_of_a_run_that_was_killed_are_read_past(tmp_path: Path) -> None:
    lines = [row("1", status=RowStatus.ERROR), row("1", status=RowStatus.ERROR, tries=2), row("1", tries=3)]
    text = "".join(one.model_dump_json(by_alias=True) + "\n" for one in lines)
    (tmp_path / "results.jsonl").write_text(text)
    assert await resume_statuses(tmp_path, "1") == {"1": (RowStatus.GRADED, 3)}
    assert [one.tries for one in read_rows(tmp_path)] == [3]


async def test_the_counts_are_those_of_the_rows_that_count(tmp_path: Path) -> None:
    spent = [row("1", status=RowStatus.ERROR), row("1", tries=2), row("2", status=RowStatus.ERROR)]
    lines = [one.model_copy(update={"calls": calls}) for one, calls in zip(spent, (1, 3, 5), strict=True)]
    (tmp_path / "results.jsonl").write_text("".join(one.model_dump_json(by_alias=True) + "\n" for one in lines))
    async with open_results(tmp_path) as results:
        tally = results.resume_state.tallies["bot", 1]
    assert (tally.graded, tally.errors, tally.calls, tally.done) == (1, 1, 8, 2)
    assert charged_calls(tmp_path) == 8
    assert charged_calls(tmp_path / "nowhere") == 0


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


async def test_a_line_that_is_no_row_is_named_and_nothing_is_thrown_away(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text("nonsense\n" + row("1").model_dump_json(by_alias=True) + "\n")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="line 1 is not JSON"):
        await resume_statuses(tmp_path)
    assert path.read_bytes() == before


async def test_a_row_of_another_version_is_refused_even_as_the_last(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"schemaVersion":3,"caseId":"1"}\n')
    with pytest.raises(ConfigError, match="not a row of this version"):
        await resume_statuses(tmp_path)
    assert path.read_text() == '{"schemaVersion":3,"caseId":"1"}\n'


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
