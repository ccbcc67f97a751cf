"""The ``llm-judge`` grader: a call to each of its judges, which grade the answer.

The request id of a call is derived from what is judged and by whom, so a resumed run repeats the same call and is
charged once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from quintain.config.fingerprint import fingerprint_of
from quintain.config.secrets import redact_secrets
from quintain.contracts.invoke import NO_TOKENS, InvokeRequest, Result
from quintain_runner.graders.base import GraderRunner, GradingContext, GradingResult, PlannedCalls, max_shown_bytes
from quintain_runner.graders.calls import call_target
from quintain_runner.graders.combined import single_runners
from quintain_runner.graders.judge_request import build_judge_request, filled, parse_judgement, request_hash
from quintain_runner.graders.judge_sections import left_out_of, shown_sections
from quintain_runner.graders.verdict import PASS_SCORE, GraderError, cut_note
from quintain_runner.plan.address import NumberedRequest
from quintain_runner.plan.trials import Trial
from quintain_runner.results.row import BUDGET_EXHAUSTED, TARGET_CHANGED, Check, GraderRow, JudgeUsed
from quintain_runner.spec.asking_graders import JudgeGrader, VoteRule
from quintain_runner.spec.graders import judges_of

#: A row keeps so many characters of a judge's reply.
_MAX_REPLY_CHARACTERS = 16_000


@dataclass(frozen=True, slots=True)
class _Vote:
    """What one judge is to say of an answer.

    ``fingerprint`` is of what the judge is asked and of its configuration. ``earlier`` is what the same judge said of
    the same answer before; ``is_given`` says that this is its vote, and no call is needed.
    """

    judge: str
    fingerprint: str | None
    earlier: GraderRow | None = None
    is_given: bool = False

    @property
    def earlier_calls(self) -> int:
        """How many calls asked for it before."""
        return 0 if self.earlier is None else self.earlier.calls

    @property
    def times_asked(self) -> int:
        """How often the same is asked with this call: a vote that was given is asked about something else."""
        return 1 + (self.earlier_calls if self.earlier is not None and self.earlier.error is not None else 0)


@dataclass(frozen=True, slots=True)
class JudgeGraderRunner:
    """An ``llm-judge`` that is ready to grade answers. ``prompt`` is the text of its instructions, and
    ``specification`` the fingerprint of what all its judges are asked.
    """

    spec: JudgeGrader
    prompt: str
    specification: str = ""

    @property
    def name(self) -> str:
        """The name of the grader in the results."""
        return self.spec.name

    @property
    def recorded(self) -> JsonValue:
        """Its specification with its instructions as text, as the files of a run keep it."""
        spec = self.spec.model_copy(update={"prompt": None, "instructions": self.prompt or None})
        recorded: JsonValue = json.loads(redact_secrets(spec.model_dump_json(by_alias=True, exclude_defaults=True)))
        return recorded

    def planned_calls(self, trial: Trial, context: GradingContext, expected_calls: int) -> list[PlannedCalls]:
        """Implements `GraderRunner.planned_calls`: one for each vote that is not given, under its own request id."""
        return [
            PlannedCalls(
                request_id=self._request_id(trial, vote, context, vote.earlier_calls),
                target=vote.judge,
                body_bytes=len(self._request(trial, None, vote.judge).to_wire()),
                max_shown_bytes=max_shown_bytes(self.spec),
                shows_steps=self.spec.may_show_steps,
            )
            for vote in self._votes(trial, context)
            if not vote.is_given
        ]

    def _votes(self, trial: Trial, context: GradingContext) -> Iterator[_Vote]:
        """The votes on the answer of a trial; of a kept answer those that were given stay."""
        kept = None if trial.kept is None else trial.kept.graders.get(self.name)
        if trial.kept is None or kept is None or kept.generation != context.fingerprints.generation:
            kept, is_same_case = None, False
        else:
            is_same_case = trial.kept.fingerprints.grading == trial.fingerprints.grading
        for judge in judges_of(self.spec, trial.target, context.judge_targets):
            earlier = None if kept is None else kept.votes.get(judge) if self.spec.judge_targets else kept
            fingerprint = self._fingerprint(judge, trial, context)
            if earlier is None or earlier.fingerprint != fingerprint:
                yield _Vote(judge, fingerprint)
            else:
                yield _Vote(judge, fingerprint, earlier, is_same_case and earlier.error is None)

    def _fingerprint(self, judge: str, trial: Trial, context: GradingContext) -> str | None:
        """The fingerprint of a vote, which does not depend on the other judges; None where the judge's is not known."""
        if not self.spec.judge_targets:
            return context.fingerprint_of(trial, self.name)
        known = context.fingerprints.targets.get(judge)
        return None if known is None else fingerprint_of([self.specification, known])

    def _request(self, trial: Trial, result: Result | None, judge: str) -> InvokeRequest:
        return build_judge_request(*filled(self.spec, self.prompt, trial.case), trial.graded_case, result, target=judge)

    def _request_id(self, trial: Trial, vote: _Vote, context: GradingContext, number: int) -> str:
        """The request id of a judge's call, of which ``number`` asked for this vote before: see `Trial.id_of_grading`.

        The vote's fingerprint contains the judge target's.
        """
        request = self._request(replace(trial, conversation=None), None, vote.judge).to_wire().decode()
        return trial.id_of_grading(self.name, request, number, vote.fingerprint, context.fingerprints.generation)

    async def grade(self, trial: Trial, result: Result, context: GradingContext) -> GradingResult:
        """Ask the judges about an answer. A fault of a call is returned in the row, with its cost."""
        votes = list(self._votes(trial, context))
        if not self.spec.judge_targets:
            grading = await self._ask(trial, result, votes[0], context)
        else:
            async with asyncio.TaskGroup() as group:
                asked = {
                    vote.judge: group.create_task(self._ask(trial, result, vote, context))
                    for vote in votes
                    if not vote.is_given
                }
            given = {vote.judge: asked[vote.judge].result() if vote.judge in asked else _given(vote) for vote in votes}
            grading = jury_result(self.spec, given)
        left_out = left_out_of(shown_sections(self.spec, trial.graded_case, result))
        return replace(grading, row=grading.row.with_fields(left_out=left_out))

    def _verdict_of(self, trial: Trial, reply: Result) -> GraderRow:
        """What a judge's reply says; an error where it is no verdict."""
        try:
            rubric = filled(self.spec, "", trial.case)[0].rubric
            return parse_judgement(reply.raw_text, rubric, self.spec.vote_type)
        except GraderError as error:
            return GraderRow(error=error.message + cut_note(reply))

    async def _ask(self, trial: Trial, result: Result, vote: _Vote, context: GradingContext) -> GradingResult:
        """Ask for a vote."""
        judge, request = vote.judge, self._request(trial, result, vote.judge)
        call = await call_target(
            NumberedRequest(request, trial.later_number, vote.times_asked),
            lambda calls: self._request_id(trial, vote, context, calls),
            context,
            spec=self.spec,
            is_usable=lambda reply: self._verdict_of(trial, reply).error is None,
            spent_calls=vote.earlier_calls,
        )
        row = GraderRow(calls=call.calls, request_id=call.request_id, fingerprint=vote.fingerprint)
        usage = call.token_usage
        if call.error is not None or call.result is None:
            row = row.with_fields(error=call.error, in_doubt=call.in_doubt)
            return GradingResult(
                row, usage, error_code=call.error_code, in_doubt=call.in_doubt, earlier_calls=vote.earlier_calls
            )
        reply, text = call.result, call.result.raw_text
        said = self._verdict_of(trial, reply)
        used = JudgeUsed(target=judge, model=reply.model, settings=context.settings.get(judge), ignored=reply.ignored)
        used = used.with_fields(grader=self.recorded if self.spec.is_data else None)
        cut = max(0, len(text) - _MAX_REPLY_CHARACTERS)
        used = used.with_fields(request=request_hash(request), reply=text[:_MAX_REPLY_CHARACTERS], reply_cut=cut)
        row = said.with_fields(calls=row.calls, request_id=row.request_id, fingerprint=row.fingerprint, judge=used)
        return GradingResult(row, usage, earlier_calls=vote.earlier_calls)


