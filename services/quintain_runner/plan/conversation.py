"""A conversation with a target, turn by turn: what is said next, how far it is, and how many calls it takes. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from quintain.contracts.agents import Continuation, Turn
from quintain.contracts.invoke import ChatMessage, InvokeRequest, OutputMessage, Result, ToolCall, content_text
from quintain.graders import Case
from quintain_runner.plan.address import request_id
from quintain_runner.results.answer import Answer, TurnRow
from quintain_runner.results.bill import SIMULATED_USER
from quintain_runner.results.row import Row

#: How often a conversation is begun at most: again where the worker that held it is lost.
MAX_ATTEMPTS: Final = 3

_USER_RULES: Final = """\
You play the user in a conversation with an assistant. You are not the assistant. Your goal:

{goal}

Write what the user says next, and nothing else: no name, no quotation marks, no comment. \
When the goal is reached, or the assistant cannot help, write {stop} and nothing else."""

#: Precedes the conversation that the simulated user sees: in its view the first message must be another's.
_BEGIN: Final = "(The conversation begins. You speak first.)"

#: What the simulated user sees in the place of an answer without text: the last message must be another's too.
_SILENCE: Final = "(No answer.)"


def opening(case: Case) -> list[ChatMessage]:
    """Return the messages that stand before the first turn, or are the first turn."""
    if case.messages is not None:
        return [*case.messages]
    return [] if case.question is None else [ChatMessage(role="user", content=case.question)]


def begins_with_question(case: Case) -> bool:
    """Return whether the first turn is the case's question, or the last of its messages."""
    first = opening(case)
    return bool(first) and first[-1].role in {"user", "tool"}


def most_turns(case: Case) -> int:
    """Return how many answers of the target the case takes at most."""
    if case.user is not None:
        return case.user.max_turns
    return begins_with_question(case) + len(case.turns) if case.turns is not None else 1


def most_user_calls(case: Case) -> int:
    """Return how often the simulated user is asked at most."""
    return 0 if case.user is None else case.user.max_turns - begins_with_question(case)


def most_asks(case: Case) -> int:
    """Return how many calls the case takes at most without its graders: of the target and of the simulated user."""
    return most_turns(case) + most_user_calls(case)


