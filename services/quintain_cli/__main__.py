"""The command line: the table of all commands, and the module of each.

A command's module is imported when the command is used. Add new commands to `COMMANDS`.
"""

from __future__ import annotations

import importlib.metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from quintain_cli.lazy_command import CommandTable, add_commands, import_object

COMMANDS: CommandTable = {
    "demo": (
        "quintain_cli.commands.demo:demo",
        "Grade a dozen cases with three targets and two graders, in this process: no key, no broker.",
    ),
    "check": (
        "quintain_cli.commands.check:check",
        "Find every mistake of an evaluation before it is run, and estimate calls, tokens and cost.",
    ),
    "run": ("quintain_cli.commands.run:run", "Run an evaluation."),
    "report": ("quintain_cli.commands.report:report", "Show a run again, and write it as JUnit, Markdown or CSV."),
    "compare": (
        "quintain_cli.commands.compare:compare",
        "Compare two runs case by case: the change, its interval, its p-value, and which cases flipped.",
    ),
    "up": ("quintain_cli.commands.up:up", "Run every service in this process."),
    "invoke": ("quintain_cli.commands.invoke:invoke", "Ask a target."),
    "info": ("quintain_cli.commands.invoke:info", "The session, its counters and the targets it may call."),
    "status": ("quintain_cli.commands.status:status", "Who is there, and who serves which target."),
    "doctor": (
        "quintain_cli.commands.doctor:doctor",
        "Look at the broker, at what is declared there, and at the ledger; change nothing.",
    ),
    "drain": (
        "quintain_cli.commands.drain:drain",
        (
            "Ask a worker to drain, as SIGTERM does: it takes no more calls, gives back what has not started, finishes "
            "what runs within its grace, and ends."
        ),
    ),
    "snippet": (
        "quintain_cli.commands.snippet:snippet",
        "Print what a tool is given to ask a target through the gateway.",
    ),
    "target pause": ("quintain_cli.commands.target:pause", "Nobody calls a target for this long."),
    "target resume": (
        "quintain_cli.commands.target:resume",
        "End a target's pause, its provider's too: a provider that still wants one says so with its next answer.",
    ),
    "session open": ("quintain_cli.commands.session:open_session", "Open a session."),
    "session list": ("quintain_cli.commands.session:list_sessions", "The sessions, newest first, a page at a time."),
    "session show": ("quintain_cli.commands.session:show_session", "One session and its counters."),
    "session close": (
        "quintain_cli.commands.session:close_session",
        "Close a session for ever: its token opens nothing any more, its reservations are given back.",
    ),
    "serve metadata": ("quintain_cli.commands.serve:serve_metadata", "Sessions, info and the ledger."),
    "serve worker": ("quintain_cli.commands.serve:serve_worker", "Serve the configured targets."),
    "serve gateway": (
        "quintain_cli.commands.serve_gateway:serve_gateway",
        "HTTP for evaluators of any kind: AgentV's API, sessions, health, metrics.",
    ),
    "serve host": (
        "quintain_cli.commands.serve_host:serve_host",
        "Lease out a target under test to controllers anywhere.",
    ),
    "ledger verify": (
        "quintain_cli.commands.ledger:verify",
        "Recompute every counter from its calls; exit 0 where the books are clean, 1 where they are not.",
    ),
    "ledger export": (
        "quintain_cli.commands.ledger:export",
        "Every call as a line of JSON on standard output: ``quintain ledger export > calls.jsonl``.",
    ),
    "dlq list": ("quintain_cli.commands.dlq:list_messages", "The kept messages, the oldest first."),
    "dlq show": ("quintain_cli.commands.dlq:show_message", "One message: its headers and its body, tokens masked."),
    "dlq drop": ("quintain_cli.commands.dlq:drop_messages", "Delete messages for ever."),
    "dlq replay": (
        "quintain_cli.commands.dlq:replay",
        "Send a message again, and drop it once its call is charged and answered.",
    ),
    "schema eval": (
        "quintain_cli.commands.schema:evaluation",
        "Print the JSON schema of an evaluation file, eval.yaml.",
    ),
    "schema config": (
        "quintain_cli.commands.schema:config",
        "Print the JSON schema of a configuration, quintain.yaml.",
    ),
    "schema asyncapi": (
        "quintain_cli.commands.schema:asyncapi",
        "Print the wire as an AsyncAPI 3 document: channels, operations, replies, messages.",
    ),
}

GROUPS = {
    "target": "Pause and resume targets for the whole fleet (takes QUINTAIN_BROKER_URL and QUINTAIN_ADMIN_TOKEN); "
    "`quintain status` shows them.",
    "session": "Open, list, show and close sessions (takes QUINTAIN_ADMIN_TOKEN).",
    "serve": "Run one service until SIGTERM.",
    "ledger": "Read the ledger of QUINTAIN_LEDGER_URL; nothing is changed.",
    "dlq": "Messages that nobody could answer, kept in quintain.poison.",
    "schema": "Print the JSON schema of a file, so that an editor completes it (# yaml-language-server: $schema=FILE), "
    "or the wire as AsyncAPI.",
}


class _RootGroup(TyperGroup):
    """``quintain`` with all its commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        add_commands(self, COMMANDS, GROUPS)


app = typer.Typer(
    name="quintain",
    cls=_RootGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Call any model or agent by name, from any evaluation tool, under one budget that cannot be overspent.",
    epilog="Start with: quintain demo. Exit codes: 0 passed, 1 errors, 2 usage, 3 below the threshold, 4 budget spent.",
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
    """Options of every command."""
    import_object("quintain_cli.console:set_up_logging")(verbose=False, quiet=True)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
