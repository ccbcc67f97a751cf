"""The ``pairwise`` grader: a model compares the answer with others to the same case, each pair in both orders.

A trial that it grades has its answer, and the rows of its opponents (`Trial.opponents`). Both rows of a pair ask for
the same two calls under the same request ids, so that each is charged once. Which targets answered is not shown.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from quintain.contracts.invoke import (
    NO_TOKENS,
    ChatMessage,
    InvokeRequest,
    InvokeSettings,
    JsonObject,
    Result,
    TokenUsage,
)
from quintain.errors import BudgetExhausted
from quintain.graders import Case
from quintain_runner.files import InvalidJson, extract_fenced_json, read_json
from quintain_runner.graders.base import GradingContext, GradingResult, PlannedCalls
from quintain_runner.graders.calls import GraderCall, call_target
from quintain_runner.graders.judge_request import reply_beginning
from quintain_runner.graders.judge_sections import (
    DATA_RULES,
    attachments,
    cut_sections,
    default_show,
    left_out_of,
    marked_content,
    section_text,
)
from quintain_runner.graders.verdict import PASS_SCORE, cut_note, without_surrogates
from quintain_runner.plan.address import NumberedRequest, Saved, request_id
from quintain_runner.plan.changes import unchanged_grader_row
from quintain_runner.plan.conversation import TrialConversation
from quintain_runner.plan.trials import Trial
from quintain_runner.results.labels import answer_sha256
from quintain_runner.results.pairwise import Choice, PairwiseRow, PairwiseVote
from quintain_runner.results.row import BUDGET_EXHAUSTED, GRADER_FAILED, Check, GraderRow, Row
from quintain_runner.spec.asking_graders import PairwiseGrader
from quintain_runner.spec.templates import parse_template

_DEFAULT_PROMPT: Final = "Two answers to the same task follow. Say which of them is better."

_CHOICE_RULES: Final = """\
The sections named first and second are the two answers; first_steps and second_steps, where they are there, are what \
was done for them. Their order, their length and how sure they sound say nothing \
of how good they are. Reply with one JSON object and nothing else:
{"better": "first", "second" or "tie", "reason": "one or two sentences"}"""

_CHOICE_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "properties": {"better": {"type": "string", "enum": ["first", "second", "tie"]}, "reason": {"type": "string"}},
    "required": ["better", "reason"],
    "additionalProperties": False,
}

_CHOICES: Final[dict[str, Choice]] = {"first": "first", "second": "second", "tie": "tie"}

_NO_VOTE = PairwiseVote()

#: The vote on two equal answers: nobody is asked.
_EQUAL = PairwiseVote(choice="tie", reason="the answers are equal")


@dataclass(frozen=True, slots=True)
class _PairRequest:
    """What the judge is asked of a pair in one order, and what is known of its vote.

    ``counted_calls`` are those of the known vote that the row counts already. ``left_out`` are the characters that are
    not shown, by section.
    """

    request: InvokeRequest
    known: PairwiseVote
    counted_calls: int
    left_out: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _AskedVote:
    """A vote, the calls and tokens that are new in it, and how its call ended, if there was one."""

    vote: PairwiseVote
    new_calls: int
    token_usage: TokenUsage = NO_TOKENS
    call: GraderCall | None = None


@dataclass(frozen=True, slots=True)
class PairwiseGraderRunner:
    """A ``pairwise`` grader that is ready to compare answers. ``prompt`` is the text of its instructions."""

    spec: PairwiseGrader
    prompt: str

    @property
    def name(self) -> str:
        """The name of the grader in the results."""
        return self.spec.name

    def planned_calls(self, trial: Trial, context: GradingContext, expected_calls: int) -> Sequence[PlannedCalls]:
        """Implements `GraderRunner.planned_calls`: one for each vote that is missing, under its own request id."""
        del expected_calls
        return [
            PlannedCalls(
                self._request_id(trial, question.request, context, question.known.calls),
                target=self.spec.judge_target,
                body_bytes=len(question.request.to_wire()),
                max_shown_bytes=0,
            )
            for question in self._questions(trial, context)
            if question.known.choice is None
        ]

    async def grade(self, trial: Trial, result: Result, context: GradingContext) -> GradingResult:
        """Compare the answer of the trial's row with those of its opponents; see `GraderRunner.grade`.

        Raises `BudgetExhausted`: what was answered then is asked for again under the same ids.
        """
        del result
        questions = list(self._questions(trial, context))
        # What the other row of a pair counts is counted there, also where the cache has it.
        counted_by_other = context if self.spec.other_run is not None else replace(context, saved=Saved())
        contexts = (counted_by_other if place % 2 else context for place in range(len(questions)))
        asking = [self._ask(trial, *each) for each in zip(questions, contexts, strict=True)]
        # All are waited for, so that no call goes on when the trial has ended.
        ended = await asyncio.gather(*asking, return_exceptions=True)
        for one in ended:
            if isinstance(one, BaseException):
                raise one
        asked = [one for one in ended if isinstance(one, _AskedVote)]
        if refused := [one for one in asked if one.call is not None and one.call.error_code == BUDGET_EXHAUSTED]:
            raise BudgetExhausted(refused[0].vote.error)
        comparisons = [
            PairwiseRow(
                opponent=opponent,
                answer=answer_sha256(row) or "",
                own_first=own_first.vote,
                own_second=own_second.vote,
            )
            for (opponent, row), own_first, own_second in zip(
                trial.opponents[self.name].items(), asked[::2], asked[1::2], strict=True
            )
        ]
        # The call in which the opponent stands first counts in the opponent's row, where that is of this run.
        counted = asked if self.spec.other_run is not None else asked[::2]
        usage = sum((one.token_usage for one in counted), NO_TOKENS)
        calls = sum(one.vote.calls for one in counted)
        left_out = {name: count for question in questions for name, count in question.left_out.items()}
        row = _verdict(comparisons).with_fields(calls=calls, left_out=left_out)
        failed = next((one.call for one in asked if one.vote.error is not None and one.call is not None), None)
        return GradingResult(
            row,
            usage,
            error_code=GRADER_FAILED if failed is None else failed.error_code,
            in_doubt=any(one.call is not None and one.call.in_doubt for one in asked),
            earlier_calls=calls - sum(one.new_calls for one in counted),
        )

    def _questions(self, trial: Trial, context: GradingContext) -> Iterator[_PairRequest]:
        """The two questions about each pair: the one with the own answer first before the other."""
        kept, fingerprints = trial.kept, context.fingerprints
        assert kept is not None, "only rows with an answer are compared"
        own = shown_answer(trial.case, kept)
        own_verdict = unchanged_grader_row(kept, self.name, trial.fingerprints, fingerprints)
        for opponent, row in trial.opponents[self.name].items():
            other = shown_answer(trial.case, row)
            votes, is_counted = (_NO_VOTE, _NO_VOTE), True
            if own == other:
                votes = _EQUAL, _EQUAL
            elif known := comparison_of(own_verdict, opponent, row):
                votes = known.own_first, known.own_second
            elif known := comparison_of(
                unchanged_grader_row(row, self.name, trial.fingerprints, fingerprints), trial.column, kept
            ):
                # The opponent's row was written by a command that did not write this one.
                votes, is_counted = (known.own_second, known.own_first), False
            for shown, vote in zip(((own, other), (other, own)), votes, strict=True):
                yield self._question(trial.case, *shown, vote, counted_calls=vote.calls if is_counted else 0)

    def _question(
        self, case: Case, first: ShownAnswer, second: ShownAnswer, known: PairwiseVote, *, counted_calls: int
    ) -> _PairRequest:
        """What the judge is asked of two answers; the same two give the same request."""
        task = [name for name in default_show(case, None) if name != "output"]
        told = [(name, text) for name in task if (text := section_text(name, case, None)) is not None]
        told += [(f"first{name}", text) for name, text in first] + [(f"second{name}", text) for name, text in second]
        sections = cut_sections(told, self.spec.max_show_characters)
        content = marked_content(self.prompt, sections, attachments(None, case))
        schema: JsonObject = {"name": "choice", "strict": True, "schema": _CHOICE_SCHEMA}
        settings = InvokeSettings(response_format={"type": "json_schema", "json_schema": schema})
        request = InvokeRequest(
            system_prompt=pairwise_instructions(filled_prompt(self.spec, self.prompt, case)),
            question=content if isinstance(content, str) else None,
            messages=None if isinstance(content, str) else [ChatMessage(role="user", content=content)],
            target=self.spec.judge_target,
            eval_case_id=case.id,
            settings=settings if self.spec.structured else None,
            grader=self.name,
        )
        return _PairRequest(request, known, counted_calls, left_out_of(sections))

    def _request_id(self, trial: Trial, request: InvokeRequest, context: GradingContext, spent_calls: int) -> str:
        """The id of a vote's call: the same in both rows of the pair, and another one after a vote without a choice."""
        version = context.fingerprint_of(trial, self.name), context.fingerprints.generation
        trial_parts = trial.case.id, trial.repeat, trial.prompt
        return request_id("pair", trial_parts, self.name, request.to_wire().decode(), spent_calls, version)

    async def _ask(self, trial: Trial, question: _PairRequest, context: GradingContext) -> _AskedVote:
        """Ask for a vote, unless it is known."""
        known, counted_calls = question.known, question.counted_calls
        if known.choice is not None:
            return _AskedVote(known, known.calls - counted_calls)
        call = await call_target(
            NumberedRequest(question.request, trial.number_of_pairs, known.calls + 1),
            lambda spent: self._request_id(trial, question.request, context, spent),
            context,
            spec=self.spec,
            is_usable=lambda reply: parse_choice(reply.raw_text).error is None,
            spent_calls=known.calls,
        )
        vote, usage = PairwiseVote(error=call.error), call.token_usage
        if call.result is not None and call.error is None:
            vote = parse_choice(call.result.raw_text)
            vote = vote.with_fields(error=vote.error and vote.error + cut_note(call.result))
        vote = vote.with_fields(calls=call.calls, request_id=call.request_id)
        return _AskedVote(vote, call.calls - counted_calls, usage, call)


