"""``quintain snippet TOOL``: prints the configuration with which another tool calls a target through the gateway.

The token appears only in environment variables. Files and commands do not contain it, so they can be saved and shared.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated

import typer

from quintain.client.client import connect
from quintain.contracts.session import Info
from quintain.errors import ConfigError, UnknownTarget
from quintain.settings import environment, read_settings
from quintain_cli.console import AsJson, print_json, print_stderr, run_command


class SnippetTool(StrEnum):
    """The tools for which there is a snippet."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    INSPECT = "inspect"
    PROMPTFOO = "promptfoo"
    GARAK = "garak"
    LM_EVAL = "lm-eval"
    DEEPEVAL = "deepeval"
    AGENTV = "agentv"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConnection:
    """The gateway's URL without a trailing slash, the session's token, and the target to call."""

    url: str
    token: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """The configuration of a tool: environment variables, the ``text`` of a file or program, and a command to run.

    ``file`` is the name of the file, or the language of the program.
    """

    variables: Mapping[str, str]
    file: str | None = None
    text: str | None = None
    command: str | None = None
    note: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the parts as a JSON object; absent parts are left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def to_text(self) -> str:
        """Return the parts as text to paste, with comments between them."""
        parts = ["# in your shell", *(f"export {name}={shlex.quote(value)}" for name, value in self.variables.items())]
        if self.text is not None:
            parts += [f"# in {self.file}", self.text]
        if self.command is not None:
            parts += ["# then", self.command]
        if self.note is not None:
            parts += [f"# {self.note}"]
        return "\n".join(parts)


def _openai(connection: GatewayConnection) -> Snippet:
    return Snippet(
        variables={"OPENAI_BASE_URL": f"{connection.url}/v1", "OPENAI_API_KEY": connection.token},
        file="Python",
        text=(
            "client = openai.OpenAI()\n"
            f'client.chat.completions.create(model="{connection.target}", '
            'messages=[{"role": "user", "content": "Hello?"}])'
        ),
    )


def _anthropic(connection: GatewayConnection) -> Snippet:
    return Snippet(
        variables={"ANTHROPIC_BASE_URL": connection.url, "ANTHROPIC_API_KEY": connection.token},
        file="Python",
        text=(
            "client = anthropic.Anthropic()\n"
            f'client.messages.create(model="{connection.target}", max_tokens=1024, '
            'messages=[{"role": "user", "content": "Hello?"}])'
        ),
    )


def _inspect(connection: GatewayConnection) -> Snippet:
    # `quintain` in the model's name is the prefix of the variables; `openai/…` would use features of OpenAI's models.
    return Snippet(
        variables={"QUINTAIN_BASE_URL": f"{connection.url}/v1", "QUINTAIN_API_KEY": connection.token},
        command=f"inspect eval task.py --model openai-api/quintain/{connection.target}",
    )


def _promptfoo(connection: GatewayConnection) -> Snippet:
    # Its provider for OpenRouter's API reads the cost of an answer; that for OpenAI's knows only OpenAI's prices.
    return Snippet(
        variables={"OPENAI_API_KEY": connection.token},
        file="promptfooconfig.yaml",
        text=(
            "providers:\n"
            f"  - id: openrouter:{connection.target}\n"
            "    config:\n"
            f"      apiBaseUrl: {json.dumps(f'{connection.url}/v1')}\n"
            "      apiKeyEnvar: OPENAI_API_KEY"
        ),
        command="npx promptfoo@latest eval",
    )


def _garak(connection: GatewayConnection) -> Snippet:
    return Snippet(
        variables={"OPENAICOMPATIBLE_API_KEY": connection.token},
        file="generator.json",
        text=json.dumps({"openai": {"OpenAICompatible": {"uri": f"{connection.url}/v1/"}}}),
        command=(
            f"python -m garak --target_type openai.OpenAICompatible --target_name {connection.target} "
            "--generator_option_file generator.json"
        ),
    )


