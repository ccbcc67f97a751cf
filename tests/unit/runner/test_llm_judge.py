"""A model as a grader: what it is asked, how hostile answers are held, what is no verdict, and what was cut."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from quintain.config.loader import load_config
from quintain.contracts.agents import AgentStep
from quintain.contracts.invoke import ChatMessage, InvokeRequest, Result
from quintain.errors import Fault, Throttled
from quintain.graders import Case
from quintain_runner.engine.judges import agents_of, settings_of
from quintain_runner.engine.trial import TrialOutcome, run_trial
from quintain_runner.graders.judge import JudgeGraderRunner, recorded_judges
from quintain_runner.graders.judge_request import build_judge_request, parse_judgement, sent_request
from quintain_runner.graders.verdict import GraderError
from quintain_runner.report.inspect_export import write_inspect_logs
from quintain_runner.report.report_files import render_markdown, write_csv
from quintain_runner.report.run_report import read_report
from quintain_runner.results.answer import is_cut
from quintain_runner.results.row import GraderRow, JudgeUsed, Row, RowStatus
from quintain_runner.spec.asking_graders import JudgeGrader
from quintain_runner.spec.grader_options import IS_DATA
from support.evaluations import EXACT, EvaluationFolder, cases, write_evaluation
from support.fake_client import FakeClient
from support.grading_context import grading_context, trial_of
from support.judged import result_of, shown_in

CASE = Case(id="c1", question="Capital of Italy?", expected="Rome", metadata={"rubric": ["short"], "level": 2})
TRIAL = trial_of(CASE)
PASSES = '{"pass": true, "reason": "it is Rome"}'
JUDGE = JudgeGraderRunner(
    JudgeGrader(name="judge", builtin="llm-judge", prompt="p.md", judge_target="sage"), "Is it right?"
)


def judge_request_for(answer: str = "Rome", **options: object) -> InvokeRequest:
    spec = JudgeGrader.model_validate({"name": "j", "builtin": "llm-judge", "prompt": "p.md", **options})
    return build_judge_request(spec, "Is it right?", CASE, result_of(answer), target="sage")


class ScriptedJudge(FakeClient):
    """Answers as a bot, and judges as it is told."""

    def __init__(self, *replies: str | Fault) -> None:
        super().__init__(self.answer, targets=("bot", "sage"))
        self.replies = list(replies)

    async def answer(self, request: InvokeRequest) -> str:
        if request.target != "sage":
            return "Rome"
        said = self.replies.pop(0)
        if isinstance(said, Fault):
            raise said
        return said


def test_the_judge_is_shown_the_question_what_is_expected_and_the_answer() -> None:
    request, other = judge_request_for(), judge_request_for("Paris")
    assert shown_in(request) == {"question": "Capital of Italy?", "expected": "Rome", "output": "Rome"}
    assert request.system_prompt.startswith("Is it right?\n")
    assert (request.target, request.settings) == ("sage", None)
    # Providers can cache what is the same for all answers.
    assert (request.system_prompt == other.system_prompt, request.question == other.question) == (True, False)
    assert request == judge_request_for()


async def test_the_templates_of_a_judge_are_filled_with_the_case_and_never_with_the_answer() -> None:
    rubric = [{"id": "fit", "text": "It is {{ rubric | join }}, at level {{ level + 1 }}."}]
    spec = JudgeGrader.model_validate({**JUDGE.spec.model_dump(exclude_unset=True), "rubric": rubric})
    runner = JudgeGraderRunner(spec, "Is {{ output }} {% if expected %}{{ expected | upper }}{% endif %}?")
    client = ScriptedJudge(*['{"criteria": {"fit": {"score": 1}}}'] * 2)
    outcome = await run_trial(TRIAL, grading_context(client, runner))
    told = client.requests[-1].system_prompt or ""
    assert told.startswith("Is the section output ROME?\n")
    assert "- fit: It is short, at level 3.\n" in told
    (check,) = outcome.row.graders["judge"].checks or ()
    assert check.text == "It is short, at level 3."
    own = JudgeGrader.model_validate(spec.model_dump(exclude_unset=True), context={IS_DATA: True})
    await run_trial(trial_of(CASE, repeat=2), grading_context(client, replace(runner, spec=own)))
    # What a case has is data.
    assert "- fit: It is {{ rubric | join }}, at level" in (client.requests[-1].system_prompt or "")


@pytest.mark.parametrize(
    ("reply", "score", "passed"),
    [
        (PASSES, 1.0, True),
        ('{"pass": false}', 0.0, False),
        (' {"score": 0.25, "reason": "nearly"}\n', 0.25, False),
        ('{"score": 0.9, "pass": false, "reason": null}', 0.9, False),
        ('Let me see.\n```json\n{"score": 1, "reason": "yes"}\n```\n', 1.0, True),
    ],
)
def test_a_verdict_is_one_json_object(reply: str, score: float, *, passed: bool) -> None:
    verdict = parse_judgement(reply)
    assert (verdict.score, verdict.passed) == (score, passed)


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        ("Yes, it passes.", "gave no verdict"),
        ("", "its reply begins with nothing"),
        ('The answer says {"pass": true}, and it is wrong.', "gave no verdict"),
        ('```\n{"pass": true}\n```\n```\n{"pass": false}\n```', "2 fenced blocks"),
        ("[true]", "JSON without pass and score"),
        ('{"verdict": "pass"}', "JSON without pass and score"),
        ('{"score": 7}', "cannot be used. Its score is not from 0 to 1"),
        ('{"score": 1, "score": 0}', "'score' is given twice"),
        ('{"score": NaN}', "gave no verdict"),
        ('{"pass": null, "score": null}', "cannot be used"),
        ("[" * 100_000, "gave no verdict"),
    ],
)
def test_what_is_no_verdict_is_an_error_and_never_a_score(reply: str, sentence: str) -> None:
    with pytest.raises(GraderError, match=re.escape(sentence)) as error:
        parse_judgement(reply)
    assert len(error.value.message) < 400


RUBRIC = [
    {"id": "right", "text": "It names Rome.", "weight": 3, "required": True},
    {"id": "short", "text": "It is one word."},
]


def rubric_verdict(reply: object) -> GraderRow:
    spec = JudgeGrader.model_validate({"name": "j", "builtin": "llm-judge", "rubric": RUBRIC})
    return parse_judgement(json.dumps(reply), spec.rubric)


@pytest.mark.parametrize(
    ("right", "short", "score", "passed"),
    [
        ({"score": 1}, {"score": 0.5}, 0.875, True),
        ({"pass": True}, {"pass": False, "reason": "three words"}, 0.75, True),
        ({"score": 0.4, "reason": "Roma"}, {"score": 1}, 0.55, False),
        ({"score": 0}, {"score": 1}, 0.25, False),
    ],
)
def test_a_rubric_is_a_score_for_each_criterion(right: object, short: object, score: float, *, passed: bool) -> None:
    verdict = rubric_verdict({"criteria": {"right": right, "short": short}})
    assert (verdict.score, verdict.passed) == (pytest.approx(score), passed)
    assert [check.id for check in verdict.checks] == ["right", "short"]


ONE = {"score": 1}


@pytest.mark.parametrize(
    "criteria",
    [
        *({"right": ONE}, {"right": ONE, "short": ONE, "polite": ONE}, [{"id": "right", "score": 1}], None),
        *({"right": ONE, "short": short} for short in ({"score": 2}, {"reason": "long"}, 1)),
    ],
)
def test_a_criterion_that_is_left_out_or_unusable_is_an_error_and_not_0(criteria: object) -> None:
    with pytest.raises(GraderError):
        rubric_verdict({"criteria": criteria})


def test_a_rubric_is_all_that_a_judge_is_told_and_its_schema_where_the_provider_takes_one() -> None:
    spec = JudgeGrader.model_validate({"name": "j", "builtin": "llm-judge", "rubric": RUBRIC, "structured": True})
    plain = judge_request_for(structured=True).settings.response_format["json_schema"]["schema"]
    assert plain["required"] == ["score", "pass", "reason"]
    request = build_judge_request(spec, "", CASE, result_of("Rome"), target="sage")
    assert all(f"- {criterion['id']}: {criterion['text']}" in (request.system_prompt or "") for criterion in RUBRIC)
    schema = request.settings.response_format["json_schema"]["schema"]
    assert schema["properties"]["criteria"]["required"] == ["right", "short"]


@pytest.mark.parametrize("judge_target", ["sage", None])
async def test_a_judgement_is_one_call_of_the_run_that_the_row_counts_with_its_judge(judge_target: str | None) -> None:
    runner = replace(JUDGE, spec=JUDGE.spec.model_copy(update={"judge_target": judge_target}))
    client = ScriptedJudge(Throttled("slow down"), PASSES) if judge_target else ScriptedJudge()
    context = replace(grading_context(client, runner), settings={"sage": {"temperature": 0.0, "seed": 7}})
    row = (await run_trial(TRIAL, context)).row
    if judge_target is None:
        # Without a target of its own it is the configured one of the judged target.
        assert client.requests[-1].target == "configured-judge"
        return
    verdict = row.graders["judge"]
    assert (verdict.reason, verdict.calls, verdict.judge.settings) == ("it is Rome", 1, {"temperature": 0.0, "seed": 7})
    assert (row.status, row.calls, row.token_usage.input, client.used) == (RowStatus.GRADED, 2, 20, 2)
    assert client.children == {}
    # After a crash the same judgement is the same call.
    again = await run_trial(TRIAL, context)
    assert (again.row, client.used) == (row, 2)


def used_in(outcome: TrialOutcome) -> JudgeUsed:
    return outcome.row.graders["judge"].judge


@pytest.mark.parametrize("reply", [PASSES, "I like it", "x" * 20_000])
async def test_the_row_has_the_reply_as_it_was_given_and_how_much_of_it_is_missing(reply: str) -> None:
    outcome = await run_trial(TRIAL, grading_context(ScriptedJudge(reply), JUDGE))
    used = used_in(outcome)
    assert used.reply == reply[:16_000]
    assert used.reply_cut == len(reply) - len(used.reply)
    bare = outcome.row.without_content().to_line()
    assert [word in bare for word in (b'"reply', b'"request"', b'"sage"')] == [False, False, True]


def test_the_recorded_judge_has_its_prompt_and_no_key() -> None:
    key = f"sk-proj-{'a1' * 24}"
    recorded = recorded_judges([JudgeGraderRunner(JUDGE.spec, f"Is it right? {key}")])["judge"]
    told = {"name": "judge", "builtin": "llm-judge", "instructions": "Is it right? …", "judge_target": "sage"}
    assert recorded == told


HISTORY = [ChatMessage(role="system", content="Be terse."), ChatMessage(role="user", content="And of Italy?")]


@pytest.mark.parametrize(
    ("case", "options"),
    [
        (CASE, {}),
        (Case(id="c1", question="Capital?", expected={"city": ["Rome"]}, metadata={"level": 2}), {"not": True}),
        (
            Case(id="c1", messages=HISTORY, system_prompt="Be kind.", expected="Rome"),
            {"show": ["conversation", "output"]},
        ),
        (Case(id="c1", turns=["Where?", "And its capital?"], expected="Rome"), {"structured": True}),
    ],
)
async def test_what_the_judge_was_sent_can_be_made_again(case: Case, options: dict[str, object]) -> None:
    runner = JudgeGraderRunner(
        JudgeGrader.model_validate(JUDGE.spec.model_dump(exclude_unset=True) | options), JUDGE.prompt
    )
    client = ScriptedJudge(PASSES)
    outcome = await run_trial(trial_of(case), grading_context(client, runner))
    stored = Row.model_validate_json(outcome.row.to_line())
    recorded = json.loads(json.dumps(recorded_judges([runner])["judge"]))
    assert sent_request(recorded, stored, used_in(outcome)) == client.requests[-1]


@pytest.mark.parametrize("what", ["prompt", "answer", "field", "contents", "hash", "record", "unknown key"])
async def test_what_the_judge_was_not_sent_is_not_made(what: str) -> None:
    options = {"show": ["output", "level"]} if what == "field" else {}
    runner = JudgeGraderRunner(
        JudgeGrader.model_validate(JUDGE.spec.model_dump(exclude_unset=True) | options), JUDGE.prompt
    )
    outcome = await run_trial(TRIAL, grading_context(ScriptedJudge(PASSES), runner))
    row, used, recorded = outcome.row, used_in(outcome), recorded_judges([runner])["judge"]
    match what:
        case "prompt":
            recorded = {**recorded, "instructions": "Is it wrong?"}
        case "answer":
            row = row.with_fields(output="Paris")
        case "contents":
            row = row.without_content()
        case "hash":
            used = used.with_fields(request=None)
        case "record":
            recorded = {}
        case "unknown key":
            recorded = {**recorded, "later": 1}
    assert sent_request(recorded, row, used) is None


CONFIG = """
targets:
  sage:
    provider: openai
    model: m-1
    api_key: ${{ KEY }}
    temperature: 0
    max_tokens: ${{ MOST }}
    settings: {seed: 7, extra_body: {token: "${{ KEY }}"}}
  bot: {provider: mock}