def filled_prompt(spec: PairwiseGrader, prompt: str, case: Case) -> str:
    """The text of a judge's prompt file, a template, with the fields of a case. Raises `TemplateError`."""
    return parse_template(prompt, f"the grader {spec.name}, prompt").render(case)


def pairwise_instructions(prompt: str) -> str:
    """The system prompt of a judge of pairs: the same for all pairs of a case, so that providers can cache it."""
    return "\n\n".join([prompt.strip() or _DEFAULT_PROMPT, DATA_RULES, _CHOICE_RULES])


#: An answer as the judge is shown it: texts by the endings of their sections' names, which is empty for the answer.
ShownAnswer = tuple[tuple[str, str], ...]


def shown_answer(case: Case, row: Row) -> ShownAnswer:
    """The answer of a row and what was done for it; of a conversation all that was said, as JSON, is the answer."""
    result = row.result
    if result is None:
        return (("", row.output or ""),)
    answer = result.raw_text
    if row.conversation is not None:
        held = TrialConversation.of_row(case, row).graded_case.messages or []
        said = [{"role": message.role, "content": message.content} for message in held if message.role != "system"]
        answer = json.dumps([*said, {"role": "assistant", "content": answer}], ensure_ascii=False)
    steps = section_text("steps", case, result) if "steps" in default_show(case, result) else None
    return (("", answer), *([] if steps is None else [("_steps", steps)]))


