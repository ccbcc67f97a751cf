"""One call of a grader to a target: its deadline, its retries and what its failure means for the row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from quintain.contracts.invoke import NO_TOKENS, Result, TokenUsage
from quintain.errors import Fault, ReplyExpired
from quintain_runner.graders.base import GradingContext, call_with_retry, is_in_doubt
from quintain_runner.plan.address import ASKINGS_OF_A_GENERATION, NumberedRequest
from quintain_runner.results.row import GRADER_FAILED, TARGET_CHANGED, target_changed_text
from quintain_runner.spec.graders import AskingGrader


@dataclass(frozen=True, slots=True)
class GraderCall:
    """How a call ended: with a result or with an error. ``calls`` were charged for it, failed ones before it included.

    ``request_id`` is that of the last try. ``in_doubt``: it may have been charged without an answer.
    """

    request_id: str
    calls: int
    result: Result | None = None
    error: str | None = None
    error_code: str = GRADER_FAILED
    in_doubt: bool = False

    @property
    def token_usage(self) -> TokenUsage:
        """The tokens that it took now."""
        result = self.result
        return NO_TOKENS if result is None or result.cached else result.token_usage or NO_TOKENS


async def call_target(
    asked: NumberedRequest,
    request_id_of: Callable[[int], str],
    context: GradingContext,
    *,
    spec: AskingGrader,
    is_usable: Callable[[Result], bool],
    spent_calls: int = 0,
) -> GraderCall:
    """Send a grader's request, under the id that ``request_id_of`` makes of the calls spent before.

    ``spec`` may have a time limit of its own, else it is the target's. An answer that ``is_usable`` is one for other
    runs too. ``spent_calls`` brought no answer.
    """
    request_id, waits, target = request_id_of(spent_calls), context.waits, asked.target
    is_limited = "timeout_seconds" in spec.model_fields_set
    deadline_seconds = (
        spec.timeout_seconds + waits.line_seconds(target) if is_limited else context.deadline_seconds(target)
    )
    earlier_times = context.fingerprints.generation * ASKINGS_OF_A_GENERATION
    try:
        result = await context.answer(
            replace(asked, times=earlier_times + asked.times),
            lambda: call_with_retry(
                lambda: context.session.send(asked.request, request_id=request_id, deadline_seconds=deadline_seconds),
                resumable=lambda error: waits.resumable(target, error),
            ),
            is_usable,
        )
    except ReplyExpired:
        again = replace(asked, times=asked.times + 1)
        return await call_target(
            again, request_id_of, context, spec=spec, is_usable=is_usable, spent_calls=spent_calls + 1
        )
    except Fault as fault:
        calls = spent_calls + int(fault.charged is not False)
        return GraderCall(request_id, calls, error=fault.message, error_code=fault.code, in_doubt=is_in_doubt(fault))
    calls = spent_calls + (not result.cached)
    expected = context.fingerprints.targets.get(target)
    if expected is not None and result.target_fingerprint != expected:
        error = target_changed_text(target)
        return GraderCall(request_id, calls, result=result, error=error, error_code=TARGET_CHANGED)
    return GraderCall(request_id, calls, result=result)
