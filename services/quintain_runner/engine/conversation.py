"""Holds the conversation of a trial: each turn is a call under an id of its own, and so is what a simulated user says.

A run that was killed asks again under the same ids: the ledger replays what was answered, uncharged, up to the first
turn without an answer. A conversation that one worker held is begun again where that worker is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from quintain.contracts.agents import MAX_STEPS_BYTES
from quintain.contracts.invoke import NO_TOKENS, InvokeRequest, Result, TokenUsage
from quintain.contracts.step_log import cut_steps
from quintain.errors import BudgetExhausted, ConversationLost, Fault, QuintainError, ReplyExpired, WorkerLost
from quintain_runner.graders.base import GradingContext, is_in_doubt
from quintain_runner.plan.address import NumberedRequest
from quintain_runner.plan.conversation import MAX_ATTEMPTS, TrialConversation, turn_id
from quintain_runner.plan.trials import Trial
from quintain_runner.results.answer import ConversationRow, turns_of_row
from quintain_runner.results.row import RowError

#: The error code of a row whose simulated user said nothing that could be sent.
USER_FAILED: Final = "user_failed"

#: The error code of a row whose target called tools before its last turn: a case has no results for them.
TOOL_CALL_UNANSWERED: Final = "tool_call_unanswered"

#: Says whether the next turn, with this request, may be sent: whether it is paid for, with the trial's graders.
MayGoOn = Callable[[Trial, InvokeRequest], Awaitable[bool]]


async def always(_trial: Trial, _request: InvokeRequest) -> bool:
    """Return True: the default of who may go on."""
    return True


class _Ended(Exception):
    """The conversation ended with an error that is no fault of its target's call."""

    def __init__(self, error: RowError, *, in_doubt: bool = False) -> None:
        super().__init__(error.error)
        self.error, self.in_doubt = error, in_doubt


@dataclass(slots=True)
class ConversationRun:
    """A conversation, as far as it came, and what it took now.

    ``last`` is the last answer that came now. One that is not over failed: with ``error``, of which ``fault`` is the
    target's, or because the budget is spent. ``expired``: an answer of it is deleted, and it is to be held under other
    ids.
    """

    conversation: TrialConversation
    last: Result | None = None
    calls: int = 0
    usage: TokenUsage = NO_TOKENS
    user_calls: int = 0
    user_usage: TokenUsage = NO_TOKENS
    error: RowError | None = None
    fault: Fault | None = None
    in_doubt: bool = False
    budget_spent: bool = False
    expired: bool = False

    def fit_into_row(self) -> None:
        """Cut the steps to what a row may have: half of it is for a turn that failed, if it has steps."""
        max_bytes = MAX_STEPS_BYTES
        if self.error is not None and self.error.steps:
            max_bytes //= 2
            steps, cut = cut_steps(self.error.steps, self.error.steps_cut, max_bytes=max_bytes)
            self.error = self.error.with_fields(steps=steps, steps_cut=cut)
        self.conversation = replace(self.conversation, turns=turns_of_row(self.conversation.turns, max_bytes))

    @property
    def row(self) -> ConversationRow:
        """The conversation as a row has it."""
        conversation = self.conversation
        turns = [turn.with_fields(continuation=None) for turn in conversation.turns]
        if turns and conversation.is_over:
            turns[-1] = turns[-1].with_fields(output=None, answer=None)
        elif turns:
            turns[-1] = turns[-1].with_fields(continuation=conversation.continuation)
        return ConversationRow(
            turns=turns,
            attempts=conversation.attempt,
            lost_turns=conversation.lost_turns,
            user_calls=self.user_calls,
            user_usage=self.user_usage,
            stopped=conversation.stopped,
        )


async def hold_conversation(trial: Trial, context: GradingContext, may_go_on: MayGoOn = always) -> ConversationRun:
    """Hold the conversation of a trial, from where the row before it ended; every `Fault` is in what is returned."""
    held = ConversationRun(trial.begun_conversation())
    while True:
        try:
            await _hold(held, trial, context, may_go_on)
        except BudgetExhausted:
            held.budget_spent = True
        except ReplyExpired:
            held.expired = True
        except _Ended as ended:
            held.error, held.in_doubt = ended.error, ended.in_doubt
        except Fault as fault:
            held.calls += int(fault.charged is not False)
            if _is_lost(held.conversation, fault) and held.conversation.attempt < MAX_ATTEMPTS:
                held.conversation = held.conversation.begun_again()
                continue
            request_id = turn_id(trial.request_id, held.conversation.attempt, held.conversation.number)
            held.error = RowError.of_call(fault, request_id, f"turn {held.conversation.number}: {fault.message}")
            held.fault, held.in_doubt = fault, is_in_doubt(fault)
        # What the budget has cut goes on where it is held, if the same command is given more in time.
        if held.conversation.is_held and (held.conversation.stopped or held.error is not None or held.expired):
            with contextlib.suppress(QuintainError):
                await context.session.end_conversation(held.conversation.id_in(trial.request_id))
        held.fit_into_row()
        return held


