"""The page of all commands, from the parameters and docstrings of their functions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from typing import Any

import typer
import typer.main

from generate.markdown import code, from_docstring, table
from quintain_cli.__main__ import COMMANDS, LazyCommand, app


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that is no group, by its words without ``quintain``, in the order of the table of commands."""
    root: Any = typer.main.get_command(app)
    for words in COMMANDS:
        command = root
        for word in words.split():
            command = command.commands[word]
        yield words, command.load_command() if isinstance(command, LazyCommand) else command


def page() -> str:
    """Return the page."""
    head = "`quintain COMMAND --help` (or `-h`) prints the same. [Exit codes](exit-codes.md) have a page of their own."
    return f"# Commands\n\n{head}\n\n" + "".join(_section(words, command) for words, command in commands())


def _section(words: str, command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    usage = " ".join(
        ["quintain", words, *(_argument_name(one) for one in arguments), *(["[OPTIONS]"] if options else [])]
    )
    paragraphs = [from_docstring(part) for part in inspect.cleandoc(command.help or "").split("\n\n")]
    rows = [(code(_argument_name(one)), from_docstring(one.help), _default(one)) for one in arguments]
    rows += [(code(_option_name(one)), from_docstring(one.help), _default(one)) for one in options]
    parameters = table(["parameter", "meaning", "default"], rows) if rows else ""
    return f"## quintain {words}\n\n`{usage}`\n\n" + "".join(f"{text}\n\n" for text in paragraphs) + parameters


def _argument_name(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name}]"


def _option_name(option: Any) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    return names if option.is_flag else f"{names} {_value_name(option)}"


def _value_name(option: Any) -> str:
    kind = option.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(one.value) for one in kind)
    return str(option.metavar or option.name.upper())


def _default(parameter: Any) -> str:
    value = getattr(parameter.default, "value", parameter.default)
    if parameter.required:
        return "required"
    return "" if value is None or value is False or value == () or callable(value) else code(value)
