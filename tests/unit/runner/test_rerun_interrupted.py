"""The same command after one that was cut off at any write of the results, or whose answers the ledger has deleted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ConfigError, ReplyExpired
from quintain_runner.plan.changes import RerunPolicy
from quintain_runner.report.run_report import read_report
from quintain_runner.results.store import all_current_rows
from support.evaluations import EXACT, JUDGED, EvaluationFolder, Json, cases, judged_echo, write_evaluation
from support.fake_client import FakeClient


@pytest.fixture
def folder(tmp_path: Path) -> EvaluationFolder:
    write_evaluation(tmp_path, cases(3), [EXACT, JUDGED])
    (tmp_path / "prompt.md").write_text("first")
    return EvaluationFolder(tmp_path, FakeClient(judged_echo, targets=("bot", "judge")), concurrency=1)


async def test_a_re_grading_that_is_cut_off_at_any_write_leaves_true_rows(folder: EvaluationFolder) -> None:
    results = folder.output / "results.jsonl"
    await folder.run()
    before = results.stat().st_size
    (folder.path / "prompt.md").write_text("second")

    async def fail_at_the_last(request: InvokeRequest) -> str:
        if request.eval_case_id == "case-2":
            raise RuntimeError("the run ends here")
        return await judged_echo(request)

    folder.client.answer = fail_at_the_last
    with pytest.raises(RuntimeError, match="the run ends here"):
        await folder.run()
    folder.client.answer = judged_echo
    written = results.read_bytes()
    ends = [at + 1 for at in range(before - 1, len(written)) if written[at : at + 1] == b"\n"]
    assert len(ends) == 6, "the end of the first run, three marks, and two rows"
    for end in sorted({*ends, *(end - 40 for end in ends[1:])}):
        results.write_bytes(written[:end])
        marked = end >= ends[3]
        rows = {row.case_id: row for row in all_current_rows(folder.output)}
        assert len(rows) == 3
        for row in rows.values():
            # Before the last mark is written nobody was asked; after it no old verdict counts.
            assert row.graders["judged"].reason == "first" or row.counts
            assert not (marked and row.counts and row.graders["judged"].reason == "first")
        asked = len([one for one in folder.client.requests if one.target == "bot"])
        summary = await folder.run()
        assert (summary.total.graded, summary.total.errors) == (3, 0)
        assert {row.graders["judged"].reason for row in read_report(folder.output).rows()} == {"second"}
        assert asked == len([one for one in folder.client.requests if one.target == "bot"]) == 3


@pytest.mark.parametrize(
    ("target", "tries", "calls", "judge_calls", "calls_without_row"), [("bot", 2, 3, 1, 3), ("judge", 1, 3, 2, 0)]
)
async def test_an_answer_that_the_ledger_has_deleted_is_asked_again_and_counted(
    folder: EvaluationFolder, target: str, tries: int, calls: int, judge_calls: int, calls_without_row: int
) -> None:
    await folder.run()
    (folder.output / "results.jsonl").unlink()
    for request, request_id in zip(folder.client.requests, folder.client.request_ids, strict=True):
        if request.target == target:
            folder.client._outcomes[request_id] = ReplyExpired()
    summary = await folder.run()
    assert (summary.total.graded, summary.total.errors) == (3, 0)
    # Of a new try the verdict is another call too; the first one is in no row.
    assert summary.total.calls_without_row == calls_without_row
    found = [(row.tries, row.calls, row.graders["judged"].calls) for row in folder.rows()]
    assert found == [(tries, calls, judge_calls)] * 3
    asked = len(folder.client.requests)
    await folder.run()
    assert len(folder.client.requests) == asked


async def test_a_file_whose_clock_went_back_is_a_changed_file(folder: EvaluationFolder) -> None:
    prompt = folder.path / "prompt.md"
    await folder.run()
    status = prompt.stat()
    prompt.write_text("third")
    os.utime(prompt, ns=(status.st_atime_ns, status.st_mtime_ns - 3_600_000_000_000))
    await folder.run()
    assert {row.graders["judged"].reason for row in folder.rows()} == {"third"}


async def test_a_grader_whose_module_is_gone_is_refused_by_name_and_its_rows_stay(folder: EvaluationFolder) -> None:
    function: Json = {"name": "polite", "function": "polite_grader:polite"}
    module = folder.path / "polite_grader.py"
    source = "import quintain\n@quintain.grader\ndef polite(output):\n    return 1.0\n"
    module.write_text(source)
    write_evaluation(folder.path, cases(3), [EXACT, function])
    await folder.run()
    before, asked = (folder.output / "results.jsonl").read_bytes(), len(folder.client.requests)
    module.unlink()
    for policy in (RerunPolicy(), RerunPolicy(keep_stale=True)):
        with pytest.raises(ConfigError, match="polite_grader"):
            await folder.run(rerun_policy=policy)
    assert (folder.output / "results.jsonl").read_bytes() == before
    module.write_text(source)
    await folder.run()
    assert len(folder.client.requests) == asked
