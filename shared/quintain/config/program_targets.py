"""The models of targets that run programs."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from quintain.config.secrets import without_references
from quintain.config.target_fields import TargetFields, WatchedTarget
from quintain.programs.sandbox import SandboxOption

#: Placeholders in a command's arguments; each is replaced by the path of a file created for the call.
PLACEHOLDERS = ("prompt_file", "system_prompt_file", "output_file")

_PLACEHOLDER = re.compile(r"\{([a-z][a-z_]*)\}")


class CommandTarget(TargetFields, WatchedTarget):
    """A program that is started once per call, without a shell."""

    provider: Literal["command"]
    command: Annotated[list[str], Field(min_length=1)]
    """The program and its arguments; {prompt_file} (else stdin), {system_prompt_file}, {output_file} (else stdout)."""
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
    def _check_placeholders(cls, command: list[str]) -> list[str]:
        if not command[0].strip():
            raise ValueError("its first item is the program, and is empty")
        for argument in command:
            for name in _PLACEHOLDER.findall(without_references(argument)):
                if name not in PLACEHOLDERS:
                    known = ", ".join(f"{{{placeholder}}}" for placeholder in PLACEHOLDERS)
                    raise ValueError(f"unknown placeholder {{{name}}}; known: {known}")
        return command
