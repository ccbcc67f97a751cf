"""The target of the suite for hosts: in a run it does what its slot ``script`` says (docs/protocol/hosts.md)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from quintain.target import (
    ConfigSpec,
    Controllable,
    ControllableInjection,
    ControllablePreCallEvent,
    EventHandler,
    EventResponseHandler,
    Observable,
    ObservableEvent,
    ObservableValue,
    QueryParam,
    QuerySpec,
    SecurityDomain,
    SecurityDomainTag,
    Target,
)

ROOT = SecurityDomainTag("root")
USER, TOOLS = SecurityDomainTag("user", ROOT), SecurityDomainTag("tools", ROOT)
QUESTION = Controllable("question", USER, "what is asked")
SCREEN = Observable("screen", TOOLS, "what is shown")

CONFIG_SPECS = {"script": "what a run does", "persona": "who it is", "diary": "the file that it notes its end in"}

#: The persona whose reset never ends.
STUCK = "stuck"


class Scripted(Target):
    """Does in a run what its script says, step by step."""

    def __init__(self) -> None:
        self._values = {"script": "[]", "persona": "plain", "diary": ""}
        self._runs = {"lease": 0, "reset": 0}
        self._count = 0

    @property
    def config_specs(self) -> list[ConfigSpec]:
        return [ConfigSpec(name, USER, description) for name, description in CONFIG_SPECS.items()]

    def set_config(self, name: str, value: str) -> None:
        if name not in self._values:
            raise ValueError(f"There is no slot {name}")
        self._values[name] = value

    @property
    def query_specs(self) -> list[QuerySpec]:
        return [
            QuerySpec("runs", "How often it ran.", [QueryParam("since", "reset or lease")]),
            QuerySpec("count", "How often this was asked."),
        ]

    def query(self, name: str, **params: str) -> str:
        if name == "runs":
            return str(self._runs[params["since"]])
        if name != "count":
            raise ValueError(f"There is no query {name}")
        self._count += 1
        return str(self._count)

    @property
    def security_domain(self) -> SecurityDomain:
        return SecurityDomain([ROOT, USER, TOOLS])

    def get_controllables(self) -> list[Controllable]:
        return [QUESTION, Controllable(f"voice of {self._values['persona']}", TOOLS)]

    def get_observables(self) -> list[ObservableValue]:
        return [ObservableValue(SCREEN, {"persona": self._values["persona"]})]

    async def run(self, emit: EventHandler, send_event: EventResponseHandler) -> None:
        self._runs = {name: number + 1 for name, number in self._runs.items()}
        try:
            for step, *words in json.loads(self._values["script"]):
                await getattr(self, f"_{step}")(emit, send_event, *words)
        except asyncio.CancelledError:
            self._note("cancelled")
            raise

    async def reset_ephemeral_state(self) -> None:
        if self._values["persona"] == STUCK:
            await asyncio.Event().wait()
        self._runs["reset"] = 0

    async def teardown(self) -> None:
        self._note("torn down")

    def _note(self, text: str) -> None:
        if self._values["diary"]:
            with Path(self._values["diary"]).open("a") as diary:
                diary.write(f"{text}\n")

    # The steps of a script.

    async def _emit(self, emit: EventHandler, _: EventResponseHandler, content: Any) -> None:
        emit(ObservableEvent(observable=SCREEN, content=content))

    async def _count_to(self, emit: EventHandler, _: EventResponseHandler, number: int) -> None:
        for each in range(1, number + 1):
            emit(ObservableEvent(observable=SCREEN, content=each))
            if not each % 100:
                await asyncio.sleep(0)

    async def _ask(self, emit: EventHandler, send_event: EventResponseHandler, *requests: str) -> None:
        """Send all at once, wait for all, and emit the answers: the value put in, or null for none."""
        events = [ControllablePreCallEvent(controllable=QUESTION, request=request) for request in requests]
        responses = await asyncio.gather(*map(send_event, events))
        values = [each.value if isinstance(each, ControllableInjection) else None for each in responses]
        emit(ObservableEvent(observable=SCREEN, content=values))

    async def _try(self, emit: EventHandler, send_event: EventResponseHandler, request: str) -> None:
        """Send one, and emit the message of the error that comes back."""
        try:
            await self._ask(emit, send_event, request)
        except Exception as error:
            emit(ObservableEvent(observable=SCREEN, content={"error": str(error)}))

    async def _fail(self, _: EventHandler, __: EventResponseHandler, message: str) -> None:
        raise RuntimeError(message)

    async def _wait(self, _: EventHandler, __: EventResponseHandler) -> None:
        await asyncio.Event().wait()
