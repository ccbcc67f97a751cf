"""``quintain invoke`` and ``quintain info``: call a target, and show the session, with the session's token."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Annotated

import typer

from quintain.client.client import connect
from quintain.contracts.invoke import Result
from quintain.contracts.session import Info
from quintain.errors import Fault, UnknownTarget
from quintain_cli.commands.session import print_info
from quintain_cli.console import AsJson, escape_for_terminal, print_json, print_stderr, run_command
from quintain_cli.running_fleet import missing_workers, print_missing


def invoke(
    question: Annotated[str, typer.Argument(help="The question; - reads it from standard input.")],
    target: Annotated[str | None, typer.Option(help="The target; by default that of the session.")] = None,
    system_prompt: Annotated[str | None, typer.Option(help="The system prompt.")] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Refuse a target that no worker has registered.")] = False,
    as_json: AsJson = False,
) -> None:
    """Call a target and print its answer. Ctrl-C cancels the call.

    Needs QUINTAIN_SESSION_TOKEN, and QUINTAIN_BROKER_URL or QUINTAIN_GATEWAY_URL.
    """
    text = sys.stdin.read() if question == "-" else question
    calling = _invoke(text, target, system_prompt, no_wait=no_wait)
    print_result(run_command(calling, as_json=as_json), as_json=as_json)


def print_result(result: Result, *, as_json: bool) -> None:
    """Print a result: its text on standard output and its figures on standard error, or all of it as JSON."""
    if as_json:
        print_json({**json.loads(result.to_wire()), "rawText": result.raw_text})
        return
    sys.stdout.write(f"{escape_for_terminal(result.raw_text)}\n")
    usage = f", {result.token_usage.input}+{result.token_usage.output} tokens" if result.token_usage else ""
    duration_text = f"{result.duration_ms:.0f} ms"
    print_stderr(f"{result.target}  {duration_text}{usage}, call {result.call_count} of {result.max_calls}")


def info(as_json: AsJson = False) -> None:
    """Show the session, its counters and the targets it may call. Needs QUINTAIN_SESSION_TOKEN."""
    print_info(run_command(_info(), as_json=as_json), as_json=as_json)


async def _invoke(question: str, target: str | None, system_prompt: str | None, *, no_wait: bool) -> Result:
    async with connect(timeout_seconds=10.0) as client:
        info = await client.get_info()
        if (missing := missing_workers(info, [info.target_name if target is None else target])) is not None:
            if no_wait:
                raise UnknownTarget(f"Nothing was called: {missing}", available_targets=info.available_targets)
            print_missing(missing)
        try:
            return await client.invoke(question, target=target, system_prompt=system_prompt)
        except asyncio.CancelledError:
            # The client cancels the call when it closes; the ledger records whether that was in time.
            print_stderr("cancelling the call; `quintain info` shows whether it was charged")
            raise
        except Fault as fault:
            if fault.charged is None:
                print_stderr("it is unknown whether the call was charged; `quintain info` shows it")
            raise


async def _info() -> Info:
    async with connect(timeout_seconds=10.0) as client:
        return await client.get_info()
