"""Creates the provider of a target from its configuration, and checks without a call whether it can work here."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from quintain.config.fingerprint import module_digests, unseen_warnings
from quintain.config.program_targets import PLACEHOLDERS, AgentTarget, CommandTarget, PythonTarget
from quintain.config.python_imports import command_imports
from quintain.config.targets import TargetConfig
from quintain.config.vendors import VENDORS
from quintain.errors import ConfigError
from quintain.programs.program import (
    Program,
    check_rights,
    program_environment,
    script_path,
    start_problem,
    withheld_variables,
)
from quintain.runtime.lazy_module import LazyModule
from quintain_worker.providers.provider import Provider, ProviderContext

if TYPE_CHECKING:
    from quintain_worker.providers import python_callable
    from quintain_worker.providers.agents import program as agent_program
else:
    agent_program = LazyModule("quintain_worker.providers.agents.program")
    python_callable = LazyModule("quintain_worker.providers.python_callable")

ProviderFactory = Callable[[str, TargetConfig, ProviderContext], Provider]

#: Provider kind → its factory as ``module:function``. Imported on demand, because a kind's extra may not be installed.
_FACTORIES = {
    "agent": "quintain_worker.providers.agents.program:agent_provider",
    "anthropic": "quintain_worker.providers.model_api:model_provider",
    "command": "quintain_worker.providers.agents.command:command_provider",
    "http": "quintain_worker.providers.agents.http_endpoint:http_provider",
    "mock": "quintain_worker.providers.mock:mock_provider",
    **dict.fromkeys(VENDORS, "quintain_worker.providers.model_api:model_provider"),
    "pydantic-ai": "quintain_worker.providers.pydantic_ai:pydantic_ai_provider",
    "python": "quintain_worker.providers.python_callable:python_provider",
    "target": "quintain_worker.providers.agents.remote_target:remote_target_provider",
}

#: The kinds that need an extra of the same name.
PROVIDERS_WITH_EXTRA = frozenset({"pydantic-ai"})


def build_provider(name: str, target: TargetConfig, context: ProviderContext) -> Provider:
    """Create the provider of a resolved target.

    Raises `ConfigError` where its extra is missing or its configuration is wrong.
    """
    return load_provider_factory(name, target)(name, target, context)


def load_provider_factory(name: str, target: TargetConfig) -> ProviderFactory:
    """Import the function that creates the provider of a target.

    Raises `ConfigError` if the extra of its provider kind is not installed.
    """
    module, _, function = _FACTORIES[target.provider].partition(":")
    try:
        return cast("ProviderFactory", getattr(importlib.import_module(module), function))
    except ImportError as error:
        if target.provider not in PROVIDERS_WITH_EXTRA:
            raise
        hint = f"pip install 'quintain[{target.provider}]'"
        raise ConfigError(f"targets.{name}: provider {target.provider} needs: {hint}") from error


def check_provider(name: str, target: TargetConfig, context: ProviderContext, *, is_started: bool = False) -> list[str]:
    """Check that the provider of a resolved target can be created.

    A function is not imported here if its target ``is_started`` next, which imports it and says the same. Returns a
    warning where a function takes its request for text. Raises `ConfigError` if its extra is not installed, or if the
    function of a python target cannot be imported or cannot take a request.
    """
    if isinstance(target, PythonTarget):
        return [] if is_started else python_callable.check_function(name, target, context)
    load_provider_factory(name, target)
    return []


def check_program(name: str, target: TargetConfig, context: ProviderContext, one_text: set[str]) -> list[str]:
    """Check that the program of a command target can be started, and that an agent can be imported.

    Returns a warning for each variable that its script or module reads and will not get, and one where the files of a
    program or of a Python target cannot be followed. An agent that is given one text, and sees no earlier turn, is
    added to ``one_text``. Raises `ConfigError`.
    """
    if isinstance(target, PythonTarget):
        imports = module_digests(target.callable, context.folder)[1]
        module = context.folder / f"{target.callable.partition(':')[0].replace('.', '/')}.py"
        env = program_environment(context.env, env_from=target.env_from, own=target.env)
        return [
            *unseen_warnings(f"targets.{name}", imports, target.depends_on),
            *_withheld(name, module, env, context),
        ]
    if isinstance(target, AgentTarget):
        if not agent_program.check_agent(name, target, context):
            one_text.add(name)
        imports = module_digests(target.agent, context.folder / (target.cwd or "."))[1]
        return unseen_warnings(f"targets.{name}", imports, target.depends_on)
    if not isinstance(target, CommandTarget):
        return []
    argv = [word for word in target.command if not any(f"{{{placeholder}}}" in word for placeholder in PLACEHOLDERS)]
    if argv[:1] != target.command[:1]:
        return []
    cwd = context.folder / (target.cwd or ".")
    env = program_environment(context.env, env_from=target.env_from, own=target.env)
    program = Program(
        argv=argv, env=env, cwd=cwd, confinement=agent_program.program_confinement(target, context.folder)
    )
    problem = start_problem(program)
    if problem is not None:
        raise ConfigError(f"targets.{name}: {problem}")
    try:
        check_rights(program)
    except ConfigError as error:
        raise ConfigError(f"targets.{name}: {error.message}") from None
    return [
        *unseen_warnings(f"targets.{name}", command_imports(target.command, cwd, env), target.depends_on),
        *_withheld(name, script_path(program), env, context),
    ]


def _withheld(name: str, script: Path | None, env: Mapping[str, str], context: ProviderContext) -> list[str]:
    variables = [] if script is None else withheld_variables(script, env, context.env)
    return [f"targets.{name}: {script} reads {each}, which it will not get; list it in env_from" for each in variables]
