"""The command line: the table of all commands and the module of each.

A command's module is imported when the command is used. Add new commands to `COMMANDS`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

#: Commands by name, such as ``session open``: the function (``module:function``) and the first sentence of its
#: docstring.
CommandTable = Mapping[str, tuple[str, str]]

COMMANDS: CommandTable = {
    "demo": ("quintain_cli.commands.demo:demo", "Run an example evaluation, without an API key or a broker."),
    "init": ("quintain_cli.commands.init:init", "Write the files of a new evaluation, or carry one over."),
    "check": ("quintain_cli.commands.check:check", "Check an evaluation for errors, and estimate its cost."),
    "run": ("quintain_cli.commands.run:run", "Run an evaluation."),
    "rescore": ("quintain_cli.commands.rescore:rescore", "Grade the kept answers of a run again."),
    "report": (
        "quintain_cli.commands.report:report",
        "Show the results of a run, also as HTML, JUnit, Markdown or CSV.",
    ),
    "view": ("quintain_cli.commands.view:view", "Show runs in a browser, on this machine only."),
    "export": ("quintain_cli.commands.export:export", "Write the rows of a run in the format of another tool."),
    "compare": ("quintain_cli.commands.compare:compare", "Compare two runs case by case, with significance tests."),
    "up": ("quintain_cli.commands.up:up", "Run all services in this process."),
    "invoke": ("quintain_cli.commands.invoke:invoke", "Call a target and print its answer."),
    "info": ("quintain_cli.commands.invoke:info", "Show the session, its counters and the targets it may call."),
    "status": (
        "quintain_cli.commands.status:status",
        "Show the running services, the targets that they serve, and the budgets of open sessions.",
    ),
    "doctor": ("quintain_cli.commands.doctor:doctor", "Check the broker, its exchanges and queues, and the ledger."),
    "drain": ("quintain_cli.commands.drain:drain", "Ask a worker to drain and exit, as SIGTERM does."),
    "snippet": (
        "quintain_cli.commands.snippet:snippet",
        "Print how to set up another tool to call a target over HTTP.",
    ),
    "target pause": ("quintain_cli.commands.target:pause", "Pause a target for all workers for the given time."),
    "target resume": (
        "quintain_cli.commands.target:resume",
        "End a target's pause, also one that its provider requested.",
    ),
    "session open": ("quintain_cli.commands.session:open_session", "Open a session."),
    "session list": ("quintain_cli.commands.session:list_sessions", "List sessions, newest first, one page at a time."),
    "session show": ("quintain_cli.commands.session:show_session", "Show a session and its counters."),
    "session close": ("quintain_cli.commands.session:close_session", "Close a session permanently."),
    "serve metadata": (
        "quintain_cli.commands.serve:serve_metadata",
        "Run the metadata service: sessions, budgets and the ledger.",
    ),
    "serve worker": ("quintain_cli.commands.serve:serve_worker", "Run a worker that serves the configured targets."),
    "serve gateway": (
        "quintain_cli.commands.serve_gateway:serve_gateway",
        "Run the HTTP gateway: OpenAI's, Anthropic's and AgentV's APIs.",
    ),
    "serve host": ("quintain_cli.commands.serve_host:serve_host", "Run a host that leases out a target under test."),
    "ledger verify": ("quintain_cli.commands.ledger:verify", "Recompute every counter of the ledger from its calls."),
    "ledger export": ("quintain_cli.commands.ledger:export", "Write every call as a line of JSON to standard output."),
    "ledger prune": (
        "quintain_cli.commands.ledger:prune",
        "Count, or delete, old sessions that are closed or expired, with their children and calls.",
    ),
    "dlq list": ("quintain_cli.commands.dlq:list_messages", "List the kept messages, oldest first."),
    "dlq show": (
        "quintain_cli.commands.dlq:show_message",
        "Show one message: its headers and its body, with tokens masked.",
    ),
    "dlq drop": ("quintain_cli.commands.dlq:drop_messages", "Delete messages permanently."),
    "dlq replay": ("quintain_cli.commands.dlq:replay", "Send a message again, and delete it once it is answered."),
    "broker apply": (
        "quintain_cli.commands.broker:apply",
        "Set the limits of every queue that a user can declare or fill, and of each user.",
    ),
    "broker add-user": (
        "quintain_cli.commands.broker:add_user",
        "Add a user of the broker, with the permissions of its role alone; its password is printed once.",
    ),
    "broker list-users": (
        "quintain_cli.commands.broker:list_users",
        "List the users of the broker and their permissions in its virtual host.",
    ),
    "broker remove-user": (
        "quintain_cli.commands.broker:remove_user",
        "Remove a user of the broker, and close its connections.",
    ),
    "schema eval": (
        "quintain_cli.commands.schema:evaluation",
        "Print the JSON schema of an evaluation file, eval.yaml.",
    ),
    "schema config": (
        "quintain_cli.commands.schema:config",
        "Print the JSON schema of a configuration, quintain.yaml.",
    ),
    "schema asyncapi": ("quintain_cli.commands.schema:asyncapi", "Print the AsyncAPI 3 document of the protocol."),
}

GROUPS = {
    "target": "Pause and resume targets for all workers. Needs QUINTAIN_BROKER_URL and QUINTAIN_ADMIN_TOKEN; "
    "`quintain status` shows pauses.",
    "session": "Open, list, show and close sessions (needs QUINTAIN_ADMIN_TOKEN).",
    "serve": "Run one service until SIGTERM.",
    "ledger": "Read the ledger of QUINTAIN_LEDGER_URL, or delete old sessions of it.",
    "dlq": "Show, replay and delete messages that no service could process. They are kept in quintain.poison.",
    "broker": "Set the policies and users of a broker, through its management API or as printed definitions.",
    "schema": "Print the JSON schema of a file, or the AsyncAPI document. A schema serves for completion in an editor "
    "(# yaml-language-server: $schema=FILE).",
}


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
    app()


if __name__ == "__main__":
    main()
