"""Reads the answer of an HTTP endpoint by the pointers of its target: a whole one, or event by event. No I/O."""

from __future__ import annotations

import json

from quintain.config.http_targets import HttpTarget
from quintain.config.http_template import find
from quintain.contracts.agents import AgentStep, Continuation
from quintain.contracts.invoke import TokenUsage
from quintain_worker.providers.agent_steps import read_steps
from quintain_worker.providers.http_request import MAX_SESSION_LENGTH
from quintain_worker.providers.provider import OnText, ProviderAnswer


class HttpAnswer:
    """The answer to one call, as far as it has come. ``has_ended``: an event said that it was the last one."""

    def __init__(self, target: HttpTarget, on_text: OnText | None) -> None:
        self._target, self._on_text = target, on_text
        usage = target.usage
        pointers = {
            "answer": target.answer,
            "session": target.session,
            "steps": target.steps,
            "input": None if usage is None else usage.input,
            "output": None if usage is None else usage.output,
        }
        self._pointers = {name: pointer for name, pointer in pointers.items() if pointer is not None}
        self._found: dict[str, object] = {}
        self._texts: list[str] = []
        self.has_ended = False

    def feed(self, document: object) -> None:
        """Add the whole answer, or the next event: what is found in a later one replaces what was found before."""
        for name, pointer in self._pointers.items():
            if (found := find(document, pointer)) is not None:
                self._found[name] = found
        stream = self._target.stream
        if stream is None:
            return
        piece = None if stream.text is None else find(document, stream.text)
        if isinstance(piece, str):
            self._texts.append(piece)
            if piece and self._on_text is not None:
                self._on_text(piece)
        if stream.end is not None and find(document, stream.end) not in (None, False):
            self.has_ended = True

    def answer(self, state: str | None, *, is_turn: bool) -> ProviderAnswer:
        """Return the answer. Raises `ValueError`, which says what was not found, or cannot be used.

        ``state`` is the session that the request named, and ``is_turn`` says that a later one may.
        """
        return ProviderAnswer(
            text=self._text(),
            token_usage=self._usage(),
            steps=self._steps(),
            continuation=self._continuation(state) if is_turn and self._target.session is not None else None,
        )

    def _text(self) -> str:
        stream = self._target.stream
        if stream is not None and stream.text is not None:
            if not self._texts:
                raise ValueError(f"stream.text: no event has a text at {stream.text!r}")
            return "".join(self._texts)
        if "answer" not in self._found:
            raise ValueError(f"answer: {self._target.answer!r} finds nothing")
        found = self._found["answer"]
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)

    def _usage(self) -> TokenUsage | None:
        counts = [self._found.get(name) for name in ("input", "output")]
        # What is no count says nothing, as in models' answers.
        if not all(type(count) is int for count in counts):
            return None
        usage = TokenUsage.model_validate(dict(zip(("input", "output"), counts, strict=True)))
        return usage if usage.is_plausible else None

    def _continuation(self, state: str | None) -> Continuation:
        found = self._found.get("session")
        session = state if found is None else json.dumps(found)
        if session is None:
            raise ValueError(f"session: {self._target.session!r} finds nothing")
        if len(session) > MAX_SESSION_LENGTH:
            raise ValueError(f"session: it has more than {MAX_SESSION_LENGTH} characters")
        return Continuation(state=session)

    def _steps(self) -> tuple[AgentStep, ...]:
        if "steps" not in self._found:
            # An agent that did nothing may say nothing.
            return ()
        try:
            return read_steps(self._found["steps"])
        except ValueError as error:
            raise ValueError(f"steps: {error}") from None
