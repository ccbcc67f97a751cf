"""The variables and rights of graders' programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from quintain.programs.program import Program, script_path, withheld_variables
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.spec.graders import CommandGrader, FunctionGrader

#: Variables that make HTTP clients use a proxy, in lower case; they are also read in upper case.
_PROXY_VARIABLES: Final = frozenset({"http_proxy", "all_proxy"})


@dataclass(frozen=True, slots=True)
class GraderEnvironment:
    """Where a grader reaches its session: ``gateway_url`` is the base URL of a gateway; a trailing slash is ignored."""

    gateway_url: str

    def session_variables(self, token: str) -> dict[str, str]:
        """The environment variables through which clients find the session of this token (``protocol.md`` §6).

        They cover Quintain's own SDK, AgentV's target proxy, and the OpenAI and Anthropic SDKs.
        """
        url = self.gateway_url.rstrip("/")
        return {
            "QUINTAIN_SESSION_TOKEN": token,
            "QUINTAIN_GATEWAY_URL": url,
            "AGENTV_TARGET_PROXY_URL": url,
            "AGENTV_TARGET_PROXY_TOKEN": token,
            "AGENTV_PROVIDER_PROXY_URL": url,
            "AGENTV_PROVIDER_PROXY_TOKEN": token,
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": token,
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": token,
        }


def with_proxy_bypass(env: Mapping[str, str], grader_environment: GraderEnvironment) -> dict[str, str]:
    """A copy of ``env`` in which HTTP clients reach the gateway without a proxy.

    If a proxy variable is set, the gateway's host is appended to ``no_proxy`` and ``NO_PROXY``, because a proxy cannot
    reach this machine's loopback addresses.
    """
    host = urlsplit(grader_environment.gateway_url).hostname or ""
    if not any(name.lower() in _PROXY_VARIABLES for name in env):
        return dict(env)
    bypass = {name: ",".join(filter(None, (env.get(name), host))) for name in ("no_proxy", "NO_PROXY")}
    return {**env, **bypass}


def unconfined_programs(evaluation: Evaluation) -> list[str]:
    """The programs of an evaluation that run with the user's rights: graders, and the dataset's command."""
    names = [
        f"grader {spec.name}"
        for spec in evaluation.spec.graders
        if isinstance(spec, CommandGrader | FunctionGrader) and spec.run_as is None and spec.sandbox is None
    ]
    dataset = evaluation.spec.dataset
    if dataset.command is not None and dataset.run_as is None and dataset.sandbox is None:
        names.append("the dataset's command")
    return names


def variable_warnings(evaluation: Evaluation, env: Mapping[str, str], passed: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each variable of ``env`` that a script of the evaluation reads and does not get.

    ``passed`` are the variables that every program gets.
    """
    session = GraderEnvironment("").session_variables("")
    dataset = evaluation.spec.dataset
    scripts: list[tuple[str, Path | None, set[str]]] = []
    for index, spec in enumerate(evaluation.spec.graders):
        place = f"graders[{index}] ({spec.name})"
        if isinstance(spec, CommandGrader):
            program = Program(argv=spec.command, env={}, cwd=evaluation.folder / (spec.cwd or "."))
            scripts.append((place, script_path(program), {*spec.env, *spec.env_from}))
        elif isinstance(spec, FunctionGrader):
            module = spec.function.partition(":")[0].replace(".", "/")
            scripts.append((place, evaluation.folder / f"{module}.py", {*spec.env, *spec.env_from}))
    if dataset.command is not None:
        program = Program(argv=dataset.command, env={}, cwd=evaluation.folder)
        scripts.append(("dataset", script_path(program), {*dataset.env, *dataset.env_from}))
    for place, script, own in scripts:
        given = {*passed, *own, *(session if place != "dataset" else ())}
        for name in [] if script is None else withheld_variables(script, given, env):
            yield f"{evaluation.path}: {place}: {script} reads {name}, which it will not get; list it in env_from"
