"""Where a target may stand, under one harness: in this process, and behind RabbitMQ; in our words, and in superred's
where that is installed (`tests/superred` runs this suite there)."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from quintain.remote.factory import RemoteFactory
from quintain.remote.line import Line
from quintain.target import Target
from quintain.target.vocabulary import OURS, Vocabulary, superred_vocabulary
from support.hosting import ThreadHost

#: What a target does in a run: itself, and what `run` was given.
Script = Callable[[Any, Callable[[Any], None], Callable[[Any], Awaitable[Any]]], Awaitable[None]]


def speeches() -> dict[str, type]:
    """The Target interfaces that can be spoken here, by name."""
    try:
        return {"ours": Target, "superred": importlib.import_module("superred.core").Target}
    except ImportError:
        return {"ours": Target}


def words_of(speech: str) -> Vocabulary:
    """The classes of a speech."""
    return OURS if speech == "ours" else superred_vocabulary()


class Body:
    """A target that does in a run what a test's script says, in the words of its class."""

    words: Vocabulary
    root: Any
    user: Any
    tools: Any

    def __init__(self, script: Script) -> None:
        self.script = script
        self.question = self.words.controllable("question", self.user, "what the user asks")
        self.screen = self.words.observable("screen", self.tools, "what is shown")
        self.persona = "plain"
        self.runs_since_reset = self.runs_in_all = 0
        self.torn_down = False
        #: What a script leaves for its test to see.
        self.notes: list[Any] = []
        self.kept: Any = None

    @property
    def config_specs(self) -> list[Any]:
        return [self.words.config_spec("persona", self.user, "who it is")]

    def set_config(self, name: str, value: str) -> None:
        if name != "persona":
            raise ValueError(f"There is no slot {name!r}, only persona")
        self.persona = value

    @property
    def query_specs(self) -> list[Any]:
        return [self.words.query_spec("runs", "How often it ran.", [self.words.query_param("since", "reset or lease")])]

    def query(self, name: str, **params: str) -> str:
        if name != "runs":
            raise ValueError(f"There is no question {name!r}, only runs")
        return str(self.runs_since_reset if params["since"] == "reset" else self.runs_in_all)

    @property
    def security_domain(self) -> Any:
        return self.words.domain([self.root, self.user, self.tools])

    def get_controllables(self) -> list[Any]:
        return [self.question, self.words.controllable(f"voice of {self.persona}", self.tools, "", "json")]

    def get_observables(self) -> list[Any]:
        return [self.words.observable_value(self.screen, {"persona": self.persona})]

    async def run(self, emit: Callable[[Any], None], send_event: Callable[[Any], Awaitable[Any]]) -> None:
        self.runs_since_reset += 1
        self.runs_in_all += 1
        await self.script(self, emit, send_event)

    async def reset_ephemeral_state(self) -> None:
        self.runs_since_reset = 0

    async def teardown(self) -> None:
        self.torn_down = True

    # For scripts.

    def asks(self, request: str, **more: Any) -> Any:
        """An event that waits for a response."""
        return self.words.events["ControllablePreCallEvent"](controllable=self.question, request=request, **more)

    def shows(self, content: Any) -> Any:
        """An event that does not."""
        return self.words.events["ObservableEvent"](observable=self.screen, content=content)


def scripted(speech: str) -> type:
    """The class of scripted targets in a speech. Its tags are made once, as a package's are."""
    words = words_of(speech)
    root = words.tag("root")
    tags = {"root": root, "user": words.tag("user", root), "tools": words.tag("tools", root)}
    return type("Scripted", (Body, speeches()[speech]), {"words": words, **tags})


class Controller:
    """Whoever drives a target, as strict as superred's: what it saw, in order, and how it answers."""

    def __init__(self, words: Vocabulary, answer: Callable[[Any], Awaitable[Any]] | None = None) -> None:
        self.words = words
        self.seen: list[Any] = []
        self.over = False
        self._answer = answer

    def emit(self, event: Any) -> None:
        if self.over:
            raise RuntimeError("Cannot emit to a closed trajectory")
        if event.security_domain is None:
            raise ValueError("An event needs a security_domain")
        self.seen.append(event)

    async def send(self, event: Any) -> Any:
        self.emit(event)
        return self.injects(event) if self._answer is None else await self._answer(event)

    def injects(self, event: Any, value: str | None = None) -> Any:
        """The response that puts a value in: what was asked, in capitals, where none is given."""
        put_in = event.request.upper() if value is None else value
        return self.words.responses["ControllableInjection"](event=event, controllable=event.controllable, value=put_in)

    async def drive(self, target: Any) -> None:
        """One run, from its start to its end."""
        self.over = False
        try:
            await target.run(self.emit, self.send)
        finally:
            self.over = True

    def said(self) -> list[Any]:
        """What was seen, by content or request."""
        return [getattr(event, "content", None) or getattr(event, "request", None) for event in self.seen]


class Stand(Protocol):
    """A place for targets. ``made`` are the objects themselves, in the order of their making."""

    words: Vocabulary
    made: list[Any]

    def create(self, script: Script, classes: Iterable[type] = ()) -> Any:
        """A fresh target, as its controller holds it; ``classes`` are events and responses of somebody's own."""

    async def close(self) -> None: ...


@dataclass
class InProcess:
    """The target is here."""

    kind: type
    words: Vocabulary
    made: list[Any]

    def create(self, script: Script, classes: Iterable[type] = ()) -> Any:
        self.made.append(self.kind(script))
        return self.made[-1]

    async def close(self) -> None: ...


class BehindRabbit:
    """The target is on a host, and what is here stands for it."""

    def __init__(self, kind: type, words: Vocabulary, host: ThreadHost, line: Line) -> None:
        self.kind, self.words = kind, words
        self._host, self._line = host, line
        self._begin = len(host.made)
        self._leased: list[Any] = []

    @property
    def made(self) -> list[Any]:
        return self._host.made[self._begin :]

    def create(self, script: Script, classes: Iterable[type] = ()) -> Any:
        kind = self.kind
        factory = RemoteFactory(
            self._host.name,
            ahead=0,
            line=self._line,
            vocabulary=self.words.with_classes(classes),
            tags=[kind.user, kind.tools],  # type: ignore[attr-defined]
        )
        self._leased.append(self._host.leased(lambda: kind(script), factory.create))
        return self._leased[-1]

    async def close(self) -> None:
        for target in self._leased:
            await target.teardown()
