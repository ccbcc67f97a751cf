"""What a run would take, and what is left of it: calls as far as they are known, tokens and cost as an estimate."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

from quintain.config.prices import Price
from quintain.contracts.invoke import TokenUsage
from quintain.contracts.session import Usage
from quintain_runner.engine.estimate import EstimateInput, RunEstimate, TokensEstimate, estimate_run
from quintain_runner.graders.judge_request import judge_instructions
from quintain_runner.graders.judge_sections import MARKS_CHARACTERS
from quintain_runner.plan.cases import token_count
from quintain_runner.plan.dataset import CaseSource, DatasetStats
from quintain_runner.plan.trials import estimate_calls, grader_limits
from quintain_runner.results.counts import CallsLeft, GraderCallSamples, NeededCalls
from quintain_runner.spec.asking_graders import JudgeGrader
from quintain_runner.spec.evaluation import Evaluation, EvaluationSpec
from support.results_folder import errored_row, graded_row

FACTS = DatasetStats(
    source=CaseSource(path=Path("c")), cases=100, sha256="", input_characters=8000, expected_characters=800
)
PRICE = Price(input_per_million=Decimal(1), output_per_million=Decimal(10))
EXACT = {"name": "same", "builtin": "exact"}
JUDGE = {"name": "judge", "builtin": "llm-judge", "prompt": "p.md"}

#: How many characters a judge is told beside its prompt and what it is shown, with two between them and the prompt.
INSTRUCTED = len(judge_instructions(JudgeGrader.model_validate(JUDGE), "")) + MARKS_CHARACTERS


def estimate_for(
    *graders: dict[str, object],
    facts: DatasetStats = FACTS,
    repeats: int = 1,
    sessionless: frozenset[str] = frozenset(),
    **plan: object,
) -> RunEstimate:
    evaluated = evaluation(*graders, repeats=repeats, sessionless=sessionless)
    return estimate_run(EstimateInput(evaluation=evaluated, dataset=facts, targets=("a", "b"), **plan))


def evaluation(*graders: dict[str, object], repeats: int = 1, sessionless: frozenset[str] = frozenset()) -> Evaluation:
    spec = EvaluationSpec.model_validate({"dataset": "c", "repeats": repeats, "graders": list(graders)})
    return Evaluation(path=Path("eval.yaml"), text="", spec=spec, graders_without_session=sessionless)


def test_a_judge_asks_once_and_a_program_up_to_its_limit() -> None:
    program: dict[str, object] = {"name": "p", "command": ["x"], "target": {"max_calls": 4}}
    plain = estimate_for(EXACT, repeats=3).calls
    assert (plain.answers, plain.most, plain.typical) == (600, 600, 600)
    assert estimate_for(EXACT, JUDGE).calls.typical == 400
    calls = estimate_for(JUDGE, program).calls
    assert (calls.most, calls.typical) == (200 * 6, None)
    assert estimate_for({**program, "target": {"max_calls": 1}}).calls.typical == 400


def test_a_function_that_asks_for_no_session_calls_nobody() -> None:
    function: dict[str, object] = {"name": "f", "function": "judges:polite"}
    assert estimate_for(function, sessionless=frozenset({"f"})).calls.most == 200
    assert estimate_for(function, sessionless=frozenset({"f"})).left_out == []
    assert estimate_for(function).left_out == ["f"]


def test_a_check_a_run_and_the_forecast_of_a_spent_budget_count_the_same_calls() -> None:
    function: dict[str, object] = {"name": "f", "function": "judges:polite"}
    for sessionless, most in ((frozenset({"f"}), 400), (frozenset[str](), 200 * 52)):
        evaluated = evaluation(function, JUDGE, sessionless=sessionless)
        checked = estimate_for(function, JUDGE, sessionless=sessionless).calls
        assert estimate_calls(evaluated, trials=200) == checked
        left = CallsLeft(grader_limits(evaluated))
        for _ in range(200):
            left.add("bot", NeededCalls(asks=True, graders=("f", "judge")))
        assert checked.most == left.most == left.estimate(GraderCallSamples()) == most


def test_answers_are_as_long_as_the_expected_ones_or_else_as_one_that_was_probed() -> None:
    tokens = estimate_for(EXACT, repeats=2).tokens
    told = TokensEstimate(input=4000, output=400, basis=["answers as long as the expected ones"])
    assert tokens["a"] == tokens["b"] == told
    bare = DatasetStats(source=FACTS.source, cases=100, sha256="", input_characters=8000)
    unknown = estimate_for(EXACT, facts=bare, prices={"a": PRICE, "b": PRICE})
    assert (unknown.tokens["a"].output, unknown.usd) == (None, None)
    probed = estimate_for(EXACT, facts=bare, prices={"a": PRICE, "b": PRICE}, probed_usage={"a": TokenUsage(output=7)})
    assert (probed.tokens["a"].output, probed.tokens["b"].output) == (700, None)
    assert (probed.usd, probed.usd_of) == (0.009, ["a"])


def test_a_judge_reads_its_prompt_the_question_what_is_expected_and_the_answer() -> None:
    tokens = estimate_for(JUDGE, judge_targets={"a": "sage", "b": "a"}, judge_prompts={"judge": "x" * 400}).tokens
    # For each of 100 cases: the instructions, the question, what is expected and an answer as long as that.
    read = 100 * token_count(INSTRUCTED + 402) + 2000 + 200 + 200
    assert tokens["sage"] == TokensEstimate(input=read, output=6000, basis=["verdicts of 60 tokens"])
    assert tokens["a"].input == 2000 + read
    assert tokens["a"].output == 200 + 6000


def test_the_range_is_from_four_characters_a_token_to_the_limits_of_the_answers() -> None:
    prices = {"a": PRICE, "b": PRICE}
    unlimited = estimate_for(EXACT, prices=prices, max_tokens={"a": 50}).usd_range
    assert (unlimited.least_usd, unlimited.most_usd) == (2 * (2000 + 10 * 200) / 10**6, None)
    limited = estimate_for(EXACT, prices=prices, max_tokens={"a": 50, "b": 10}).usd_range
    assert limited.most_usd == (2 * 8000 + 10 * 100 * (50 + 10)) / 10**6
    earlier = {"b": Usage(calls=9, counted=8, token_usage=TokenUsage(input=1, output=8 * 3))}
    known = estimate_for(EXACT, prices=prices, max_tokens={"a": 50}, earlier_usage=earlier).usd_range
    assert known.most_usd == (2 * 8000 + 10 * 100 * (50 + 3)) / 10**6
    assert estimate_for(EXACT, max_tokens={"a": 50}).usd_range is None
    by_call = estimate_for(EXACT, prices={"a": Price(per_call=Decimal("0.5"))}).usd_range
    assert (by_call.least_usd, by_call.most_usd) == (50, 50)


def test_a_judge_reads_at_most_what_it_may_be_shown_also_of_steps_and_of_answers_without_a_limit() -> None:
    priced: dict[str, object] = {"prices": {"sage": PRICE}, "judge_targets": {"a": "sage", "b": "sage"}}
    told = INSTRUCTED * 100 + 8000 + 800
    for judge, plan, shown in (
        (JUDGE, {"max_tokens": {"sage": 5}}, 2 * 100_000),
        (JUDGE, {"max_tokens": {"a": 50, "b": 10, "sage": 5}, "agents": frozenset({"a"})}, 100_000 + 10),
        ({**JUDGE, "max_show_characters": 300}, {"max_tokens": {"sage": 5}}, 2 * 300),
        (
            {**JUDGE, "show": ["question", "expected", "output"]},
            {"max_tokens": {"a": 50, "b": 10, "sage": 5}, "agents": frozenset({"a"})},
            50 + 10,
        ),
    ):
        found = estimate_for(judge, **priced, **plan).usd_range
        assert found.most_usd == (2 * told + 100 * shown + 10 * 200 * 5) / 10**6


ASKED = NeededCalls(asks=True, graders=("same",))
GRADED = NeededCalls(graders=("same",))


def calls_made(*calls: int) -> GraderCallSamples:
    """The grader of as many rows made so many calls each."""
    made = GraderCallSamples()
    for number, count in enumerate(calls):
        row = graded_row(str(number), 1.0)
        made.add_row(row.with_fields(graders={"same": row.graders["same"].with_fields(calls=count)}))
    return made


def calls_left(count: int, needed: NeededCalls = ASKED, *, column: str = "bot") -> CallsLeft:
    """So many trials need this; a grader makes 50 calls at most."""
    left = CallsLeft({"same": 50})
    for _ in range(count):
        left.add(column, needed)
    return left


def test_the_estimate_is_of_what_the_graders_took() -> None:
    assert calls_left(7).estimate(calls_made(1, 1, 1)) == 14
    assert calls_left(7, column="other").estimate(calls_made(1, 1, 1)) == 14
    # A kept answer is graded without a call of its target.
    assert calls_left(7, GRADED).estimate(calls_made(1, 1, 1)) == 7
    assert (calls_left(7, GRADED).most, calls_left(7).most) == (350, 357)
    # Where executions differ there is room for it, and never more than the most.
    assert 500 < calls_left(100).estimate(calls_made(0, 8, 0, 8)) < 700
    assert calls_left(1).estimate(calls_made(0, 50)) == calls_left(1).most == 51


def test_what_failed_or_is_taken_back_is_no_measure() -> None:
    made, row = calls_made(2), graded_row("1", 1.0)
    made.add_row(errored_row("failed"))
    made.add_row(row)
    made.add_row(row, times=-1)
    assert calls_left(4).estimate(made) == 4 * 3
    left = calls_left(3)
    copied = left.copy()
    left.add("bot", ASKED, times=-1)
    assert (left.estimate(calls_made(1)), copied.estimate(calls_made(1))) == (4, 6)
