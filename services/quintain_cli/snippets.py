"""How each tool is told of a gateway: the text that its own configuration takes. Pure.

The token stands in variables alone. What goes into a file or a command names none, so that it may be kept and shared.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum


class Tool(StrEnum):
    """The tools that there is a text for."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    INSPECT = "inspect"
    PROMPTFOO = "promptfoo"
    GARAK = "garak"
    LM_EVAL = "lm-eval"
    DEEPEVAL = "deepeval"
    AGENTV = "agentv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Where a session is reached over HTTP, without a slash at the end; its token; the target to ask."""

    url: str
    token: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """What a tool is given: variables, what to put where (a file's name, or a program's language), what to run."""

    variables: Mapping[str, str]
    file: str | None = None
    text: str | None = None
    command: str | None = None
    note: str | None = None

    def facts(self) -> dict[str, object]:
        """The same for a program; what there is nothing to say about is absent."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def lines(self) -> str:
        """The whole for a person to paste, part by part; ``#`` begins a comment in each of them."""
        parts = ["# in your shell", *(f"export {name}={shlex.quote(value)}" for name, value in self.variables.items())]
        if self.text is not None:
            parts += [f"# in {self.file}", self.text]
        if self.command is not None:
            parts += ["# then", self.command]
        if self.note is not None:
            parts += [f"# {self.note}"]
        return "\n".join(parts)


def _openai(door: Door) -> Snippet:
    return Snippet(
        variables=_openai_variables(door),
        file="Python",
        text=(
            "client = openai.OpenAI()\n"
            f'client.chat.completions.create(model="{door.target}", messages=[{{"role": "user", "content": "Hello?"}}])'
        ),
    )


def _anthropic(door: Door) -> Snippet:
    return Snippet(
        variables={"ANTHROPIC_BASE_URL": door.url, "ANTHROPIC_API_KEY": door.token},
        file="Python",
        text=(
            "client = anthropic.Anthropic()\n"
            f'client.messages.create(model="{door.target}", max_tokens=1024, '
            'messages=[{"role": "user", "content": "Hello?"}])'
        ),
    )


def _inspect(door: Door) -> Snippet:
    # The middle word of the model names the variables; `openai/…` would ask for OpenAI's own models' features.
    return Snippet(
        variables={"QUINTAIN_BASE_URL": f"{door.url}/v1", "QUINTAIN_API_KEY": door.token},
        command=f"inspect eval task.py --model openai-api/quintain/{door.target}",
    )


def _promptfoo(door: Door) -> Snippet:
    return Snippet(
        variables={"OPENAI_API_KEY": door.token},
        file="promptfooconfig.yaml",
        text=(
            "providers:\n"
            f"  - id: openai:chat:{door.target}\n"
            "    config:\n"
            f"      apiBaseUrl: {json.dumps(f'{door.url}/v1')}\n"
            "      apiKeyEnvar: OPENAI_API_KEY"
        ),
        command="npx promptfoo@latest eval",
    )


def _garak(door: Door) -> Snippet:
    return Snippet(
        variables={"OPENAICOMPATIBLE_API_KEY": door.token},
        file="generator.json",
        text=json.dumps({"openai": {"OpenAICompatible": {"uri": f"{door.url}/v1/"}}}),
        command=(
            f"python -m garak --target_type openai.OpenAICompatible --target_name {door.target} "
            "--generator_option_file generator.json"
        ),
    )


def _lm_eval(door: Door) -> Snippet:
    model = f"model={door.target},base_url={door.url}/v1/chat/completions,num_concurrent=16"
    return Snippet(
        variables={"OPENAI_API_KEY": door.token},
        command=(
            "lm_eval --model local-chat-completions --apply_chat_template --tasks gsm8k "
            f"--model_args {shlex.quote(model)}"
        ),
        note="tasks that generate; a chat API has no log-likelihoods. It sends a seed, which some targets refuse.",
    )


def _deepeval(door: Door) -> Snippet:
    return Snippet(
        variables={
            "USE_LOCAL_MODEL": "1",
            "LOCAL_MODEL_NAME": door.target,
            "LOCAL_MODEL_BASE_URL": f"{door.url}/v1",
            "LOCAL_MODEL_API_KEY": door.token,
        },
        command="deepeval test run test_it.py",
    )


def _agentv(door: Door) -> Snippet:
    # Both eras' names: AgentV renamed targets to providers in July 2026.
    eras = ("TARGET", "PROVIDER")
    return Snippet(
        variables={
            name: value
            for era in eras
            for name, value in ((f"AGENTV_{era}_PROXY_URL", door.url), (f"AGENTV_{era}_PROXY_TOKEN", door.token))
        },
        command="agentv eval evals/it.eval.yaml",
        note="a code grader inherits them; its own `target:` block would name AgentV's proxy in their place.",
    )


def _openai_variables(door: Door) -> dict[str, str]:
    return {"OPENAI_BASE_URL": f"{door.url}/v1", "OPENAI_API_KEY": door.token}


SNIPPETS: Mapping[Tool, Callable[[Door], Snippet]] = {
    Tool.OPENAI: _openai,
    Tool.ANTHROPIC: _anthropic,
    Tool.INSPECT: _inspect,
    Tool.PROMPTFOO: _promptfoo,
    Tool.GARAK: _garak,
    Tool.LM_EVAL: _lm_eval,
    Tool.DEEPEVAL: _deepeval,
    Tool.AGENTV: _agentv,
}
