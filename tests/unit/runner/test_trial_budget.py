"""A small budget buys whole rows: a trial begins when the calls of its graders are reserved with its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.session import Info
from quintain.errors import ConfigError
from quintain_runner.engine import trial_budget as budget_module
from quintain_runner.report.summary import ExitCode
from support.evaluations import JUDGED, EvaluationFolder, cases, judged_echo, write_evaluation, write_script
from support.fake_client import FakeClient


class SpendingClient(FakeClient):
    """Each grader's session has spent one call when its counters are read after the grader."""

    async def read_session_info(self, token: str) -> Info:
        if not self.children[token].calls:
            self.spend(token, 1)
        return await super().read_session_info(token)


def judged(folder: Path, count: int, max_calls: int) -> EvaluationFolder:
    (folder / "prompt.md").write_text("Is it right?")
    write_evaluation(folder, cases(count), [JUDGED])
    client = FakeClient(judged_echo, max_calls=max_calls, targets=("bot", "judge"))
    return EvaluationFolder(folder, client, concurrency=64)


async def test_thirty_calls_for_a_hundred_and_twenty_trials_with_a_judge_are_fifteen_rows(tmp_path: Path) -> None:
    folder = judged(tmp_path, 120, 30)
    summary = await folder.run()
    assert (summary.exit_code, summary.total.graded, summary.total.errors) == (ExitCode.BUDGET_SPENT, 15, 0)
    assert (summary.total.calls, folder.client.reserved) == (30, 0)
    folder.client.max_calls = 240
    summary = await folder.run()
    assert (summary.exit_code, summary.total.graded, summary.total.calls) == (ExitCode.PASSED, 120, 240)


async def test_with_enough_for_everything_nothing_is_reserved(tmp_path: Path) -> None:
    folder = judged(tmp_path, 5, 10)
    reserved: list[Sequence[str]] = []

    async def refuse(request_ids: Sequence[str], *, deadline_seconds: float = 0) -> int:
        reserved.append(request_ids)
        raise ConfigError("A gateway has no operation ReserveCalls")

    folder.client.reserve_ids = refuse
    assert ((await folder.run()).total.graded, reserved) == (5, [])
    # Over HTTP a run does without reservations of single calls.
    (tmp_path / "http").mkdir()
    http = judged(tmp_path / "http", 5, 4)
    http.client.reserve_ids = refuse
    assert ((await http.run()).total.calls, reserved == []) == (4, False)


async def test_a_reservation_is_renewed_while_the_trial_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_module, "RENEWAL_SECONDS", 0.01)
    renewed = asyncio.Event()

    async def slow(request: InvokeRequest) -> str:
        await renewed.wait()
        return await judged_echo(request)

    folder = judged(tmp_path, 3, 2)
    folder.client.answer = slow
    times: list[tuple[str, ...]] = []
    reserve_ids = folder.client.reserve_ids

    async def count(request_ids: Sequence[str], *, deadline_seconds: float = 0) -> int:
        times.append(tuple(request_ids))
        if times.count(tuple(request_ids)) == 3:
            renewed.set()
        return await reserve_ids(request_ids)

    folder.client.reserve_ids = count
    assert (await folder.run()).total.graded == 1


@pytest.mark.parametrize("max_calls", [4, 8])
async def test_a_grader_that_has_used_its_own_limit_names_it(tmp_path: Path, max_calls: int) -> None:
    """Its second call is refused, by its own limit: with the run's budget spent, and with twice as much."""
    argv = write_script(tmp_path, "judge.py", "raise SystemExit('Max calls exceeded (limit: 1)')")
    write_evaluation(tmp_path, cases(2), [{"name": "own", "command": argv, "target": {"max_calls": 1}}])
    client = SpendingClient(judged_echo, max_calls=max_calls)
    folder = EvaluationFolder(tmp_path, client)
    summary = await folder.run()
    assert (summary.exit_code, summary.total.calls, summary.total.errors) == (ExitCode.ERRORS, 4, 2)
    for row in folder.rows():
        assert row.error.code == "grader_failed"
        assert "its own limit, target: {max_calls: 1}" in row.error.error


@pytest.mark.parametrize("limit", [10, None])
async def test_a_programs_limit_is_reserved_or_what_it_was_seen_to_use(tmp_path: Path, limit: int | None) -> None:
    """The grader makes no calls: with a limit of 10 it could, so that two trials fit into 25 at once."""
    argv = write_script(tmp_path, "judge.py", "print('{\"pass\": true}')")
    target = {} if limit is None else {"target": {"max_calls": limit}}
    write_evaluation(tmp_path, cases(20), [{"name": "own", "command": argv, **target}])
    folder = EvaluationFolder(tmp_path, FakeClient(judged_echo, max_calls=25), concurrency=64)
    held: list[int] = []
    close_child = folder.client.close_child

    async def close(token: str) -> Info:
        held.append(sum(child.reserved > 0 for child in folder.client.children.values()))
        return await close_child(token)

    folder.client.close_child = close
    summary = await folder.run(grader_concurrency=2)
    assert folder.client.reserved == 0
    assert summary.total.errors == 0
    if limit is not None:
        assert max(held) == 2
    assert summary.total.graded >= 15
