"""Commands that are imported when they are used; ``--help`` and ``--version`` import none of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

#: Commands by their words, such as ``session open``: where the function is (``module:function``), and the first
#: sentence of its docstring.
CommandTable = Mapping[str, tuple[str, str]]


def import_object(reference: str) -> Any:
    """What ``module:name`` names."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


class LazyCommand(TyperCommand):
    """A command of which only the name and one sentence are known until it is used."""

    def __init__(self, name: str, reference: str, summary: str) -> None:
        super().__init__(name, help=summary, rich_markup_mode=None)
        self._reference = reference

    def load_command(self) -> TyperCommand:
        """The command itself, made of its function's signature."""
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(self.name)(import_object(self._reference))
        command: TyperCommand = typer.main.get_command(app)  # type: ignore[assignment]
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context in which the command itself parses its words and is run."""
        return self.load_command().make_context(info_name, args, parent, **extra)


def add_commands(root: TyperGroup, commands: CommandTable, groups: Mapping[str, str]) -> None:
    """Put these commands under the root, in this order. ``groups`` has the help of each first word of two."""
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
