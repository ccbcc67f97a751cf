"""The command line: every word, and where it lives."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from quintain_cli import (
    check,
    compare,
    demo,
    dlq,
    doctor,
    drain,
    invoke,
    ledger,
    replay,
    report,
    run,
    schema,
    serve,
    serve_gateway,
    serve_host,
    session,
    snippet,
    status,
    target,
    up,
)
from quintain_cli.screen import set_up_logging

app = typer.Typer(
    name="quintain",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Call any model or agent by name, from any evaluation tool, under one budget that cannot be overspent.",
    epilog="Start with: quintain demo. Exit codes: 0 passed, 1 errors, 2 usage, 3 below the threshold, 4 budget spent.",
)

app.command("demo")(demo.demo)
app.command("check")(check.check)
app.command("run")(run.run)
app.command("report")(report.report)
app.command("compare")(compare.compare)
app.command("up")(up.up)
app.command("invoke")(invoke.invoke)
app.command("info")(invoke.info)
app.command("status")(status.status)
app.command("doctor")(doctor.doctor)
app.add_typer(target.app, name="target")
app.command("drain")(drain.drain)
app.command("snippet")(snippet.snippet)
app.add_typer(session.app, name="session")
serve.app.command("gateway")(serve_gateway.serve_gateway)
serve.app.command("host")(serve_host.serve_host)
app.add_typer(serve.app, name="serve")
app.add_typer(ledger.app, name="ledger")
dlq.app.command("replay")(replay.replay)
app.add_typer(dlq.app, name="dlq")
app.add_typer(schema.app, name="schema")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(importlib.metadata.version("quintain"))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options of every command."""
    set_up_logging(verbose=False, quiet=True)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
