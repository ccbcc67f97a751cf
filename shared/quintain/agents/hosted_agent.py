"""An agent of any framework as a target under test: the same words that ``provider: agent`` takes, hosted."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

from quintain.agents.conversation import Conversation, TurnInput, TurnReport
from quintain.agents.recognition import conversation_factory
from quintain.contracts.agents import AgentStep
from quintain.errors import ConfigError
from quintain.programs.agent_urls import AgentUrl
from quintain.target import (
    SESSION_SLOT,
    ConfigSpec,
    Controllable,
    ControllableInjection,
    ControllablePreCallEvent,
    EventHandler,
    EventResponseHandler,
    Observable,
    ObservableEvent,
    ObservableValue,
    QuerySpec,
    SecurityDomain,
    SecurityDomainTag,
    Target,
)

USER = SecurityDomainTag("user")

#: The party that answers for the agent, and not its user.
AGENT = SecurityDomainTag("agent")

#: The one point of an agent where a value is injected, and what is observed of it.
PROMPT = Controllable("prompt", USER, "What the user says to the agent")
STEP = Observable("step", USER, "One thing that the agent did, with OpenTelemetry's names", observable_type="json")
ANSWER = Observable("answer", USER, "What the agent answers")


class HostedAgent(Target):
    """An agent as a target: each run is a turn of its conversation, which `reset_ephemeral_state` begins again.

    With a ``url`` it takes the session of its model calls, for which the URL stands until its teardown.
    """

    def __init__(self, begin: Callable[[], Conversation], url: AgentUrl | None = None) -> None:
        self._begin, self._conversation, self._url = begin, begin(), url
        # Not the loop's own threads: one that its agent keeps after the lease makes the host replace the process.
        self._threads = ThreadPoolExecutor(thread_name_prefix="agent")
        self._prompt, self._answer = "", ""
        self._messages: list[dict[str, str]] = []
        self._steps: list[dict[str, Any]] = []
        self._turns = 0

    @property
    def config_specs(self) -> list[ConfigSpec]:
        """The prompt, and the session of its model calls."""
        prompt = ConfigSpec("prompt", USER, "What the user says if nothing is injected, as plain text")
        session = ConfigSpec(SESSION_SLOT, AGENT, "The session that its model calls are charged to")
        return [prompt] if self._url is None else [prompt, session]

    def set_config(self, name: str, value: str) -> None:
        """Set the prompt, or the session."""
        if name == SESSION_SLOT and self._url is not None:
            self._url.stand_for(value)
        elif name == "prompt":
            self._prompt = value
        else:
            raise ValueError(f"an agent has no {name!r} to configure; it has 'prompt'")

    @property
    def query_specs(self) -> list[QuerySpec]:
        """The answer and the steps of the last run."""
        return [
            QuerySpec("answer", "The agent's last answer"),
            QuerySpec("steps", "What it did for it: a JSON list of steps with OpenTelemetry's names"),
        ]

    def query(self, name: str, **params: str) -> str:
        """Answer a query."""
        if name not in {"answer", "steps"}:
            raise ValueError(f"an agent answers no query {name!r}; it answers 'answer' and 'steps'")
        return self._answer if name == "answer" else json.dumps(self._steps)

    @property
    def security_domain(self) -> SecurityDomain:
        """The user's tag for all but the session: an agent does not say who may see what of it."""
        return SecurityDomain([USER] if self._url is None else [USER, AGENT])

    def get_controllables(self) -> list[Controllable]:
        """The prompt."""
        return [PROMPT]

    def get_observables(self) -> list[ObservableValue]:
        """The steps and the answer."""
        return [ObservableValue(STEP), ObservableValue(ANSWER)]

    async def run(self, emit: EventHandler, send_event: EventResponseHandler) -> None:
        """Have one turn with the agent."""
        response = await send_event(ControllablePreCallEvent(controllable=PROMPT, request=self._prompt))
        prompt = str(response.value) if isinstance(response, ControllableInjection) else self._prompt
        self._steps, self._answer = [], ""

        def add_step(step: AgentStep) -> None:
            self._steps.append(json.loads(step.to_wire()))
            emit(ObservableEvent(observable=STEP, content=self._steps[-1]))

        messages = [*self._messages, {"role": "user", "content": prompt}]
        turn = TurnInput(self._turns + 1, prompt, messages)
        # In a thread, because a function that is not asynchronous may start a loop of its own.
        answer = partial(copy_context().run, self._conversation.answer, turn, TurnReport(add_step, lambda _: None))
        answered = await asyncio.get_running_loop().run_in_executor(self._threads, answer)
        self._answer = await answered if inspect.isawaitable(answered) else answered
        self._messages, self._turns = [*messages, {"role": "assistant", "content": self._answer}], self._turns + 1
        emit(ObservableEvent(observable=ANSWER, content=self._answer))

    async def reset_ephemeral_state(self) -> None:
        """Begin the conversation again."""
        self._conversation, self._messages, self._turns = self._begin(), [], 0
        self._steps, self._answer = [], ""

    async def teardown(self) -> None:
        """End the right to call models, and the threads that are free: an agent itself has no end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._url is not None:
            self._url.stand_for(None)


def target_factory(found: object, path: str, url: AgentUrl | None = None) -> Callable[[], Any]:
    """Return what makes instances of what ``module:name`` names: a factory of targets or agents, or an agent.

    ``url`` is that of an agent's model calls. Raises `ConfigError` if it is neither.
    """
    if inspect.isclass(found) and hasattr(found, "set_config"):
        return found
    if inspect.isclass(found) or (callable(found) and _needs_nothing(found)):

        def make() -> Any:
            return _as_target(found(), path, url)

        # By it, a factory may choose where its targets run.
        vars(make).update({key: getattr(found, key) for key in ("isolation",) if hasattr(found, key)})
        return make
    begin = conversation_factory(found, path)
    begin()
    return lambda: HostedAgent(begin, url)


def _as_target(made: Any, path: str, url: AgentUrl | None) -> Any:
    """What a factory made, hosted if it is an agent; a target has a method to configure it, and no agent has."""
    if hasattr(type(made), "set_config"):
        return made
    try:
        return HostedAgent(conversation_factory(made, path), url)
    except ConfigError:
        # The host says what it lacks.
        return made


def _needs_nothing(function: Callable[..., object]) -> bool:
    """Whether a factory can be called without an argument; so can one whose signature nobody knows."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:
        return True
    return True
