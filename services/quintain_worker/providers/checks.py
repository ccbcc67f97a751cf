"""Checks without a call whether the provider of a target can work on this machine."""

from __future__ import annotations

from quintain.config import CommandTarget, PythonTarget, TargetConfig
from quintain.config.targets import PLACEHOLDERS
from quintain.errors import ConfigError
from quintain.program import Program, check_rights, start_problem
from quintain.program_environment import program_environment
from quintain.program_variables import script_path, withheld_variables
from quintain_worker.providers.command import command_confinement
from quintain_worker.providers.factory import ProviderContext, build_provider, load_provider_factory


def check_provider(name: str, target: TargetConfig, context: ProviderContext) -> None:
    """Check that the provider of a resolved target can be created.

    Raises `ConfigError` if its extra is not installed, or if the function of a python target cannot be imported.
    """
    if isinstance(target, PythonTarget):
        # This imports the function and starts nothing: threads start with the first call.
        build_provider(name, target, context)
    else:
        load_provider_factory(name, target)


def check_program(name: str, target: TargetConfig, context: ProviderContext) -> list[str]:
    """Check that the program of a command target can be started; for other targets there is nothing to check.

    Returns a warning for each variable that its script reads and will not get. Raises `ConfigError` with the reason.
    """
    if not isinstance(target, CommandTarget):
        return []
    argv = [word for word in target.command if not any(f"{{{placeholder}}}" in word for placeholder in PLACEHOLDERS)]
    if argv[:1] != target.command[:1]:
        return []
    cwd = context.folder / (target.cwd or ".")
    env = program_environment(context.env, env_from=target.env_from, own=target.env)
    program = Program(argv=argv, env=env, cwd=cwd, confinement=command_confinement(target, context.folder))
    problem = start_problem(program)
    if problem is not None:
        raise ConfigError(f"targets.{name}: {problem}")
    try:
        check_rights(program)
    except ConfigError as error:
        raise ConfigError(f"targets.{name}: {error.message}") from None
    script = script_path(program)
    withheld = [] if script is None else withheld_variables(script, env, context.env)
    return [
        f"targets.{name}: {script} reads {variable}, which it will not get; list it in env_from"
        for variable in withheld
    ]
