"""One call of a grader to a target: its deadline, its retries and what its failure means for the row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import InvokeRequest, Result
from quintain.errors import BudgetExhausted, Fault, ReplyExpired
from quintain_runner.graders.base import GradingContext, call_with_retry, is_in_doubt
from quintain_runner.results.row import GRADER_FAILED, TARGET_CHANGED, target_changed_text


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
    target: str,
    timeout_seconds: float | None,
    spent_calls: int = 0,
) -> GraderCall:
    """Send a grader's request to ``target``, under the id that ``request_id_of`` makes of the calls spent before.

    Without ``timeout_seconds`` the time limit is the target's. ``spent_calls`` are those that brought no answer.
    Raises `BudgetExhausted`.
    """
    request_id, waits = request_id_of(spent_calls), context.waits
    deadline_seconds = (
        context.deadline_seconds(target) if timeout_seconds is None else timeout_seconds + waits.line_seconds(target)
    )
    try:
        result = await call_with_retry(
            lambda: context.session.send(request, request_id=request_id, deadline_seconds=deadline_seconds),
            goes_on=lambda error: waits.goes_on(target, error),
        )
    except ReplyExpired:
        return await call_target(
            request,
            request_id_of,
            context,
            target=target,
            timeout_seconds=timeout_seconds,
            spent_calls=spent_calls + 1,
        )
    except BudgetExhausted:
        raise
    except Fault as fault:
        calls = spent_calls + int(fault.charged is not False)
        return GraderCall(request_id, calls, error=fault.message, error_code=fault.code, in_doubt=is_in_doubt(fault))
    waits.note_answer(target)
    expected = context.fingerprints.targets.get(target)
    if expected is not None and result.target_fingerprint != expected:
        error = target_changed_text(target)
        return GraderCall(request_id, spent_calls + 1, result=result, error=error, error_code=TARGET_CHANGED)
    return GraderCall(request_id, spent_calls + 1, result=result)
