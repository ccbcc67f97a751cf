"""The ``llm-judge`` grader: one call to a model that grades the answer.

The request id is derived from what is judged, so a resumed run repeats the same call and is charged once.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

from quintain.contracts.invoke import NO_TOKENS, InvokeRequest, Result
from quintain.errors import Fault, ReplyExpired
from quintain_runner.graders.base import (
    GradingContext,
    GradingResult,
    PlannedCalls,
    call_with_retry,
    is_in_doubt,
    judge_target_of,
    max_shown_bytes,
)
from quintain_runner.graders.judge_request import build_judge_request, parse_judgement
from quintain_runner.graders.judge_sections import left_out_of, shown_sections
from quintain_runner.graders.verdict import GraderError
from quintain_runner.plan.trials import Trial
from quintain_runner.results.row import TARGET_CHANGED, GraderRow, JudgeUsed, target_changed_text
from quintain_runner.spec.judge_graders import JudgeGrader


@dataclass(frozen=True, slots=True)
class JudgeGraderRunner:
    """An ``llm-judge`` that is ready to grade answers. ``prompt`` is the text of its instructions."""

    spec: JudgeGrader
    prompt: str

    @property
    def name(self) -> str:
        """The name of the grader in the results."""
        return self.spec.name

    def planned_calls(self, trial: Trial, context: GradingContext, expected_calls: int) -> PlannedCalls:
        """Implements `GraderRunner.planned_calls`: one, under its own request id."""
        request = self._request(trial, None, context)
        return PlannedCalls(
            request_id=self._request_id(trial, context),
            target=request.target or trial.target,
            body_bytes=len(request.to_wire()),
            max_shown_bytes=max_shown_bytes(self.spec),
            shows_steps=self.spec.may_show_steps,
        )

    def _request(self, trial: Trial, result: Result | None, context: GradingContext) -> InvokeRequest:
        judge = judge_target_of(self.spec, trial.target, context.judge_targets)
        return build_judge_request(self.spec, self.prompt, trial.graded_case, result, target=judge).with_fields(
            grader=self.name
        )

    def _request_id(self, trial: Trial, context: GradingContext, spent_calls: int = 0) -> str:
        """The request id of the judge's call: the same after a crash, so that the call is charged once.

        It is known before the answer is, so that the call can be reserved: it is made of the request without the
        answer, of the grader's fingerprint, which contains the judge target's, of how often the run was graded again on
        purpose, and of the answer's own request id; of a kept answer, of that itself. It contains the calls of the
        previous row and ``spent_calls``, so that a repeat without a verdict is a new call.
        """
        spent_calls += trial.earlier_calls
        answer = (
            trial.request_id if trial.kept is None else hashlib.sha256((trial.kept.output or "").encode()).hexdigest()
        )
        if trial.conversation is not None:
            # One that was begun again has other answers.
            answer += f"/{trial.conversation.attempt}" if trial.conversation.attempt > 1 else ""
            trial = replace(trial, conversation=None)
        request = hashlib.sha256(self._request(trial, None, context).to_wire()).hexdigest()
        version = (context.fingerprints.graders_of(trial.target).get(self.name), context.fingerprints.generation)
        name = json.dumps([*trial.key_parts, trial.tries, self.name, spent_calls, request, answer, *version])
        return f"judge-{hashlib.sha256(name.encode()).hexdigest()}"

    async def grade(self, trial: Trial, result: Result, context: GradingContext) -> GradingResult:
        """Ask the judge about an answer. A fault of the call is returned in the row, with its cost."""
        grading = await self._ask(trial, result, context, spent_calls=0)
        left_out = left_out_of(shown_sections(self.spec, trial.graded_case, result))
        return replace(grading, row=grading.row.with_fields(left_out=left_out))

    async def _ask(self, trial: Trial, result: Result, context: GradingContext, *, spent_calls: int) -> GradingResult:
        """Ask under an id that contains the calls that this trial has spent; ``spent_calls`` of them had a verdict that
        is deleted."""
        request, request_id = self._request(trial, result, context), self._request_id(trial, context, spent_calls)
        judge, waits = request.target or trial.target, context.waits
        is_limited = "timeout_seconds" in self.spec.model_fields_set
        timeout_seconds = (
            self.spec.timeout_seconds + waits.line_seconds(judge) if is_limited else context.deadline_seconds(judge)
        )
        try:
            reply = await call_with_retry(
                lambda: context.session.send(request, request_id=request_id, deadline_seconds=timeout_seconds),
                goes_on=lambda error: waits.goes_on(judge, error),
            )
        except ReplyExpired:
            return await self._ask(trial, result, context, spent_calls=spent_calls + 1)
        except Fault as fault:
            row = GraderRow(error=fault.message, calls=spent_calls + int(fault.charged is not False))
            return GradingResult(
                _with_id(row, request_id), NO_TOKENS, error_code=fault.code, in_doubt=is_in_doubt(fault)
            )
        waits.note_answer(judge)
        spent_calls += 1
        expected_fingerprint = context.fingerprints.targets.get(judge)
        if expected_fingerprint is not None and reply.target_fingerprint != expected_fingerprint:
            row = _with_id(GraderRow(error=target_changed_text(judge), calls=spent_calls), request_id)
            return GradingResult(row, reply.token_usage or NO_TOKENS, error_code=TARGET_CHANGED)
        try:
            row = parse_judgement(reply.raw_text, self.spec.rubric).with_fields(calls=spent_calls)
        except GraderError as error:
            row = GraderRow(error=error.message, calls=spent_calls)
        used = JudgeUsed(target=judge, model=reply.model, settings=context.settings.get(judge), ignored=reply.ignored)
        row = row.with_fields(judge=used)
        return GradingResult(_with_id(row, request_id), reply.token_usage or NO_TOKENS)


def _with_id(row: GraderRow, request_id: str) -> GraderRow:
    return row.model_copy(update={"request_id": request_id})