def _lm_eval(connection: GatewayConnection) -> Snippet:
    model_args = f"model={connection.target},base_url={connection.url}/v1/chat/completions,num_concurrent=16"
    return Snippet(
        variables={"OPENAI_API_KEY": connection.token},
        command=(
            "lm_eval --model local-chat-completions --apply_chat_template --tasks gsm8k "
            f"--model_args {shlex.quote(model_args)}"
        ),
        note=(
            "a chat API has no log-likelihoods; tasks that need them run with --model local-completions, a tokenizer, "
            f"base_url={connection.url}/v1/completions and a target whose provider has that endpoint. It sends a seed "
            "to every target: where a provider has none, open the session with `--unsupported ignore`."
        ),
    )


def _deepeval(connection: GatewayConnection) -> Snippet:
    return Snippet(
        variables={
            "USE_LOCAL_MODEL": "1",
            "LOCAL_MODEL_NAME": connection.target,
            "LOCAL_MODEL_BASE_URL": f"{connection.url}/v1",
            "LOCAL_MODEL_API_KEY": connection.token,
        },
        command="deepeval test run test_it.py",
    )


def _agentv(connection: GatewayConnection) -> Snippet:
    # Both the old and the new names: AgentV renamed targets to providers in July 2026.
    return Snippet(
        variables={
            "AGENTV_TARGET_PROXY_URL": connection.url,
            "AGENTV_TARGET_PROXY_TOKEN": connection.token,
            "AGENTV_PROVIDER_PROXY_URL": connection.url,
            "AGENTV_PROVIDER_PROXY_TOKEN": connection.token,
        },
        command="agentv eval evals/it.eval.yaml",
        note="a code grader inherits them; a `target:` block of its own would replace them by AgentV's proxy.",
    )


SNIPPETS: Mapping[SnippetTool, Callable[[GatewayConnection], Snippet]] = {
    SnippetTool.OPENAI: _openai,
    SnippetTool.ANTHROPIC: _anthropic,
    SnippetTool.INSPECT: _inspect,
    SnippetTool.PROMPTFOO: _promptfoo,
    SnippetTool.GARAK: _garak,
    SnippetTool.LM_EVAL: _lm_eval,
    SnippetTool.DEEPEVAL: _deepeval,
    SnippetTool.AGENTV: _agentv,
}


_CONNECT_TIMEOUT_SECONDS = 10.0


def snippet(
    tool: Annotated[SnippetTool, typer.Argument(help="The tool.")],
    target: Annotated[str | None, typer.Option(help="The target to call; by default that of the session.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print how to set up another tool to call a target over HTTP.

    Prints environment variables, the text of a file or program, and a command. Needs QUINTAIN_GATEWAY_URL and
    QUINTAIN_SESSION_TOKEN; the output contains the token.
    """
    connection, info = run_command(_find_connection(target), as_json=as_json)
    tool_snippet = SNIPPETS[tool](connection)
    if as_json:
        print_json({"tool": tool.value, "target": connection.target, **tool_snippet.to_dict()})
        return
    sys.stdout.write(f"{tool_snippet.to_text()}\n")
    remaining_calls = max(0, info.max_calls - info.call_count)
    print_stderr(
        f"note   it contains the session's token, with which the remaining {remaining_calls} calls can be spent"
    )


async def _find_connection(target: str | None) -> tuple[GatewayConnection, Info]:
    """Return the gateway connection and its session, after checking the token and the target.

    Raises `ConfigError`, `UnknownTarget` or `Unauthorized`.
    """
    settings = read_settings(environment())
    url, token = settings.gateway_url, settings.session_token
    if url is None:
        raise ConfigError(
            "QUINTAIN_GATEWAY_URL is not set: other tools use HTTP, to `quintain serve gateway` or `quintain up`, "
            "such as http://127.0.0.1:8787"
        )
    async with connect(url, token, timeout_seconds=_CONNECT_TIMEOUT_SECONDS) as client:
        info = await client.get_info()
    assert token is not None, "connecting requires a token"
    target_name = target or info.target_name
    if target_name not in info.available_targets:
        available = ", ".join(info.available_targets)
        raise UnknownTarget(
            f"Unknown target '{target_name}'. Available: {available}", available_targets=info.available_targets
        )
    return GatewayConnection(url=url.rstrip("/"), token=token, target=target_name), info
