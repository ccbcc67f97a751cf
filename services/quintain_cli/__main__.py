"""The command line: the table of all commands and the module of each.

A command's module is imported when the command is used. Add new commands to `COMMANDS`.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

#: Commands by name, such as ``session open``: the module in ``commands`` and the function.
CommandTable = Mapping[str, str]

COMMANDS: CommandTable = {
    "demo": "run:demo",
    "init": "init:init",
    "check": "check:check",
    "run": "run:run",
    "rescore": "run:rescore",
    "calibrate": "calibrate:calibrate",
    "report": "results:report",
    "view": "results:view",
    "export": "results:export",
    "compare": "results:compare",
    "cache list": "cache:list_answers",
    "cache prune": "cache:prune",
    "cache clear": "cache:clear",
    "record export": "record:export_lines",
    "record import": "record:import_lines",
    "up": "up:up",
    "invoke": "session:invoke",
    "info": "session:info",
    "status": "status:status",
    "doctor": "doctor:doctor",
    "drain": "maintenance:drain",
    "snippet": "snippet:snippet",
    "target pause": "maintenance:pause",
    "target resume": "maintenance:resume",
    "quota list": "quota:list_quotas",
    "quota show": "quota:show_quota",
    "quota set": "quota:set_quota",
    "session open": "session:open_session",
    "session list": "session:list_sessions",
    "session show": "session:show_session",
    "session close": "session:close_session",
    "serve metadata": "serve_metadata:serve_metadata",
    "serve worker": "serve_worker:serve_worker",
    "serve gateway": "serve_gateway:serve_gateway",
    "serve host": "serve_host:serve_host",
    "ledger verify": "maintenance:verify",
    "ledger export": "maintenance:export",
    "ledger prune": "maintenance:prune",
    "ledger release": "maintenance:release",
    "dlq list": "dlq:list_messages",
    "dlq show": "dlq:show_message",
    "dlq drop": "dlq:drop_messages",
    "dlq replay": "dlq:replay",
    "broker add-user": "broker:add_user",
    "broker limit": "broker:limit_user",
    "schema eval": "schema:evaluation",
    "schema config": "schema:config",
}

GROUPS = {
    "record": "Write the recording of a run as lines of JSON, or make one of them.",
    "cache": "Show what the cache of answers has, and delete from it.",
    "target": "Pause and resume targets for all workers. Needs QUINTAIN_BROKER_URL and QUINTAIN_ADMIN_TOKEN; "
    "`quintain status` shows pauses.",
    "quota": "Show and set what provider keys may use in the whole fleet. Needs QUINTAIN_BROKER_URL and "
    "QUINTAIN_ADMIN_TOKEN.",
    "session": "Open, list, show and close sessions (needs QUINTAIN_ADMIN_TOKEN).",
    "serve": "Run one service until SIGTERM.",
    "ledger": "Read the ledger of QUINTAIN_LEDGER_URL, delete old sessions of it, or release what it holds.",
    "dlq": "Show, replay and delete messages that no service could process. They are kept in quintain.poison.",
    "broker": "Add users of a broker, through its management API or as printed definitions.",
    "schema": "Print the JSON schema of a file. A schema serves for completion in an editor "
    "(# yaml-language-server: $schema=FILE).",
}


#: How many more objects may be allocated before the garbage collector runs; services set their own. By Python's own
#: number, collections took a tenth of the processor time of an import, and of a large run.
GC_THRESHOLD = 20_000


def import_object(reference: str) -> Any:
    """Import and return the object that a reference ``module:name`` names."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def summary_of(reference: str) -> str:
    """The first sentence of a command's docstring, read from its file: an import would take a second."""
    module, _, name = reference.partition(":")
    source = (Path(__file__).parent / "commands" / f"{module}.py").read_text(encoding="utf-8")
    docstring = source.partition(f"\ndef {name}(")[2].split('"""')[1]
    return f"{' '.join(docstring.split()).partition('. ')[0].removesuffix('.')}."


class LazyCommand(TyperCommand):
    """A command that is known by its name only, until it is used."""

    def __init__(self, name: str, reference: str) -> None:
        """Create a command for the function at ``reference``, as in `COMMANDS`."""
        super().__init__(name, rich_markup_mode=None)
        self._reference = reference

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return what lists of commands show."""
        self.help = summary_of(self._reference)
        return super().get_short_help_str(limit)

    def load_command(self) -> TyperCommand:
        """Import the function and return the command with its parameters."""
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        gc.set_threshold(GC_THRESHOLD)
        app.command(self.name)(import_object(f"quintain_cli.commands.{self._reference}"))
        gc.freeze()  # What is imported stays.
        command: TyperCommand = typer.main.get_command(app)  # type: ignore[assignment]
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the arguments with the imported command; called by click when the command is used."""
        return self.load_command().make_context(info_name, args, parent, **extra)


def add_commands(root: TyperGroup, commands: CommandTable, groups: Mapping[str, str]) -> None:
    """Add all commands of a table to the root group, in its order. ``groups`` has the help of each subgroup."""
    for name, reference in commands.items():
        group_name, _, command_name = name.partition(" ")
        group = root
        if command_name:
            if group_name not in root.commands:
                root.add_command(
                    TyperGroup(name=group_name, help=groups[group_name], no_args_is_help=True, rich_markup_mode=None)
                )
            group = root.commands[group_name]  # type: ignore[assignment]
        group.add_command(LazyCommand(command_name or group_name, reference))


class _RootGroup(TyperGroup):
    """The group ``quintain``, which contains all commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        add_commands(self, COMMANDS, GROUPS)


app = typer.Typer(
    name="quintain",
    cls=_RootGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Call any model or agent by name, from any evaluation tool, under one budget that cannot be overspent.",
    epilog="Start with: quintain init, then quintain run eval.yaml. "
    "Exit codes: 0 passed, 1 errors, 2 usage, 3 below the threshold, 4 budget spent, 130 Ctrl-C.",
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(importlib.metadata.version("quintain"))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Set up logging for every command; the options of ``quintain`` itself."""
    import_object("quintain_cli.console:set_up_logging")(verbose=False, quiet=True)


def main() -> None:
    """Run the command line."""
    if sys.platform == "win32":
        typer.echo("error  quintain runs on Linux and macOS; on Windows, install it in WSL", err=True)
        raise SystemExit(2)
    try:
        app()
    except Exception as error:
        if not isinstance(error, import_object("quintain.errors:QuintainError")):
            raise
        # It is of what a command reads before it runs: its settings.
        try:
            import_object("quintain_cli.console:exit_with_error")(error, as_json="--json" in sys.argv)
        except typer.Exit as ended:
            raise SystemExit(ended.exit_code) from None


if __name__ == "__main__":
    main()
