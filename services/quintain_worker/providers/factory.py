"""Creates the provider of a target from its configuration, and checks without a call whether it can work here."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Callable
from typing import Any, cast

from quintain.config.fingerprint import module_digests, unseen_warnings
from quintain.config.program_targets import PLACEHOLDERS, AgentTarget, CommandTarget
from quintain.config.python_imports import command_imports, load_callable
from quintain.config.targets import PythonTarget, TargetConfig
from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ConfigError
from quintain.programs.program import (
    Program,
    check_rights,
    program_environment,
    script_path,
    start_problem,
    withheld_variables,
)
from quintain_worker.providers.agents.framework import check_agent
from quintain_worker.providers.agents.program import program_confinement
from quintain_worker.providers.provider import Provider, ProviderContext
from quintain_worker.providers.python_callable import GIVEN

ProviderFactory = Callable[[str, TargetConfig, ProviderContext], Provider]

#: Provider kind → its factory as ``module:function``. Imported on demand, because a kind's extra may not be installed.
_FACTORIES = {
    "agent": "quintain_worker.providers.agents.framework:agent_provider",
    "anthropic": "quintain_worker.providers.model_api:model_provider",
    "command": "quintain_worker.providers.agents.command:command_provider",
    "http": "quintain_worker.providers.agents.http_endpoint:http_provider",
    "mock": "quintain_worker.providers.mock:mock_provider",
    "openai": "quintain_worker.providers.model_api:model_provider",
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


def check_provider(name: str, target: TargetConfig, context: ProviderContext) -> None:
    """Check that the provider of a resolved target can be created.

    Raises `ConfigError` if its extra is not installed, or if the function of a python target cannot be imported.
    """
    if isinstance(target, PythonTarget):
        # This imports the function and starts nothing: threads start with the first call.
        build_provider(name, target, context)
    else:
        load_provider_factory(name, target)


def check_program(name: str, target: TargetConfig, context: ProviderContext, one_text: set[str]) -> list[str]:
    """Check that the program of a command target can be started, and that an agent can be imported.

    Returns a warning for each variable that its script reads and will not get, one where the files of a program or of a
    Python target cannot be followed, and one where a function takes its request for text. An agent that is given one
    text, and sees no earlier turn, is added to ``one_text``. Raises `ConfigError`.
    """
    if isinstance(target, PythonTarget):
        imports = module_digests(target.callable, context.folder)[1]
        uses = _wrong_uses(load_callable(target.callable, context.folder))
        wrong = [f"targets.{name}.callable: {target.callable}: {use}" for use in uses]
        return [*unseen_warnings(f"targets.{name}", imports, target.depends_on), *wrong]
    if isinstance(target, AgentTarget):
        if not check_agent(name, target, context):
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
    program = Program(argv=argv, env=env, cwd=cwd, confinement=program_confinement(target, context.folder))
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
        *unseen_warnings(f"targets.{name}", command_imports(target.command, cwd, env), target.depends_on),
        *(
            f"targets.{name}: {script} reads {variable}, which it will not get; list it in env_from"
            for variable in withheld
        ),
    ]


def _wrong_uses(function: Any) -> list[str]:
    """Say where the source of a function takes its request for text; empty if it does not, or has no source.

    What a function does with its request after a test with `isinstance`, or by another name, is not seen.
    """
    if not inspect.isroutine(function) and not inspect.isclass(function):
        # An object that can be called is what its method is.
        function = getattr(function, "__call__", function)  # noqa: B004 -- its method is looked at
    try:
        definition = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return []
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    arguments = [*definition.args.posonlyargs, *definition.args.args][inspect.ismethod(function) :]
    name = next((argument.arg for argument in arguments), None)
    nodes = list(ast.walk(definition))
    mentions = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
    tested = any(
        isinstance(node, ast.Call) and ast.unparse(node.func) in {"isinstance", "hasattr", "getattr"} for node in nodes
    )
    if tested or any(not isinstance(node.ctx, ast.Load) for node in mentions):
        return []
    found = [ast.unparse(node) for node in nodes if any(_takes_for_text(node, one) for one in mentions)]
    return [f"`{expression.strip().splitlines()[0]}` takes the request for text; {GIVEN}" for expression in found[:1]]


def _takes_for_text(node: ast.AST, mention: ast.Name) -> bool:
    match node:
        case ast.Attribute(value=value, attr=name):
            return value is mention and not hasattr(InvokeRequest, name) and name not in InvokeRequest.model_fields
        case ast.Subscript(value=value) | ast.FormattedValue(value=value) | ast.For(iter=value):
            return value is mention
        case ast.comprehension(iter=value):
            return value is mention
        case ast.BinOp(left=left, right=right):
            return mention in {left, right}
        case ast.Call(func=ast.Name(id="len" | "str"), args=[argument]):
            return argument is mention
    return False
