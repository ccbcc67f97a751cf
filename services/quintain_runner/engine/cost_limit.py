"""What a limit in money lets a run do: what a call and a row of each target reserve, and how many rows fit at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from pydantic import Field

from quintain.config.prices import known_prices
from quintain.contracts.agents import MAX_STEPS_BYTES
from quintain.contracts.message import Message
from quintain.contracts.money import NO_LIMIT, CostTerms, dollars_text, picodollars, to_dollars
from quintain.contracts.session import OpenSession
from quintain_runner.engine.cost_gate import longest_answer
from quintain_runner.engine.judges import agents_of, judge_prompts, judge_targets_of
from quintain_runner.engine.run_settings import Inspection
from quintain_runner.graders.base import PlannedCalls, max_shown_bytes
from quintain_runner.graders.judge_request import judge_instructions
from quintain_runner.graders.judge_sections import MARKS_CHARACTERS
from quintain_runner.plan.trials import calling_graders
from quintain_runner.spec.asking_graders import JudgeGrader, SimilarGrader
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.spec.graders import judge_target_of, judges_of, single_graders
from quintain_worker.cost_bound import cost_rules

#: What a request has besides its question, in bytes, about.
_REQUEST_BYTES = 50


class CostLimitCheck(Message):
    """What a limit of so many US dollars means for the targets of a run.

    ``reservations_usd`` is the most that one call of each can cost, and ``rows_usd`` the most that a row of each under
    test can cost with its graders, with a question of the usual size; so many rows of the dearest fit into the limit at
    once. ``advice`` names the setting with which more would, where there is one. With ``soft`` targets the limit is
    soft: the length of their answers is estimated.
    """

    max_cost_usd: float
    reservations_usd: dict[str, float] = Field(default_factory=dict)
    rows_usd: dict[str, float] = Field(default_factory=dict)
    rows_at_once: int | None = None
    advice: str | None = None
    soft: list[str] = Field(default_factory=list)
    problems: list[str] = Field(default_factory=list)


def has_cost_limit(found: Inspection) -> bool:
    """Whether a run has a limit in money."""
    return _cost_limit(found) is not None


def configured_costs(found: Inspection) -> dict[str, CostTerms]:
    """What calls of the configured targets can cost at most."""
    if found.config is None:
        return {}
    rules = cost_rules(found.config.targets, known_prices(found.config.targets))
    return {name: rule.terms() for name, rule in rules.items() if name in found.called_targets}


def inspect_cost_limit(found: Inspection, costs: Mapping[str, CostTerms]) -> CostLimitCheck | None:
    """Check the limit in money of a run, and add its problems to those that were found; None where it has none.

    ``costs`` are what calls of the targets can cost at most, as far as that is known.
    """
    limit, evaluation, stats = _cost_limit(found), found.evaluation, found.dataset
    if limit is None or evaluation is None or not costs:
        return None
    asked = {name: costs[name] for name in found.called_targets if name in costs}
    problems = cost_problems(asked)
    trials = 0 if stats is None else evaluation.trials_of(stats.cases, targets=1) // evaluation.spec.repeats
    question, expected = (
        (stats.input_characters // trials, stats.expected_characters // trials) if stats and trials else (0, 0)
    )
    calls = {name: terms.bound(_REQUEST_BYTES + question) for name, terms in asked.items()}
    rows = {
        name: _RowCost(found, evaluation, costs, name, question, expected) for name in found.targets if name in costs
    }
    dearest = max(rows, key=lambda name: rows[name].most, default=None)
    for name, row in rows.items():
        if not problems and row.most > picodollars(limit):
            text = f"max_cost_usd: one row of {name} may cost {dollars_text(row.most)}, more than the limit of"
            problems.append(f"{text} {dollars_text(picodollars(limit))}{row.advice and f'; {row.advice}'}")
    found.problems.extend(problems)
    return CostLimitCheck(
        max_cost_usd=limit,
        reservations_usd={name: to_dollars(amount) for name, amount in calls.items() if amount is not None},
        rows_usd={name: to_dollars(row.most) for name, row in rows.items()},
        rows_at_once=picodollars(limit) // rows[dearest].most if dearest and rows[dearest].most else None,
        advice=rows[dearest].advice or None if dearest else None,
        soft=[name for name, terms in asked.items() if terms.is_estimate],
        problems=problems,
    )


def cost_problems(costs: Mapping[str, CostTerms]) -> list[str]:
    """A line for each target whose calls a limit in money refuses, because nobody knows what they can cost."""
    return [
        f"max_cost_usd: the cost of {name} has no bound: "
        + (terms.problem or f"its answers have no limit; set targets.{name}.max_tokens, or output_estimate")
        for name, terms in costs.items()
        if terms.bound(0) is None
    ]


class _RowCost:
    """The most that a row of a target can cost, in picodollars, and the setting that has the largest part in that."""

    def __init__(
        self,
        found: Inspection,
        evaluation: Evaluation,
        costs: Mapping[str, CostTerms],
        target: str,
        question: int,
        expected: int,
    ) -> None:
        terms, body = costs[target], _REQUEST_BYTES + question
        answer = longest_answer(terms)
        parts: Counter[str] = Counter({_key(target, terms): terms.bound(body) or 0})
        steps = MAX_STEPS_BYTES if target in agents_of(found.config) else 0
        for name, planned in _planned_calls(found, evaluation, target, body + expected):
            without_steps = planned.most_cost(costs, body, answer)
            without_answer = planned.most_cost(costs, body, 0)
            # What a judge reads of an answer is by the limit of the answer.
            parts[_key(target, terms)] += without_steps - without_answer
            shown = f"a lower max_show_characters of grader {name}"
            parts[shown] += planned.most_cost(costs, body, answer, steps) - without_steps
            judge = costs.get(planned.target)
            limit = f"a target: {{max_cost_usd: …}} of grader {name}" if judge is None else _key(planned.target, judge)
            parts[limit] += without_answer
        self.most = sum(parts.values())
        largest, amount = parts.most_common(1)[0]
        self.advice = f"{largest} lets more fit" if largest and amount else ""


def _key(target: str, terms: CostTerms) -> str:
    key = "output_estimate" if terms.is_estimate else "max_tokens"
    return "" if terms.max_tokens is None else f"a lower targets.{target}.{key} than {terms.max_tokens:,}"


def _planned_calls(
    found: Inspection, evaluation: Evaluation, target: str, shown_bytes: int
) -> Iterator[tuple[str, PlannedCalls]]:
    """The calls of the graders of a row of this target, by the grader's name."""
    judges, prompts = judge_targets_of(found.config), judge_prompts(evaluation)
    stats = found.dataset
    own = () if stats is None else (one for one in stats.own_graders.asking.values() for _ in range(one.at_once))
    for grader in [*single_graders(evaluation.graders), *(one.longest for one in own)]:
        if isinstance(grader, JudgeGrader):
            body_bytes = (
                len(judge_instructions(grader, prompts.get(grader.name, grader.instructions or "")))
                + MARKS_CHARACTERS
                + shown_bytes
            )
            for judge in judges_of(grader, target, judges):
                yield (
                    grader.name,
                    PlannedCalls(
                        target=judge,
                        body_bytes=body_bytes,
                        max_shown_bytes=max_shown_bytes(grader),
                        shows_steps=grader.may_show_steps,
                    ),
                )
        elif isinstance(grader, SimilarGrader):
            yield grader.name, PlannedCalls(target=grader.embedding_target, body_bytes=shown_bytes)
    for program in calling_graders(evaluation):
        request = OpenSession(
            default_target=judge_target_of(program, target, judges),
            max_calls=program.target.max_calls,
            reserve=True if program.has_explicit_limit else min(1, program.target.max_calls),
            max_cost_usd=program.target.max_cost_usd,
        )
        yield program.name, PlannedCalls(session=request)


def _cost_limit(found: Inspection) -> float | None:
    limit = found.options.max_cost_usd
    if limit is None and found.evaluation is not None:
        limit = found.evaluation.spec.max_cost_usd
    return None if limit == NO_LIMIT else limit
