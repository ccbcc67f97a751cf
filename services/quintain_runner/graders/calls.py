"""One call of a grader to a target: its deadline, its retries and what its failure means for the row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import InvokeRequest, Result
from quintain.errors import Fault, ReplyExpired
from quintain_runner.graders.base import GradingContext, call_with_retry, is_in_doubt
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


async def call_target(
    request: InvokeRequest | ApiRequest,
    request_id_of: Callable[[int], str],
    context: GradingContext,
    *,
    spec: AskingGrader,
    target: str,
    spent_calls: int = 0,
) -> GraderCall:
    """Send a grader's request to ``target``, under the id that ``request_id_of`` makes of the calls spent before.

    ``spec`` may have a time limit of its own, else it is the target's. ``spent_calls`` brought no answer.
    """
    request_id, waits = request_id_of(spent_calls), context.waits
    is_limited = "timeout_seconds" in spec.model_fields_set
    deadline_seconds = (
        spec.timeout_seconds + waits.line_seconds(target) if is_limited else context.deadline_seconds(target)
    )
    try:
        result = await call_with_retry(
            lambda: context.session.send(request, request_id=request_id, deadline_seconds=deadline_seconds),
            goes_on=lambda error: waits.goes_on(target, error),
        )
    except ReplyExpired:
        return await call_target(request, request_id_of, context, spec=spec, target=target, spent_calls=spent_calls + 1)
    except Fault as fault:
        calls = spent_calls + int(fault.charged is not False)
        return GraderCall(request_id, calls, error=fault.message, error_code=fault.code, in_doubt=is_in_doubt(fault))
    waits.note_answer(target)
    expected = context.fingerprints.targets.get(target)
    if expected is not None and result.target_fingerprint != expected:
        error = target_changed_text(target)
        return GraderCall(request_id, spent_calls + 1, result=result, error=error, error_code=TARGET_CHANGED)
    return GraderCall(request_id, spent_calls + 1, result=result)
