"""The models of targets that run programs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from quintain.config.secrets import without_references
from quintain.config.target_fields import (
    Positive,
    PythonReference,
    TargetChildSession,
    TargetFields,
    TimeLimit,
    WatchedTarget,
)
from quintain.programs.agent_urls import BASE_URL, set_by_session
from quintain.programs.sandbox import SandboxOption

#: Placeholders in a command's arguments; each is replaced by the path of a file created for the call.
PLACEHOLDERS = ("prompt_file", "system_prompt_file", "output_file")

_PLACEHOLDER = re.compile(r"\{([a-z][a-z_]*)\}")


#: The coding agents whose command lines are known.
PresetName = Literal["claude-code", "codex", "gemini", "opencode"]


#: What stands for the model in the arguments and variables of a coding agent.
_MODEL = "{model}"


class Preset(NamedTuple):
    """How a coding agent is started: its program, and the arguments before and after those of the configuration.

    With a child session it gets ``session_arguments`` and variables too, in which ``{model}`` is its first target.
    """

    program: str
    arguments: tuple[str, ...]
    last: tuple[str, ...] = ()
    session_arguments: tuple[str, ...] = ()
    session_variables: Mapping[str, str] = MappingProxyType({})


PRESETS: Mapping[PresetName, Preset] = {
    "claude-code": Preset(
        "claude",
        ("-p", "--output-format", "stream-json", "--verbose"),
        session_variables={"ANTHROPIC_MODEL": _MODEL, "ANTHROPIC_DEFAULT_HAIKU_MODEL": _MODEL},
    ),
    "codex": Preset(
        "codex",
        ("exec", "--json", "--skip-git-repo-check"),
        ("-",),
        session_arguments=(
            *("-c", 'model_provider="quintain"', "-c", 'model_providers.quintain.name="quintain"'),
            *("-c", f'model_providers.quintain.base_url="{BASE_URL}/v1"'),
            *("-c", 'model_providers.quintain.env_key="OPENAI_API_KEY"'),
            *("-c", 'model_providers.quintain.wire_api="responses"', "-c", 'web_search="disabled"'),
            *("-m", _MODEL),
        ),
    ),
    "gemini": Preset("gemini", ("--output-format", "stream-json")),
    # Without a title it asks its model for one.
    "opencode": Preset(
        "opencode",
        ("run", "--format", "json", "--title", "quintain"),
        session_variables={
            "OPENCODE_CONFIG_CONTENT": json.dumps(
                {
                    "provider": {
                        "quintain": {
                            "npm": "@ai-sdk/openai-compatible",
                            "options": {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"},
                            "models": {_MODEL: {}},
                        }
                    },
                    "model": f"quintain/{_MODEL}",
                    "small_model": f"quintain/{_MODEL}",
                }
            )
        },
    ),
}


class _StartedTarget(TargetFields):
    """Fields of every target that runs in processes of its own."""

    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the program."""
    env_from: list[str] = Field(default_factory=list)
    """Names of variables that it also gets from the worker's environment."""


class PythonTarget(_StartedTarget):
    """A Python function ``module:function``; modules next to the configuration file can be imported."""

    provider: Literal["python"]
    callable: PythonReference
    """The function as module:function; it takes an InvokeRequest, and returns text or yields chunks of it."""
    processes: Positive = 1
    """How many processes of each worker share its calls; each imports the module once."""


class ProgramTarget(_StartedTarget, WatchedTarget):
    """Fields of every target that is a program."""

    run_as: str | None = None
    """The name of the user whose rights the program has. If absent, the worker's."""
    sandbox: SandboxOption = None
    """`bwrap`, or its limits: a namespace without network and with a read-only tree."""
    cwd: str | None = None
    """The folder to run it in, relative to the configuration's folder. If absent, that folder."""
    child_session: TargetChildSession | None = None
    """The session for its own calls, opened for each call as a child of its caller's session. If absent, none."""
    conversation_idle_seconds: TimeLimit = 300
    """A conversation ends, and with it its process, when no turn has come for so long."""

    @model_validator(mode="after")
    def _check_variables(self) -> Self:
        taken = [] if self.child_session is None else set_by_session([*self.env, *self.env_from])
        if taken:
            raise ValueError(f"child_session: it sets {taken[0]}; take that out of env and env_from")
        return self

    @property
    def max_conversations(self) -> int:
        """The most conversations at once in one worker."""
        return self.worker_concurrency or self.max_concurrency