def recorded_judges(graders: Iterable[GraderRunner]) -> dict[str, JsonValue]:
    """The specifications of judges by their names, as ``run.json`` keeps them."""
    return {judge.name: judge.recorded for judge in single_runners(graders) if isinstance(judge, JudgeGraderRunner)}


def _given(vote: _Vote) -> GradingResult:
    """The result of a vote that was given before."""
    assert vote.earlier is not None, "a given vote is one of before"
    return GradingResult(vote.earlier, NO_TOKENS, earlier_calls=vote.earlier_calls)


#: The codes of missing votes that say more than others: that of the verdict is the first of them.
_FIRST_CODES = (BUDGET_EXHAUSTED, TARGET_CHANGED)

#: Sums of scores are rounded to this many decimal places, so that the order of the judges does not change a verdict.
_ROUND_DIGITS = 12


def jury_result(spec: JudgeGrader, votes: Mapping[str, GradingResult]) -> GradingResult:
    """The result of a jury with these votes, by judge; one with an error is missing.

    The jury has a verdict with ``min_votes`` votes, unless a missing vote could decide: where as many pass as fail, or
    where all judges must pass the answer.
    """
    rows = {judge: vote.row for judge, vote in votes.items()}
    missing = {judge: vote for judge, vote in votes.items() if vote.row.error is not None}
    given = {judge: row for judge, row in rows.items() if judge not in missing}
    usage = sum((vote.token_usage for vote in votes.values()), NO_TOKENS)
    calls, earlier_calls = sum(row.calls for row in rows.values()), sum(vote.earlier_calls for vote in votes.values())
    row = _verdict(spec, given, lacks_votes=bool(missing))
    if row is not None:
        return GradingResult(row.with_fields(calls=calls, votes=rows), usage, earlier_calls=earlier_calls)
    why = "; ".join(f"{judge}: {vote.row.error}" for judge, vote in missing.items())
    rule = f"vote: {spec.vote}, min_votes: {spec.min_votes}"
    text = f"the jury has no verdict with {len(given)} of its {len(rows)} votes ({rule}). {why}"
    in_doubt = any(vote.in_doubt for vote in missing.values())
    codes = [vote.error_code for vote in missing.values()]
    return GradingResult(
        GraderRow(error=text, calls=calls, votes=rows, in_doubt=in_doubt),
        usage,
        error_code=next((code for code in _FIRST_CODES if code in codes), codes[0]),
        in_doubt=in_doubt,
        earlier_calls=earlier_calls,
    )