@dataclass(frozen=True, slots=True)
class TrialConversation:
    """What was said so far. ``turns`` are those with an answer, in the attempt ``attempt``, from 1.

    ``lost_turns`` were answered in earlier attempts, and are lost with the workers that held them. ``stopped``: the
    simulated user has ended it.
    """

    case: Case
    turns: tuple[TurnRow, ...] = ()
    attempt: int = 1
    lost_turns: int = 0
    stopped: bool = False

    @classmethod
    def of_row(cls, case: Case, row: Row | None) -> TrialConversation:
        """Return the conversation of a row, also of one that failed before its last turn."""
        return cls(case, () if row is None else tuple(row.turns()))

    @property
    def number(self) -> int:
        """The number of the next turn."""
        return len(self.turns) + 1

    @property
    def is_over(self) -> bool:
        """Whether nothing more is said."""
        return self.stopped or len(self.turns) >= most_turns(self.case)

    @property
    def asks_user(self) -> bool:
        """Whether the simulated user has to say what comes next."""
        return self.case.user is not None and not (self.number == 1 and begins_with_question(self.case))

    @property
    def next_question(self) -> str | None:
        """What the case says next; None for the first turn of a case that begins with its question."""
        place = len(self.turns) - begins_with_question(self.case)
        return None if place < 0 or self.case.turns is None else self.case.turns[place]

    @property
    def continuation(self) -> Continuation | None:
        """What the last answer wants to have said with the next turn."""
        return self.turns[-1].continuation if self.turns else None

    @property
    def is_held(self) -> bool:
        """Whether one worker holds it, so that it is lost with that worker."""
        return self.continuation is not None and self.continuation.route is not None

    @property
    def can_be_resumed(self) -> bool:
        """Whether a later command can go on with it."""
        return not (self.is_held or self.is_over or self.unanswered_tool_calls)

    @property
    def unanswered_tool_calls(self) -> list[ToolCall]:
        """The calls of the last answer that its model leaves to the caller: no provider takes a turn before their
        results, and a case has none."""
        answer = self.turns[-1].answer if self.turns else None
        return [call for message in (answer and answer.messages) or () for call in message.tool_calls or ()]

    def messages(self, question: str | None) -> list[ChatMessage]:
        """Return the conversation up to the next turn, which says ``question``; None if that is the case's own.

        An answer without text has no message: providers refuse an empty one.
        """
        answered = [message for turn in self.turns for message in (*_asked(turn.question), *_answers(turn))]
        return [*opening(self.case), *answered, *_asked(question)]

    def id_in(self, trial_id: str) -> str:
        """Return the id of this attempt at the conversation of a trial, of which this is the request id."""
        return f"{trial_id}-{self.attempt}"

    def request(self, question: str | None, target: str, repeat: int, trial_id: str) -> InvokeRequest:
        """Return the request of the next turn."""
        return InvokeRequest(
            messages=self.messages(question),
            system_prompt=self.case.system_prompt,
            target=target,
            eval_case_id=self.case.id,
            attempt=repeat,
            settings=self.case.settings,
            turn=Turn(
                conversation_id=self.id_in(trial_id),
                number=self.number,
                continuation=self.continuation,
                last=self.number == most_turns(self.case),
            ),
        )

    def user_request(self) -> InvokeRequest:
        """Return the request that asks the simulated user what comes next: the roles are the other way round."""
        user = self.case.user
        assert user is not None, "only a simulated user is asked"
        seen = [
            ChatMessage(role="user" if message.role == "assistant" else "assistant", content=message.content)
            for message in self.messages(None)
            if message.role in {"user", "assistant"}
        ]
        if self.turns and not any(_answers(self.turns[-1])):
            seen.append(ChatMessage(role="user", content=_SILENCE))
        return InvokeRequest(
            system_prompt=_USER_RULES.format(goal=user.goal, stop=user.stop),
            messages=[ChatMessage(role="user", content=_BEGIN), *seen],
            target=user.target,
            eval_case_id=self.case.id,
            grader=SIMULATED_USER,
        )

    def answered(self, question: str | None, result: Result, request_id: str) -> TrialConversation:
        """Return the conversation after the answer to its next turn."""
        turn = TurnRow.unchecked(
            question=question,
            output=result.raw_text,
            duration_ms=result.duration_ms,
            answer=Answer.of(result, request_id),
            continuation=result.continuation,
        )
        return replace(self, turns=(*self.turns, turn))

    def with_stop(self) -> TrialConversation:
        """Return the conversation that the simulated user has ended."""
        return replace(self, stopped=True)

    def begun_again(self) -> TrialConversation:
        """Return the conversation before its first turn, in the next attempt; what was answered is lost."""
        lost = self.lost_turns + len(self.turns)
        return TrialConversation(self.case, attempt=self.attempt + 1, lost_turns=lost)

    @property
    def graded_case(self) -> Case:
        """The case as graders get it: its messages are all but the last answer, which they get as such."""
        if not self.turns:
            return self.case
        last = self.turns[-1]
        before = replace(self, turns=self.turns[:-1])
        return self.case.model_copy(update={"question": None, "messages": before.messages(last.question)})


def turn_id(trial_id: str, attempt: int, number: int, *, by_user: bool = False) -> str:
    """Return the request id of a turn, or of what the simulated user says in it: after a crash it is the same."""
    return request_id("user" if by_user else "turn", trial_id, attempt, number)


def planned_ids(case: Case, trial_id: str, first: int = 1) -> list[str]:
    """Return the ids of the calls that a conversation takes at most from this turn on, if none of it is lost."""
    last = most_turns(case)
    own = [turn_id(trial_id, 1, number) for number in range(first, last + 1)]
    if case.user is None:
        return own
    first_by_user = max(first, 1 + begins_with_question(case))
    return [*own, *(turn_id(trial_id, 1, number, by_user=True) for number in range(first_by_user, last + 1))]


def _asked(question: str | None) -> list[ChatMessage]:
    return [] if question is None else [ChatMessage(role="user", content=question)]


def _answers(turn: TurnRow) -> Iterator[ChatMessage]:
    """The answer of a turn as later turns show it: the messages of it that have a text."""
    messages = (turn.answer and turn.answer.messages) or [OutputMessage(content=turn.output or "")]
    for message in messages:
        if content_text(message.content).strip():
            yield ChatMessage(role="assistant", content=message.content)