class CommandTarget(ProgramTarget):
    """A program that is started without a shell, once per call or once per conversation."""

    provider: Literal["command"]
    preset: PresetName | None = None
    """A coding agent whose command line it is: its arguments are known, and what it prints is read as steps."""
    protocol: Literal["jsonl"] | None = None
    """`jsonl`: a process for each conversation, which gets a line of JSON for each turn, and prints lines of JSON. If
    absent, a process for each call."""
    command: Annotated[list[str], Field(min_length=1)]
    """The program and its arguments; {prompt_file} (else stdin), {system_prompt_file}, {output_file} (else stdout)."""
    output_format: Literal["text", "json"] = "text"
    """What the answer is: text, or a JSON object with text or output, and token_usage."""

    @property
    def is_agent(self) -> bool:
        """Whether it prints lines of JSON, as agents do; a program without them stands for a model."""
        return self.protocol is not None or self.preset is not None

    @property
    def tells_steps(self) -> bool:
        """Whether what it prints has a place for steps."""
        return self.is_agent or self.output_format == "json"

    @property
    def takes_images(self) -> bool:
        """Whether it is told the messages as they are, and not their text."""
        return self.protocol is not None

    @property
    def command_line(self) -> list[str]:
        """The program with all its arguments."""
        if self.preset is None:
            return self.command
        preset = PRESETS[self.preset]
        arguments = [*preset.arguments]
        if self.child_session is not None:
            model = self.child_session.targets[0]
            arguments += [argument.replace(_MODEL, model) for argument in preset.session_arguments]
        return [self.command[0], *arguments, *self.command[1:], *preset.last]

    @property
    def session_variables(self) -> dict[str, str]:
        """The variables by which a coding agent finds the model that it may call."""
        if self.preset is None or self.child_session is None:
            return {}
        model, variables = self.child_session.targets[0], PRESETS[self.preset].session_variables
        return {name: value.replace(_MODEL, model) for name, value in variables.items()}

    @model_validator(mode="before")
    @classmethod
    def _take_program(cls, fields: object) -> object:
        if isinstance(fields, dict) and "command" not in fields and fields.get("preset") in PRESETS:
            return {**fields, "command": [PRESETS[fields["preset"]].program]}
        return fields

    @field_validator("command", mode="before")
    @classmethod
    def _check_is_list(cls, command: object) -> object:
        if isinstance(command, str):
            message = 'a list, not a text, as no shell reads it; write ["program", "argument"]'
            raise ValueError(message)  # noqa: TRY004 -- pydantic reports ValueErrors as mistakes
        return command

    @field_validator("command")
    @classmethod
    def _check_placeholders(cls, command: list[str], info: ValidationInfo) -> list[str]:
        if not command[0].strip():
            raise ValueError("its first item is the program, and is empty")
        for argument in command:
            for name in _PLACEHOLDER.findall(without_references(argument)):
                if info.data.get("protocol") is not None or info.data.get("preset") is not None:
                    if name in PLACEHOLDERS:
                        raise ValueError(f"a program that prints lines of JSON gets no files; take {{{name}}} out")
                elif name not in PLACEHOLDERS:
                    known = ", ".join(f"{{{placeholder}}}" for placeholder in PLACEHOLDERS)
                    raise ValueError(f"unknown placeholder {{{name}}}; known: {known}")
        return command

    @model_validator(mode="after")
    def _check_protocol(self) -> Self:
        if not self.is_agent:
            if self.child_session is not None:
                raise ValueError("child_session: it needs protocol: jsonl, or a preset")
            return self
        if self.protocol is not None and self.preset is not None:
            raise ValueError("protocol: a preset has its own; leave it out")
        if "output_format" in self.model_fields_set:
            raise ValueError("output_format: each line says what it is; leave it out")
        return self


class AgentTarget(ProgramTarget):
    """An agent of Python ``module:name``, in processes of its own: a function, or an agent of another framework."""

    provider: Literal["agent"]
    agent: PythonReference
    """The agent as module:name, from the folder that it runs in."""

    @property
    def is_agent(self) -> bool:
        """It may act."""
        return True
