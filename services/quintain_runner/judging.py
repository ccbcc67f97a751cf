"""A model as a grader: one call on the run's own session, under an id made of what it judges."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from quintain.contracts.invoke import NO_TOKENS, Result
from quintain.errors import Fault
from quintain_runner.grader_specs import JudgeGrader
from quintain_runner.grading import Bench, Graded, judge_of
from quintain_runner.judge_words import judge_request, read_judgement
from quintain_runner.patience import patiently
from quintain_runner.plan import Trial
from quintain_runner.rows import GraderRow
from quintain_runner.verdict import GraderError


@dataclass(frozen=True, slots=True)
class Judging:
    """An ``llm-judge``, ready to ask. ``prompt`` is its instructions' text."""

    spec: JudgeGrader
    prompt: str

    @property
    def name(self) -> str:
        """What it is called in the results."""
        return self.spec.name

    async def grade(self, trial: Trial, result: Result, bench: Bench) -> Graded:
        """Ask the judge about an answer. A fault of its call is told in the row, with what it cost."""
        request = judge_request(
            self.prompt,
            self.spec.show,
            trial.case,
            result.raw_text,
            target=judge_of(self.spec, trial.target, bench.judge_targets),
            structured=self.spec.structured,
        )
        request_id, limit = _request_id(trial, self.name), self.spec.timeout_seconds
        try:
            said = await patiently(lambda: bench.session.send(request, request_id=request_id, deadline_seconds=limit))
        except Fault as fault:
            return Graded(GraderRow(error=fault.message, calls=int(fault.charged)), NO_TOKENS, code=fault.code)
        try:
            row = GraderRow.of(read_judgement(said.raw_text), calls=1)
        except GraderError as error:
            row = GraderRow(error=error.message, calls=1)
        return Graded(row, said.token_usage or NO_TOKENS)


def _request_id(trial: Trial, grader: str) -> str:
    """The call's id: after a crash it is the same call, and charged once.

    After a row without a verdict it is another one: what that row spent is a part of it.
    """
    spent = 0 if trial.before is None else trial.before.calls
    name = json.dumps([*trial.key, trial.tries, grader, spent], ensure_ascii=True)
    return f"judge-{hashlib.sha256(name.encode()).hexdigest()}"
