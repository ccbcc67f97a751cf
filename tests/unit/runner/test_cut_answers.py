"""Answers that ended at a limit of tokens: marked in their rows, counted once for each target, graded as any."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from quintain.contracts.agents import AgentStep
from quintain.contracts.invoke import InvokeRequest, Result
from quintain.graders import Case
from quintain_runner.engine.trial import run_trial
from quintain_runner.graders.judge import JudgeGraderRunner
from quintain_runner.report.inspect_export import write_inspect_logs
from quintain_runner.report.report_files import render_markdown, write_csv
from quintain_runner.report.run_report import read_report
from quintain_runner.results.answer import is_cut
from quintain_runner.spec.asking_graders import JudgeGrader
from support.evaluations import EXACT, EvaluationFolder, cases, write_evaluation
from support.fake_client import FakeClient
from support.grading_context import grading_context, trial_of
from support.judged import result_of


class CutClient(FakeClient):
    """Answers with the question; those to ``q0`` and all of ``sage`` end at a limit."""

    def _result(self, request: InvokeRequest, text: str) -> Result:
        is_short = request.question == "q0" or request.target == "sage"
        return super()._result(request, text).with_fields(finish_reason="length" if is_short else "stop")


@pytest.mark.parametrize(
    ("reason", "cut"),
    [
        *((reason, True) for reason in ("length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_length")),
        *((reason, True) for reason in ("model_context_window_exceeded", "incomplete")),
        *((reason, False) for reason in ("stop", "end_turn", "tool_calls", "content_filter", "refusal", "", None)),
    ],
)
def test_an_answer_is_cut_in_the_words_of_every_vendor(reason: str | None, *, cut: bool) -> None:
    assert is_cut(result_of("one, t", finish_reason=reason)) is cut
    said = [{"role": "assistant", "parts": [], "finish_reason": reason}]
    assert is_cut(result_of("one, t", steps=[AgentStep(operation="chat", messages=said)])) is cut
    assert not is_cut(result_of("x", steps=[AgentStep(operation="chat", messages=said), AgentStep(operation="chat")]))


async def test_cut_answers_are_counted_by_target_in_every_report_and_not_asked_again(tmp_path: Path) -> None:
    folder = EvaluationFolder(tmp_path, CutClient(targets=("bot", "sage")), targets=("bot", "sage"))
    write_evaluation(tmp_path, cases(2), [EXACT], prompts=["{{ question }}", {"name": "b", "system": "Be brief."}])
    summary = await folder.run()
    assert (summary.total.graded, summary.total.errors, summary.total.cut) == (8, 0, 6)
    asked = len(folder.client.requests)
    assert ((await folder.run()).total.cut, len(folder.client.requests)) == (6, asked)
    record = json.loads((folder.output / "run.json").read_text())
    assert (record["totals"]["cut"], record["targets"]["sage · b"]["cut"]) == (6, 2)
    report = read_report(folder.output)
    notes = [line for line in render_markdown(report, "quintain run").splitlines() if "cut at max" in line]
    cut = [note.partition(";")[0] for note in notes]
    assert cut == [f"{name}: {count} answers were cut at max\\_tokens" for name, count in (("bot", 2), ("sage", 4))]
    write_csv(tmp_path / "rows.csv", report)
    with (tmp_path / "rows.csv").open(encoding="utf-8-sig") as file:
        assert sorted(line["cut"] for line in csv.DictReader(file)) == list("00111111")
    logs = [json.loads(path.read_text()) for path in write_inspect_logs(tmp_path / "logs", report)]
    reasons = [sample["output"]["choices"][0]["stop_reason"] for log in logs for sample in log["samples"]]
    assert sorted(reasons) == ["max_tokens"] * 6 + ["stop"] * 2


async def test_a_judge_whose_reply_was_cut_before_its_verdict_says_so() -> None:
    async def answer(request: InvokeRequest) -> str:
        return '{"pass": tr' if request.target == "sage" else "Rome"

    spec = JudgeGrader(name="judge", builtin="llm-judge", prompt="p.md", judge_target="sage")
    client = CutClient(answer, targets=("bot", "sage"))
    context = grading_context(client, JudgeGraderRunner(spec, "Right?"))
    outcome = await run_trial(trial_of(Case(id="a", question="q")), context)
    error = outcome.row.graders["judge"].error
    assert all(part in error for part in ("gave no verdict", "cut at max_tokens"))
