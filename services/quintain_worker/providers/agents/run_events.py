"""The events of a hosted target's run: how a call answers them, what its answer is, and the steps that they tell."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from pydantic import ValidationError

from quintain.contracts.agents import AgentStep, StepsCut
from quintain.contracts.step_log import StepLog
from quintain.target import ControllableInjection, ControllableNoInjection, Event, EventResponse
from quintain.target.type_registry import to_json_text

#: So many calls of controllables may be open at once and still become one step with their answers.
MAX_OPEN_CALLS: Final = 100


class LogRecord(Protocol):
    """A log record of the target."""

    @property
    def logger(self) -> str: ...
    @property
    def level(self) -> int: ...
    @property
    def text(self) -> str: ...


class RunEventHandler:
    """Answers the events of one run with the question, and collects what the target emits and what it did."""

    def __init__(self, question: str, on_event: Callable[[], object] = lambda: None) -> None:
        self._question: str | None = question
        self._on_event = on_event
        self._last_answer: str | None = None
        self._last_content: object = None
        self._has_content = False
        self._steps, self._began_at = StepLog(), time.monotonic()
        #: The calls of controllables that no answer has followed yet, by name.
        self._open_calls: dict[str, AgentStep] = {}

    def emit(self, event: Event) -> None:
        """Store the event's content as the run's latest."""
        self._on_event()
        if hasattr(event, "content"):
            self._last_content, self._has_content = event.content, True
            if self._is_step(event.content):
                return
            name = getattr(getattr(event, "observable", None), "name", "")
            self._say("emit", "assistant", name, _text_of(event.content))

    def log(self, record: LogRecord) -> None:
        """Note a log record."""
        self._on_event()
        self._say("log", "log", record.logger, record.text, level=logging.getLevelName(record.level))

    async def send_event(self, event: Event) -> EventResponse:
        """Inject the question into the first controllable event; return every other event without an injection."""
        self._on_event()
        controllable: Any = getattr(event, "controllable", None)
        if controllable is None:
            return EventResponse(event=event)
        self._last_answer = getattr(event, "answer", self._last_answer)
        question, self._question = self._question, None
        self._note_call(event, controllable.name, question)
        if question is None:
            return ControllableNoInjection(event=event, controllable=controllable)
        return ControllableInjection(event=event, controllable=controllable, value=question)

    @property
    def answer(self) -> str | None:
        """The last emitted content; else the ``answer`` of the last controllable event; else None."""
        return _text_of(self._last_content) if self._has_content else self._last_answer

    def steps(self) -> tuple[tuple[AgentStep, ...], StepsCut | None]:
        """End the run: return what the target did, in the order of its beginnings, and what was left out of it."""
        for name in [*self._open_calls]:
            self._steps.add(self._open_calls.pop(name))
        steps, cut = self._steps.steps, self._steps.cut
        if cut is None or not cut.steps:
            steps = tuple(sorted(steps, key=lambda step: step.start_ms or 0))
        return steps, cut

    def _note_call(self, event: Any, name: str, injected: str | None) -> None:
        """Note a call of a controllable: its request, and then its answer, with what was injected in their place."""
        now, answer = self._now_ms(), getattr(event, "answer", None)
        request = event.request if injected is None or answer is not None else injected
        call = AgentStep(operation="execute_tool", start_ms=now, tool=name, arguments=_object_of(request))
        opened = self._open_calls.pop(name, None)
        if opened is not None and (answer is None or opened.arguments != call.arguments):
            self._steps.add(opened)
            opened = None
        if answer is None:
            if len(self._open_calls) == MAX_OPEN_CALLS:
                self._steps.add(self._open_calls.pop(next(iter(self._open_calls))))
            self._open_calls[name] = call
            return
        result = answer if injected is None else injected
        duration = None if opened is None else now - (opened.start_ms or 0)
        self._steps.add((opened or call).with_fields(result=result, duration_ms=duration))

    def _is_step(self, content: object) -> bool:
        """Note a step that an agent tells as such, as those of `HostedAgent` do. Returns whether it is one."""
        if not isinstance(content, dict) or "gen_ai.operation.name" not in content:
            return False
        with contextlib.suppress(ValidationError):
            self._steps.add(AgentStep.model_validate(content))
            return True
        return False

    def _say(self, operation: str, role: str, name: str, text: str, **more: str) -> None:
        message = {"role": role, "name": name, "parts": [{"type": "text", "content": text}], **more}
        self._steps.add(AgentStep(operation=operation, start_ms=self._now_ms(), messages=[message]))

    def _now_ms(self) -> float:
        return round(1000 * (time.monotonic() - self._began_at), 1)


def _text_of(content: object) -> str:
    return content if isinstance(content, str) else to_json_text(content)


def _object_of(text: str) -> object:
    """Return the object that a request is as JSON, or its text."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return parsed if isinstance(parsed, dict) else text