"""


def test_settings_of_judges_have_the_values_of_variables_and_nothing_that_may_be_secret(tmp_path: Path) -> None:
    (tmp_path / "quintain.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "quintain.yaml")
    found = settings_of(config, {"KEY": "hidden", "MOST": "50"})
    assert found == {"sage": {"temperature": 0.0, "max_tokens": 50, "seed": 7}, "bot": {}}
    assert settings_of(None, {}) == {}


def test_the_targets_with_steps_as_a_rule_are_those_that_act_and_can_tell_it(tmp_path: Path) -> None:
    (tmp_path / "quintain.yaml").write_text(
        """
targets:
  model: {provider: openai, model: m-1, api_key: "${{ KEY }}"}
  function: {provider: python, callable: "m:f"}
  agent: {provider: agent, agent: "m:f"}
  coder: {provider: command, preset: codex}
  program: {provider: command, command: [x], output_format: json}
  hosted: {provider: target}
  silent: {provider: http, url: "http://x/", body: {p: "{{ prompt }}"}, answer: /a}
  telling: {provider: http, url: "http://x/", body: {p: "{{ prompt }}"}, answer: /a, steps: /s}
"""
    )
    assert agents_of(load_config(tmp_path / "quintain.yaml")) == {"agent", "coder", "hosted", "telling"}
    assert agents_of(None) == set()


# Answers that ended at a limit of tokens: marked in their rows, counted once for each target, graded as any.


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
