"""What is asked: which trials, under which request ids, and which targets."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.errors import ConfigError
from quintain_runner.dataset import Case
from quintain_runner.evaluation import Evaluation, EvaluationSpec
from quintain_runner.plan import Trial, check_known, choose_targets, next_try, trials
from quintain_runner.rows import Key, Mark, Row, RowError, Status

CASES = [Case(id="a", question="qa"), Case(id="b", question="qb")]


def mark(status: Status, *, output: str | None = None, tries: int = 1) -> Mark:
    error = None if status is Status.GRADED else RowError(code="x", error="x")
    return Mark.of(Row(case_id="a", target="t", repeat=1, status=status, output=output, error=error, tries=tries))


def evaluation(targets: list[str] | None) -> Evaluation:
    spec = EvaluationSpec.model_validate(
        {"dataset": "c", "targets": targets, "graders": [{"name": "same", "builtin": "exact"}]}
    )
    return Evaluation(path=Path("eval.yaml"), text="", spec=spec)


def test_every_case_is_asked_of_every_target_as_often_as_said() -> None:
    planned = [trial.key for trial in trials(CASES, ["t", "u"], repeats=2, kept={})]
    assert planned == [
        ("a", "t", 1), ("a", "t", 2), ("a", "u", 1), ("a", "u", 2),
        ("b", "t", 1), ("b", "t", 2), ("b", "u", 1), ("b", "u", 2),
    ]  # fmt: skip


def test_graded_and_doubtful_rows_are_kept_and_errored_ones_asked_again() -> None:
    kept = {Key("a", "t", 1): mark(Status.GRADED), Key("a", "t", 2): mark(Status.IN_DOUBT)}
    kept |= {Key("b", "t", 1): mark(Status.ERROR), Key("b", "t", 2): mark(Status.ERROR, tries=4)}
    again = list(trials(CASES, ["t"], repeats=2, kept=kept))
    assert [(trial.case.id, trial.repeat, trial.tries) for trial in again] == [("b", 1, 2), ("b", 2, 5)]


def test_where_the_target_answered_and_a_grader_failed_it_is_the_same_call_again() -> None:
    assert next_try(mark(Status.ERROR, output="the answer", tries=3)) == 3


def test_a_request_id_is_made_of_what_is_asked_and_of_nothing_else() -> None:
    def request_id(case: Case, target: str, repeat: int, tries: int) -> str:
        return Trial(case=case, target=target, repeat=repeat, tries=tries).request_id

    first = request_id(CASES[0], "t", 1, 1)
    assert first == request_id(Case(id="a", question="qa"), "t", 1, 1)
    assert len(first) <= 128
    others = {request_id(CASES[1], "t", 1, 1), request_id(CASES[0], "u", 1, 1), request_id(CASES[0], "t", 2, 1)}
    assert len({first, *others, request_id(CASES[0], "t", 1, 2)}) == 5


def test_an_ids_parts_cannot_be_shifted_into_one_another() -> None:
    assert (
        Trial(case=Case(id='a","t', question="q"), target="u", repeat=1).request_id
        != Trial(case=Case(id="a", question="q"), target='t","u', repeat=1).request_id
    )


def test_a_trial_asks_what_its_case_says() -> None:
    trial = Trial(case=Case(id="a", question="q", system_prompt="s"), target="t", repeat=2)
    asked = trial.request
    assert (asked.question, asked.system_prompt, asked.target) == ("q", "s", "t")
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
    check_known([("targets", "bot")], ["bot"])
    with pytest.raises(ConfigError, match="judge_target: unknown target 'juge'; did you mean 'judge'"):
        check_known([("targets", "bot"), ("graders[0].judge_target", "juge")], ["bot", "judge"])