def _is_lost(conversation: TrialConversation, fault: Fault) -> bool:
    """Whether this fault of a turn says that the conversation is lost, with the worker that held it."""
    return isinstance(fault, ConversationLost) or (conversation.is_held and isinstance(fault, WorkerLost))


async def _hold(held: ConversationRun, trial: Trial, context: GradingContext, may_go_on: MayGoOn) -> None:
    """Ask turn after turn, and keep in ``held`` what was answered. Raises the `Fault` of a turn, and `_Ended`."""
    while not held.conversation.is_over:
        conversation = held.conversation
        _require_no_unanswered_call(conversation)
        question = conversation.next_question
        if conversation.asks_user:
            question = await _ask_user(held, trial, context)
            if question is None:
                return
        request = conversation.request(question, trial.target, trial.repeat, trial.request_id)
        if conversation.turns and not await may_go_on(replace(trial, conversation=conversation), request):
            raise BudgetExhausted
        request_id = turn_id(trial.request_id, conversation.attempt, conversation.number)
        result = await context.ask(
            NumberedRequest(request, trial.number, _times_asked(trial, conversation)), request_id, column=trial.column
        )
        if not result.cached:
            held.calls += 1
            held.usage += result.token_usage or NO_TOKENS
        if (error := RowError.of_change(trial.target, trial.fingerprints.target, result, request_id)) is not None:
            raise _Ended(error)
        held.conversation, held.last = conversation.answered(question, result, request_id), result


def _times_asked(trial: Trial, conversation: TrialConversation) -> int:
    """How often a turn of this conversation is asked with this one."""
    return (trial.times_asked - 1) * MAX_ATTEMPTS + conversation.attempt


def _require_no_unanswered_call(conversation: TrialConversation) -> None:
    """Raise `_Ended` if the last answer waits for results of tools: no provider takes another turn before them."""
    if calls := conversation.unanswered_tool_calls:
        names = ", ".join(dict.fromkeys(call.name for call in calls))
        error = (
            f"turn {conversation.number}: the answer before it calls {names}, whose results nobody gives: a model that "
            "is to run its tools is an agent; or leave the tools out of the settings"
        )
        raise _Ended(RowError(code=TOOL_CALL_UNANSWERED, error=error))


async def _ask_user(held: ConversationRun, trial: Trial, context: GradingContext) -> str | None:
    """Ask the simulated user what comes next; None where it ends the conversation. Raises `_Ended`."""
    conversation, user = held.conversation, trial.case.user
    assert user is not None, "only a simulated user is asked"
    request_id = turn_id(trial.request_id, conversation.attempt, conversation.number, by_user=True)
    who = f"the simulated user ({user.target}), before turn {conversation.number}"
    try:
        asked = NumberedRequest(conversation.user_request(), trial.later_number, _times_asked(trial, conversation))
        reply = await context.ask(asked, request_id)
    except (BudgetExhausted, ReplyExpired):
        raise
    except Fault as fault:
        held.calls += int(fault.charged is not False)
        held.user_calls += int(fault.charged is not False)
        error = RowError(code=fault.code, error=f"{who}: {fault.message}", provider_error=fault.provider_error)
        raise _Ended(error, in_doubt=is_in_doubt(fault)) from None
    if not reply.cached:
        held.calls += 1
        held.user_calls += 1
        held.usage += reply.token_usage or NO_TOKENS
        held.user_usage += reply.token_usage or NO_TOKENS
    if (changed := RowError.of_change(user.target, trial.fingerprints.user, reply, request_id)) is not None:
        raise _Ended(changed)
    text = reply.raw_text.strip()
    if text == user.stop and conversation.turns:
        held.conversation = conversation.with_stop()
        return None
    if not text or text == user.stop:
        said = "nothing" if not text else "that the conversation is over, before it began"
        raise _Ended(RowError(code=USER_FAILED, error=f"{who}: it said {said}", request_id=request_id))
    return text
