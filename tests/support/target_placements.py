"""Where a target may stand, under one harness: in this process, and behind RabbitMQ; in our words, and in superred's
where that is installed (`tests/superred` runs this suite there)."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from quintain.remote.connection_thread import ConnectionThread
from quintain.remote.factory import RemoteFactory
from quintain.target import Target
from quintain.target.type_registry import QUINTAIN_TYPES, TypeRegistry, superred_types
from support.thread_host import ThreadHost

#: What a target does in a run: itself, and what `run` was given.
TargetScript = Callable[[Any, Callable[[Any], None], Callable[[Any], Awaitable[Any]]], Awaitable[None]]


def target_interfaces() -> dict[str, type]:
    """The Target interfaces that can be spoken here, by name."""
    try:
        return {"ours": Target, "superred": importlib.import_module("superred.core").Target}
    except ImportError:
        return {"ours": Target}


def types_of(interface_name: str) -> TypeRegistry:
    """The classes of a speech."""
    return QUINTAIN_TYPES if interface_name == "ours" else superred_types()


class ScriptedTarget:
    """A target that does in a run what a test's script says, in the words of its class."""

    types: TypeRegistry
    root: Any
    user: Any
    tools: Any

    def __init__(self, script: TargetScript) -> None:
        self.script = script
        self.question = self.types.module.Controllable("question", self.user, "what the user asks")
        self.screen = self.types.module.Observable("screen", self.tools, "what is shown")
        self.persona = "plain"
        self.runs_since_reset = self.total_runs = 0
        self.torn_down = False
        #: What a script leaves for its test to see.
        self.notes: list[Any] = []
        self.saved: Any = None

    @property
    def config_specs(self) -> list[Any]:
        return [self.types.module.ConfigSpec("persona", self.user, "who it is")]

    def set_config(self, name: str, value: str) -> None:
        if name != "persona":
            raise ValueError(f"There is no slot {name!r}, only persona")
        self.persona = value

    @property
    def query_specs(self) -> list[Any]:
        return [
            self.types.module.QuerySpec(
                "runs", "How often it ran.", [self.types.module.QueryParam("since", "reset or lease")]
            )
        ]

    def query(self, name: str, **params: str) -> str:
        if name != "runs":
            raise ValueError(f"There is no question {name!r}, only runs")
        return str(self.runs_since_reset if params["since"] == "reset" else self.total_runs)

    @property
    def security_domain(self) -> Any:
        return self.types.module.SecurityDomain([self.root, self.user, self.tools])

    def get_controllables(self) -> list[Any]:
        return [self.question, self.types.module.Controllable(f"voice of {self.persona}", self.tools, "", "json")]

    def get_observables(self) -> list[Any]:
        return [self.types.module.ObservableValue(self.screen, {"persona": self.persona})]

    async def run(self, emit: Callable[[Any], None], send_event: Callable[[Any], Awaitable[Any]]) -> None:
        self.runs_since_reset += 1
        self.total_runs += 1
        await self.script(self, emit, send_event)

    async def reset_ephemeral_state(self) -> None:
        self.runs_since_reset = 0

    async def teardown(self) -> None:
        self.torn_down = True

    # For scripts.

    def request_event(self, request: str, **fields: Any) -> Any:
        """An event that waits for a response."""
        return self.types.events["ControllablePreCallEvent"](controllable=self.question, request=request, **fields)

    def observation_event(self, content: Any) -> Any:
        """An event that does not."""
        return self.types.events["ObservableEvent"](observable=self.screen, content=content)


def scripted_target_class(interface_name: str) -> type:
    """The class of scripted targets in a speech. Its tags are made once, as a package's are."""
    types = types_of(interface_name)
    root = types.module.SecurityDomainTag("root")
    tags = {
        "root": root,
        "user": types.module.SecurityDomainTag("user", root),
        "tools": types.module.SecurityDomainTag("tools", root),
    }
    # superred is imported only for its own speech: that takes seconds.
    base = Target if interface_name == "ours" else target_interfaces()[interface_name]
    return type("Scripted", (ScriptedTarget, base), {"types": types, **tags})


class Controller:
    """Whoever drives a target, as strict as superred's: what it saw, in order, and how it answers."""

    def __init__(self, types: TypeRegistry, answer: Callable[[Any], Awaitable[Any]] | None = None) -> None:
        self.types = types
        self.seen: list[Any] = []
        self.is_closed = False
        self._answer = answer

    def emit(self, event: Any) -> None:
        if self.is_closed:
            raise RuntimeError("Cannot emit to a closed trajectory")
        if event.security_domain is None:
            raise ValueError("An event needs a security_domain")
        self.seen.append(event)

    async def send(self, event: Any) -> Any:
        self.emit(event)
        return self.injection(event) if self._answer is None else await self._answer(event)

    def injection(self, event: Any, value: str | None = None) -> Any:
        """The response that puts a value in: what was asked, in capitals, where none is given."""
        injected_value = event.request.upper() if value is None else value
        return self.types.responses["ControllableInjection"](
            event=event, controllable=event.controllable, value=injected_value
        )

    async def drive(self, target: Any) -> None:
        """One run, from its start to its end."""
        self.is_closed = False
        try:
            await target.run(self.emit, self.send)
        finally:
            self.is_closed = True

    def contents(self) -> list[Any]:
        """What was seen, by content or request."""
        return [getattr(event, "content", None) or getattr(event, "request", None) for event in self.seen]


class TargetPlacement(Protocol):
    """A place for targets. ``instances`` are the objects themselves, in the order of their making."""

    types: TypeRegistry
    instances: list[Any]

    def create(self, script: TargetScript, classes: Iterable[type] = ()) -> Any:
        """A fresh target, as its controller holds it; ``classes`` are events and responses of somebody's own."""

    async def close(self) -> None: ...


@dataclass
class InProcessPlacement:
    """The target is here."""

    target_class: type
    types: TypeRegistry
    instances: list[Any]

    def create(self, script: TargetScript, classes: Iterable[type] = ()) -> Any:
        self.instances.append(self.target_class(script))
        return self.instances[-1]

    async def close(self) -> None: ...


class RemotePlacement:
    """The target is on a host, and what is here stands for it."""

    def __init__(self, target_class: type, types: TypeRegistry, host: ThreadHost, connection: ConnectionThread) -> None:
        self.target_class, self.types = target_class, types
        self._host, self._connection = host, connection
        self._first_index = len(host.instances)
        self._leased: list[Any] = []

    @property
    def instances(self) -> list[Any]:
        return self._host.instances[self._first_index :]

    def create(self, script: TargetScript, classes: Iterable[type] = ()) -> Any:
        target_class = self.target_class
        factory = RemoteFactory(
            self._host.name,
            prefetch=0,
            connection=self._connection,
            type_registry=self.types.with_classes(classes),
            tags=[target_class.user, target_class.tools],  # type: ignore[attr-defined]
        )
        self._leased.append(self._host.lease_from(lambda: target_class(script), factory.create))
        return self._leased[-1]

    async def close(self) -> None:
        for target in self._leased:
            await target.teardown()