def _verdict(spec: JudgeGrader, votes: Mapping[str, GraderRow], *, lacks_votes: bool) -> GraderRow | None:
    """The verdict of the votes that were given; None where they are too few, or a missing one decides."""
    if len(votes) < spec.min_votes:
        return None
    passes = [bool(vote.passed) for vote in votes.values()]
    score = _mean([vote.score or 0.0 for vote in votes.values()])
    is_tied = spec.vote == "majority" and 2 * sum(passes) == len(passes)
    if lacks_votes and (is_tied or (spec.vote == "all" and all(passes))):
        return None
    checks = _voted_checks(spec, list(votes.values()))
    required = {criterion.id for criterion in spec.rubric if criterion.required}
    passed = _passes(spec.vote, score, passes) and all(check.passed for check in checks if check.id in required)
    said = "; ".join(f"{judge}: {vote.reason}" for judge, vote in votes.items() if vote.reason)
    summary = f"{sum(passes)} of {len(passes)} votes pass{', a tie' if is_tied else ''}"
    reason = f"{summary}. {said}" if said else summary
    return GraderRow(score=score, passed=passed, tied=is_tied, reason=reason, checks=checks)


def _voted_checks(spec: JudgeGrader, votes: Sequence[GraderRow]) -> list[Check]:
    """The criteria of a rubric, each with the mean of its scores, and with a vote of its own."""
    checks = []
    for criterion, said in zip(spec.rubric, zip(*(vote.checks for vote in votes), strict=True), strict=True):
        score = _mean([check.score or 0.0 for check in said])
        passed = _passes(spec.vote, score, [check.passed for check in said])
        check = Check(id=criterion.id, text=criterion.text, passed=passed, score=score, weight=criterion.weight)
        checks.append(check)
    return checks


def _passes(rule: VoteRule, score: float, passes: Sequence[bool]) -> bool:
    match rule:
        case "majority":
            return 2 * sum(passes) > len(passes)
        case "mean":
            return score >= PASS_SCORE
        case "all":
            return all(passes)


def _mean(scores: Sequence[float]) -> float:
    return round(sum(scores) / len(scores), _ROUND_DIGITS)