def comparison_of(verdict: GraderRow | None, opponent: str, row: Row) -> PairwiseRow | None:
    """The comparison with the answer of this row of an opponent in a verdict; None where there is none."""
    if verdict is None or row.output is None:
        return None
    found = (one for one in verdict.comparisons or () if one.opponent == opponent)
    return next((one for one in found if one.answer == answer_sha256(row)), None)


def parse_choice(reply: str) -> PairwiseVote:
    """The choice in a judge's reply, or the error of a reply that has none; an invalid reply never becomes a tie."""
    beginning = reply_beginning(reply)
    try:
        value = read_json(extract_fenced_json(reply))
    except InvalidJson as json_error:
        return PairwiseVote(error=f"The judge made no choice ({json_error}); its reply begins with {beginning}")
    fields = value if isinstance(value, dict) else {}
    if (choice := _CHOICES.get(str(fields.get("better")))) is None:
        return PairwiseVote(error=f"The judge's better is none of first, second and tie; its reply is {beginning}")
    reason = fields.get("reason")
    return PairwiseVote(choice=choice, reason=without_surrogates(reason) if isinstance(reason, str) else None)


def _verdict(comparisons: list[PairwiseRow]) -> GraderRow:
    """The verdict of all comparisons of an answer: the mean of their scores, or the error of the first that failed."""
    for one in comparisons:
        if error := one.own_first.error or one.own_second.error:
            return GraderRow(error=f"against {one.opponent}: {error}", comparisons=comparisons)
    scores = [one.score or 0.0 for one in comparisons]
    score = sum(scores) / len(scores)
    outcomes = ", ".join(f"{count} {what}" for what, count in _outcomes(scores) if count)
    return GraderRow(
        score=score,
        passed=score >= PASS_SCORE,
        reason=outcomes,
        checks=list(map(_check, comparisons)),
        comparisons=comparisons,
    )


def _outcomes(scores: Sequence[float]) -> Iterator[tuple[str, int]]:
    for what, score in (("won", 1.0), ("tied", 0.5), ("lost", 0.0)):
        yield what, scores.count(score)


def _check(comparison: PairwiseRow) -> Check:
    score = comparison.score or 0.0
    votes = {"shown first": comparison.own_first, "shown second": comparison.own_second}
    said = (f"{place}, {_word(vote, place)}: {vote.reason or 'no reason'}" for place, vote in votes.items())
    return Check(
        id=comparison.opponent,
        text=f"against {comparison.opponent}",
        passed=score >= PASS_SCORE,
        score=score,
        reason="; ".join(said),
    )


def _word(vote: PairwiseVote, place: str) -> str:
    """Whether the own answer, which was shown in this place, was chosen."""
    if vote.choice == "tie":
        return "tie"
    return "better" if place == f"shown {vote.choice}" else "worse"
