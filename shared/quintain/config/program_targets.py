"""The models of targets that run programs."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from quintain.config.nested_models import TargetChildSession
from quintain.config.secrets import without_references
from quintain.config.target_fields import PythonReference, TargetFields, TimeLimit, WatchedTarget
from quintain.programs.sandbox import SandboxOption

#: Placeholders in a command's arguments; each is replaced by the path of a file created for the call.
PLACEHOLDERS = ("prompt_file", "system_prompt_file", "output_file")

_PLACEHOLDER = re.compile(r"\{([a-z][a-z_]*)\}")


class ProgramTarget(TargetFields, WatchedTarget):
    """Fields of every target that is a program."""

    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the program."""
    env_from: list[str] = Field(default_factory=list)
    """Names of variables that it also gets from the worker's environment."""
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

    @property
    def max_conversations(self) -> int:
        """The most conversations at once in one worker."""
        return self.worker_concurrency or self.max_concurrency


class CommandTarget(ProgramTarget):
    """A program that is started without a shell, once per call or once per conversation."""

    provider: Literal["command"]
    protocol: Literal["jsonl"] | None = None
    """`jsonl`: a process for each conversation, which gets a line of JSON for each turn, and prints lines of JSON. If
    absent, a process for each call."""
    command: Annotated[list[str], Field(min_length=1)]
    """The program and its arguments; {prompt_file} (else stdin), {system_prompt_file}, {output_file} (else stdout)."""
    output_format: Literal["text", "json"] = "text"
    """What the answer is: text, or a JSON object with text or output, and token_usage."""

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
                if info.data.get("protocol") is not None:
                    if name in PLACEHOLDERS:
                        raise ValueError(f"with a protocol there are no files; take {{{name}}} out")
                elif name not in PLACEHOLDERS:
                    known = ", ".join(f"{{{placeholder}}}" for placeholder in PLACEHOLDERS)
                    raise ValueError(f"unknown placeholder {{{name}}}; known: {known}")
        return command

    @model_validator(mode="after")
    def _check_protocol(self) -> Self:
        if self.protocol is None:
            if self.child_session is not None:
                raise ValueError("child_session: it needs protocol: jsonl")
            return self
        if "output_format" in self.model_fields_set:
            raise ValueError("output_format: with protocol jsonl, each line says what it is; leave it out")
        return self


class AgentTarget(ProgramTarget):
    """An agent of Python ``module:name``, in processes of its own: a function, or an agent of another framework."""

    provider: Literal["agent"]
    agent: PythonReference
    """The agent as module:name, from the folder that it runs in."""
