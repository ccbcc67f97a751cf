"""Commands that are imported when they are used; ``--help`` and ``--version`` import none of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

#: Commands by name, such as ``session open``: the function (``module:function``) and the first sentence of its
#: docstring.
CommandTable = Mapping[str, tuple[str, str]]


def import_object(reference: str) -> Any:
    """Import and return the object that a reference ``module:name`` names."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


class LazyCommand(TyperCommand):
    """A command that is known by its name and summary only, until it is used."""

    def __init__(self, name: str, reference: str, summary: str) -> None:
        """Create a command for the function at ``reference`` (``module:function``). ``summary`` is shown in lists."""
        super().__init__(name, help=summary, rich_markup_mode=None)
        self._reference = reference

    def load_command(self) -> TyperCommand:
        """Import the function and return the command with its parameters."""
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(self.name)(import_object(self._reference))
        command: TyperCommand = typer.main.get_command(app)  # type: ignore[assignment]
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the arguments with the imported command; called by click when the command is used."""
        return self.load_command().make_context(info_name, args, parent, **extra)


def add_commands(root: TyperGroup, commands: CommandTable, groups: Mapping[str, str]) -> None:
    """Add all commands of a table to the root group, in its order. ``groups`` has the help of each subgroup."""
    for name, (reference, summary) in commands.items():
        group_name, _, command_name = name.partition(" ")
        group = root
        if command_name:
            if group_name not in root.commands:
                root.add_command(
                    TyperGroup(name=group_name, help=groups[group_name], no_args_is_help=True, rich_markup_mode=None)
                )
            group = root.commands[group_name]  # type: ignore[assignment]
        group.add_command(LazyCommand(command_name or group_name, reference, summary))
