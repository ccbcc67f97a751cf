"""A whole run over a fake session, with real grader processes and real files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quintain.contracts.invoke import InvokeRequest
from quintain.errors import BrokerUnavailable, ConfigError
from quintain_runner.engine.run import update_budget
from quintain_runner.engine.session import RunSession
from quintain_runner.report.progress import ProgressState
from quintain_runner.results.counts import ResumeState
from quintain_runner.results.row import Row, RowKey
from support.evaluations import EXACT, EvaluationFolder, cases, write_evaluation
from support.fake_client import FakeClient


def prepared(folder: Path, count: int = 10, *, client: FakeClient | None = None) -> EvaluationFolder:
    write_evaluation(folder, cases(count), [EXACT])
    return EvaluationFolder(folder, client or FakeClient())


async def test_only_so_many_trials_exist_at_once(tmp_path: Path) -> None:
    together = asyncio.Barrier(8)

    async def meeting(request: InvokeRequest) -> str:
        await together.wait()
        return request.question or ""

    folder = prepared(tmp_path, 80, client=FakeClient(meeting))
    folder.concurrency = together.parties
    # What is not known of a target is not waited for.
    folder.client.fingerprints.clear()
    await folder.run()
    assert folder.client.max_in_flight == together.parties


async def test_a_call_that_is_refunded_does_not_make_the_counter_run_backwards(tmp_path: Path) -> None:
    client = FakeClient()
    board = ProgressState(["bot"], cases=100, repeats=1, resume_state=ResumeState())
    session, shown = RunSession(client=client, session_id="s"), []
    for charged, running in ((141, 60), (85, 4), (139, 50)):
        info = (await client.get_info()).model_copy(update={"call_count": charged, "running": running})
        update_budget(board, info, session)
        shown.append(board.calls)
    assert shown == [81, 81, 89]
    update_budget(board, info, session, has_ended=True)
    assert board.calls == 139


async def test_a_fleet_that_is_gone_ends_the_run_with_its_reason_and_keeps_the_rows(tmp_path: Path) -> None:
    async def going(request: InvokeRequest) -> str:
        if request.question != "q0":
            raise BrokerUnavailable("No broker at amqp://gone")
        return "q0"

    folder = prepared(tmp_path, client=FakeClient(going))
    folder.concurrency = 1
    with pytest.raises(BrokerUnavailable, match="amqp://gone"):
        await folder.run()
    assert [row.case_id for row in folder.rows()] == ["case-0"]


async def test_a_bad_dataset_and_an_unknown_target_are_refused_before_any_call(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    folder.targets = ("bott",)
    with pytest.raises(ConfigError, match="targets: unknown target 'bott'; did you mean 'bot'"):
        await folder.run()
    folder.targets = ("bot",)
    with (tmp_path / "cases.jsonl").open("a") as file:
        file.write("not json\n")
    with pytest.raises(ConfigError, match=r"cases\.jsonl: line 11: it is not JSON"):
        await folder.run()
    assert folder.client.requests == []
    assert not folder.output.exists()


def by_key(row: Row) -> RowKey:
    return row.key


async def test_a_run_that_was_stopped_and_taken_up_equals_an_undisturbed_one(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole = prepared(tmp_path / "whole", 12)
    await whole.run()
    parts = prepared(tmp_path / "parts", 12, client=FakeClient(max_calls=5))
    for parts.client.max_calls in (5, 8, 12):
        summary = await parts.run()
    assert sorted(parts.rows(), key=by_key) == sorted(whole.rows(), key=by_key)
    assert summary.total.calls == 12
