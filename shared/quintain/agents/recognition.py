"""Recognises what kind of agent an object is, without importing any framework that its module has not imported."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import cast

from quintain.agents.conversation import Conversation, FunctionConversation
from quintain.config.python_imports import load_object
from quintain.errors import ConfigError

#: The adapter of each framework, as ``module:class`` of this package, by the framework's package and the name of a
#: class that its agents inherit from.
_ADAPTERS = {
    ("agents", "Agent"): "openai_agents:OpenAIAgentConversation",
    ("crewai", "BaseAgent"): "crewai:CrewAgentConversation",
    ("crewai", "Crew"): "crewai:CrewConversation",
    ("langgraph", "Pregel"): "langgraph:LangGraphConversation",
    ("pydantic_ai", "AbstractAgent"): "pydantic_ai:PydanticAIConversation",
    ("smolagents", "MultiStepAgent"): "smolagents:SmolagentsConversation",
}
_INSPECT = "inspect_ai:InspectConversation"

#: What is no agent itself, but makes one: what to write instead, by the package and the class.
_REMEDIES = {
    ("crewai", "CrewBase"): "give the crew that its method crew() returns",
    ("langchain_core", "BaseChatModel"): "it is a model; make an agent of it with langchain.agents.create_agent",
    ("langchain_core", "Runnable"): "call it in a function that takes the prompt",
    ("langgraph", "StateGraph"): "compile it, and give what compile() returns",
}

#: What frameworks send to their vendors, the conversations and the key among it, unless this or the user says no.
SENDS_NOTHING = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "CREWAI_DISABLE_TELEMETRY": "true"}

#: What an agent may be.
KINDS = (
    "a function of the prompt or of `messages`, a LangGraph graph, or an agent of OpenAI's Agents SDK, pydantic-ai, "
    "CrewAI, smolagents or Inspect (docs/agents.md)"
)


def load_agent(reference: str, folder: Path) -> Callable[[], Conversation]:
    """Import the agent ``module:name``, and return what begins a conversation with it.

    Raises `ConfigError`, which names what it is and what to write instead.
    """
    agent = load_object(reference, folder, kind="agent")
    return conversation_factory(agent, reference)


def conversation_factory(agent: object, name: str) -> Callable[[], Conversation]:
    """Return what begins a conversation with this agent. Raises `ConfigError` if it is none; ``name`` is for its text.

    What it returns raises `ConfigError` if the agent cannot be used.
    """
    adapter = _adapter_of(agent, name)

    def begin() -> Conversation:
        try:
            return adapter(agent)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error.message}") from None

    return begin


def _adapter_of(agent: object, name: str) -> Callable[[object], Conversation]:
    classes = {(base.__module__.partition(".")[0], base.__name__) for base in type(agent).__mro__}
    adapters = [path for key, path in _ADAPTERS.items() if key in classes]
    if getattr(getattr(agent, "__registry_info__", None), "type", None) == "agent":
        adapters.append(_INSPECT)
        if not _is_async(agent):
            raise ConfigError(f"{name} makes an Inspect agent, and is none itself: call it, and give what it returns")
    if adapters:
        module, _, adapter = adapters[0].partition(":")
        found = getattr(importlib.import_module(f"quintain.agents.{module}"), adapter)
        return cast("Callable[[object], Conversation]", found)
    if inspect.isclass(agent):
        raise ConfigError(f"{name} is a class: give an instance of it, such as agent = {agent.__name__}(...)")
    for key, remedy in _REMEDIES.items():
        if key in classes:
            raise ConfigError(f"{name} is of type {key[1]}, and no agent: {remedy}")
    if callable(agent):
        return cast("Callable[[object], Conversation]", FunctionConversation)
    raise ConfigError(f"{name} is of type {type(agent).__name__}, and no agent: an agent is {KINDS}")


def _is_async(agent: object) -> bool:
    return inspect.iscoroutinefunction(agent) or inspect.iscoroutinefunction(getattr(agent, "__call__", None))  # noqa: B004 -- its method is looked at
