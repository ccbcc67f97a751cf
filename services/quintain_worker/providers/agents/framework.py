"""The agent provider: agents of Python frameworks, each in a process of our own program, which is kept for the next."""

from __future__ import annotations

import sys

from quintain.agents.recognition import SENDS_NOTHING
from quintain.config.program_targets import AgentTarget
from quintain.errors import ConfigError
from quintain.programs.agent_urls import NO_GATEWAY, AgentUrls
from quintain_worker.providers.agents.program import (
    AgentCommand,
    AgentProgramProvider,
    agent_of,
    check_confinement,
)
from quintain_worker.providers.agents.session import AgentModels
from quintain_worker.providers.program_starts import check_ready
from quintain_worker.providers.provider import ProviderContext


def agent_provider(name: str, target: AgentTarget, context: ProviderContext) -> AgentProgramProvider:
    """Create the agent provider of this target. Raises `ConfigError` if this machine cannot confine its program."""
    check_confinement(name, target, context)
    models = AgentModels.of_target(name, target.child_session, context)
    return AgentProgramProvider(name, _program(target, context), models)


def check_agent(name: str, target: AgentTarget, context: ProviderContext) -> bool:
    """Import the agent in a process of its own, and return whether it takes turns.

    Raises `ConfigError`, which says why it cannot be used.
    """
    agent = _program(target, context, "--check")
    program = agent.program
    if target.child_session is not None:
        # Clients are made at import, and take the URL then.
        program = AgentUrls(NO_GATEWAY).add().given_to(program)
    try:
        ready = check_ready(program)
    except ConfigError as error:
        raise ConfigError(f"targets.{name}: {error.message}") from None
    takes_turns: bool = ready["turns"]
    return takes_turns


def _program(target: AgentTarget, context: ProviderContext, *options: str) -> AgentCommand:
    own = {name: value for name, value in SENDS_NOTHING.items() if name not in target.env_from}
    target = target.model_copy(update={"env": {**own, **target.env}})
    return agent_of(target, context, [sys.executable, "-m", "quintain.agents", *options, target.agent], is_kept=True)
