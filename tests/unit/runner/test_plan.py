"""What is asked: which trials, under which request ids, and which targets."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.contracts.invoke import InvokeSettings
from quintain.errors import ConfigError
from quintain.graders import Case
from quintain_runner.plan.changes import RerunPolicy, RunFingerprints
from quintain_runner.plan.trials import (
    FindRow,
    check_targets_available,
    choose_targets,
    pending_trials,
    planned_questions,
)
from quintain_runner.results.row import Row, RowError, RowKey, RowStatus
from quintain_runner.spec.evaluation import Evaluation, EvaluationSpec
from quintain_runner.spec.prompts import CASE_AS_IT_IS
from support.grading_context import trial_of

CASES = [Case(id="a", question="qa"), Case(id="b", question="qb")]

QUESTIONS = list(planned_questions(CASES, [CASE_AS_IT_IS], 2))


def row(status: RowStatus, *, case_id: str = "a", repeat: int = 1, output: str | None = None, tries: int = 1) -> Row:
    error = None if status is RowStatus.GRADED else RowError(code="x", error="x")
    (case,) = (one for one in CASES if one.id == case_id)
    return Row(
        case_id=case_id,
        target="t",
        repeat=repeat,
        status=status,
        output=output,
        error=error,
        tries=tries,
        fingerprints=RunFingerprints().row_fingerprints(case, "t"),
    )


def stored(*rows: Row) -> FindRow:
    by_key: dict[RowKey, Row] = {one.key: one for one in rows}
    return by_key.get


def evaluation(targets: list[str] | None) -> Evaluation:
    spec = EvaluationSpec.model_validate(
        {"dataset": "c", "targets": targets, "graders": [{"name": "same", "builtin": "exact"}]}
    )
    return Evaluation(path=Path("eval.yaml"), text="", spec=spec)


KEPT = (
    row(RowStatus.GRADED),
    row(RowStatus.IN_DOUBT, repeat=2),
    row(RowStatus.ERROR, case_id="b"),
    row(RowStatus.ERROR, case_id="b", repeat=2, tries=4),
)


@pytest.mark.parametrize(
    ("again", "asked"),
    [
        (RerunPolicy(), [("b", 1, 2), ("b", 2, 5)]),
        (RerunPolicy(rerun_in_doubt=True), [("a", 2, 2), ("b", 1, 2), ("b", 2, 5)]),
        (RerunPolicy(rerun_errors=False), []),
        (RerunPolicy(rerun_errors=False, rerun_in_doubt=True), [("a", 2, 2)]),
    ],
)
def test_rows_that_erred_or_are_in_doubt_are_asked_again_as_told(
    again: RerunPolicy, asked: list[tuple[str, int, int]]
) -> None:
    planned = pending_trials(QUESTIONS, "t", find_row=stored(*KEPT), rerun_policy=again)
    assert [(trial.case.id, trial.repeat, trial.tries) for trial in planned] == asked
    whole = [trial.key for trial in pending_trials(QUESTIONS, "t", find_row=stored(), rerun_policy=again)]
    assert whole == [("a", "t", 1, None), ("a", "t", 2, None), ("b", "t", 1, None), ("b", "t", 2, None)]
    # An answer that is graded again is no new try.
    kept = row(RowStatus.ERROR, output="the answer", tries=3)
    assert trial_of(CASES[0], "t", previous=kept, kept=kept).tries == 3


def test_a_request_id_is_made_of_what_is_asked_and_of_nothing_else() -> None:
    def request_id(case: Case, target: str, repeat: int, tries: int, fingerprint: str | None = None) -> str:
        before = None if tries == 1 else row(RowStatus.ERROR, tries=tries - 1)
        return trial_of(case, target, repeat=repeat, previous=before, fingerprint=fingerprint).request_id

    first = request_id(CASES[0], "t", 1, 1)
    assert first == request_id(Case(id="a", question="qa"), "t", 1, 1)
    assert len(first) <= 128
    others = {request_id(CASES[1], "t", 1, 1), request_id(CASES[0], "u", 1, 1), request_id(CASES[0], "t", 2, 1)}
    changed = {request_id(Case(id="a", question="other"), "t", 1, 1), request_id(CASES[0], "t", 1, 1, "new")}
    assert request_id(Case(id="a", question="qa", expected="x"), "t", 1, 1) == first
    assert len({first, *others, *changed, request_id(CASES[0], "t", 1, 2)}) == 7
    names = (('a","t', "u"), ("a", 't","u'))
    assert len({request_id(Case(id=name, question="q"), target, 1, 1) for name, target in names}) == 2, (
        "no part can be shifted into the next one"
    )
    settings = InvokeSettings(temperature=0.5)
    asked = trial_of(Case(id="a", question="q", system_prompt="s", settings=settings), "t", repeat=2).request
    assert (asked.question, asked.system_prompt, asked.target, asked.settings) == ("q", "s", "t", settings)
    assert (asked.eval_case_id, asked.attempt) == ("a", 2)


def test_targets_are_the_files_narrowed_by_the_command_or_the_only_one_configured() -> None:
    configured = ["t", "u", "v"]
    assert choose_targets(evaluation(["t", "u"]), configured) == ("t", "u")
    assert choose_targets(evaluation(["t", "u"]), configured, ["u", "u"]) == ("u",)
    assert choose_targets(evaluation(None), configured, ["v"]) == ("v",)
    assert choose_targets(evaluation(None), ["t"]) == ("t",)


@pytest.mark.parametrize(
    ("named", "only", "sentence"),
    [
        (None, [], "it names no targets, and 2 are configured"),
        (["gpt4o"], ["local"], "unknown target 'local'; known: gpt4o"),
        (["gpt4"], [], "unknown target 'gpt4'"),
        (None, ["locale"], "unknown target 'locale'; did you mean 'local'?"),
    ],
)
def test_a_target_that_cannot_be_meant_is_refused(named: list[str] | None, only: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        choose_targets(evaluation(named), ["gpt4o", "local"], only)
    assert sentence in error.value.message


def test_a_target_the_session_cannot_call_is_refused_before_any_call() -> None:
    check_targets_available([("targets", "bot")], ["bot"])
    with pytest.raises(ConfigError, match="judge_target: unknown target 'juge'; did you mean 'judge'"):
        check_targets_available([("targets", "bot"), ("graders[0].judge_target", "juge")], ["bot", "judge"])
