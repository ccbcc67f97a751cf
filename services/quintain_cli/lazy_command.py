"""Commands whose modules are imported when they are used: help and the version need none of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

#: Commands by their words, such as ``session open``: where the function is (``module:function``), and the first
#: sentence of its docstring.
Commands = Mapping[str, tuple[str, str]]


def load(where: str) -> Any:
    """What ``module:name`` names."""
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)


class LazyCommand(TyperCommand):
    """A command of which only the name and one sentence are known until it is used."""

    def __init__(self, name: str, where: str, sentence: str) -> None:
        super().__init__(name, help=sentence, rich_markup_mode=None)
        self._where = where

    def load(self) -> TyperCommand:
        """The command itself, made of its function's signature."""
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(self.name)(load(self._where))
        command: TyperCommand = typer.main.get_command(app)  # type: ignore[assignment]
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context in which the command itself parses its words and is run."""
        return self.load().make_context(info_name, args, parent, **extra)


def add_commands(root: TyperGroup, commands: Commands, groups: Mapping[str, str]) -> None:
    """Put these commands under the root, in this order. ``groups`` has the help of each first word of two."""
    for words, (where, sentence) in commands.items():
        first, _, second = words.partition(" ")
        group = root
        if second:
            if first not in root.commands:
                root.add_command(
                    TyperGroup(name=first, help=groups[first], no_args_is_help=True, rich_markup_mode=None)
                )
            group = root.commands[first]  # type: ignore[assignment]
        group.add_command(LazyCommand(second or first, where, sentence))
