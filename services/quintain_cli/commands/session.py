"""``quintain session``, ``info`` and ``invoke``: opens, lists, shows and closes sessions, and calls under one."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from quintain.client.client import connect
from quintain.config.loader import load_configuration
from quintain.contracts.invoke import Result, Unsupported
from quintain.contracts.message import describe_validation_error
from quintain.contracts.session import (
    DEFAULT_MAX_CALLS,
    AmendSession,
    Info,
    ListSessions,
    OpenSession,
    Priority,
    SessionList,
    SessionState,
)
from quintain.errors import ConfigError, Fault, UnknownTarget
from quintain.runtime.text_files import decode_text
from quintain.settings import environment, read_settings
from quintain_cli.console import (
    AsJson,
    MaxCostOption,
    WeightOption,
    escape_for_terminal,
    print_json,
    print_stderr,
    print_stdout,
    print_table,
    run_command,
    stdout_console,
)
from quintain_cli.run_output import print_table as print_text_table
from quintain_cli.running_fleet import ask_admin, missing_workers, print_missing
from quintain_runner.report.text_table import bill_table
from quintain_runner.results.bill import Bill, dollars, held_line, money_text


def open_session(
    default_target: Annotated[
        str | None, typer.Option(help="The target of calls that name none; by default the only configured one.")
    ] = None,
    max_calls: Annotated[int | None, typer.Option(help="The maximum number of charged calls; by default 50.")] = None,
    targets: Annotated[
        str | None, typer.Option(help="The targets it may call, comma-separated; by default all.")
    ] = None,
    expires_in: Annotated[float | None, typer.Option(help="Seconds until the session expires.")] = None,
    unsupported: Annotated[
        Unsupported | None,
        typer.Option(help="What happens to settings that a provider cannot honour; by default the call is refused."),
    ] = None,
    max_cost_usd: MaxCostOption = None,
    warn_at: Annotated[
        float | None, typer.Option(help="The part of --max-cost-usd at which an event says so, such as 0.8.")
    ] = None,
    max_body_bytes: Annotated[
        int | None,
        typer.Option(help="The size of its largest request; by default 1048576, at most 16777216."),
    ] = None,
    weight: WeightOption = None,
    priority: Annotated[
        Priority | None,
        typer.Option(
            help="Which calls go first where a provider key is fully used; by default interactive up to 50 calls, "
            "as of a person, else normal."
        ),
    ] = None,
    label: Annotated[str | None, typer.Option(help="A note that is shown with the session.")] = None,
    as_json: AsJson = False,
) -> None:
    """Open a session. Its token is shown only once."""
    try:
        request = OpenSession(
            default_target=default_target or only_target(),
            max_calls=max_calls,
            allowed_targets=None if targets is None else [name.strip() for name in targets.split(",")],
            expires_in_seconds=expires_in,
            unsupported=unsupported,
            max_cost_usd=max_cost_usd,
            warn_at=warn_at,
            max_body_bytes=max_body_bytes,
            weight=weight,
            priority=priority or default_priority(max_calls),
            label=label,
        )
    except ValidationError as error:
        raise typer.BadParameter(describe_validation_error(error)) from None
    opened = ask_admin(lambda admin: admin.open(request), as_json=as_json, over_gateway=True)
    if as_json:
        print_json(opened)
        return
    print_stdout(f"session  {opened.session_id}\ntoken    {opened.token}")
    print_stderr('next     export QUINTAIN_SESSION_TOKEN=<the token>, then `quintain invoke "a question"`')


def default_priority(max_calls: int | None) -> Priority:
    """Return the priority of a session that a person opens: the first, unless it has the budget of a program."""
    is_small = max_calls is None or max_calls <= DEFAULT_MAX_CALLS
    return Priority.INTERACTIVE if is_small else Priority.NORMAL


def list_sessions(
    state: Annotated[SessionState | None, typer.Option(help="Only sessions in this state.")] = None,
    cursor: Annotated[str | None, typer.Option(help="The cursor that the previous page printed.")] = None,
    as_json: AsJson = False,
) -> None:
    """List sessions, newest first, one page at a time."""
    request = ListSessions(state=state, cursor=cursor)
    page = ask_admin(lambda admin: admin.list(request), as_json=as_json, over_gateway=True)
    if as_json:
        print_json(page)
        return
    _print_page(page)


def show_session(session_id: str, as_json: AsJson = False) -> None:
    """Show a session and its counters."""
    info = ask_admin(lambda admin: admin.show(session_id), as_json=as_json, over_gateway=True)
    print_info(info, as_json=as_json)


def close_session(session_id: str, as_json: AsJson = False) -> None:
    """Close a session permanently. Its token becomes invalid, and its reservations are released."""
    request = AmendSession(session_id=session_id, state=SessionState.CLOSED)
    info = ask_admin(lambda admin: admin.amend(request), as_json=as_json, over_gateway=True)
    print_info(info, as_json=as_json)


def only_target() -> str:
    """Return the only target of the configuration. Raises `typer.BadParameter` if there are several or none."""
    try:
        names = list(load_configuration(read_settings(environment()), None).targets)
    except ConfigError as error:
        raise typer.BadParameter(f"name one: {error.message}", param_hint="--default-target") from None
    if len(names) != 1:
        raise typer.BadParameter(f"name one of {', '.join(names)}", param_hint="--default-target")
    return names[0]


def print_info(info: Info, *, as_json: bool) -> None:
    """Print a session as a table, or as JSON."""
    if as_json:
        print_json(info)
        return
    rows = {
        "session": info.session_id,
        "state": info.state.value,
        "default target": info.target_name,
        "calls": f"{info.call_count} of {info.max_calls}",
        "of these": f"{info.committed} committed, {info.running} running, {info.reserved} reserved, "
        f"{info.in_doubt} in doubt",
        "refunded": str(info.refunded),
        "requests": f"{info.tries:,}, of which {info.unproven_tries:,} failed or were lost, and may be billed too",
        **({} if info.cost is None else {"cost": money_text(info.cost, info.max_cost_usd)}),
        **({} if info.wrong_bounds is None else {"wrong bounds": bounds_text(info.wrong_bounds)}),
        "tokens": f"{info.token_usage.input} in, {info.token_usage.output} out",
        "share": f"weight {info.weight}, priority {info.priority}",
        "targets": ", ".join(info.available_targets) or "none registered: start `quintain serve worker`",
    }
    print_table(rows.items())
    if (held := held_line(Bill().with_info(info))) is not None:
        print_stdout(
            f"{held}\nnext     quintain ledger release {info.session_id} --billed-usd AMOUNT, beside the ledger"
        )
    if info.usage:
        print_text_table(bill_table(Bill.of(info.usage)))


def bounds_text(wrong_bounds: Mapping[str, float]) -> str:
    """Return by how much tries of targets cost more than their bounds, in words."""
    return ", ".join(f"that of {name} by {dollars(usd)}" for name, usd in wrong_bounds.items())


def _print_page(page: SessionList) -> None:
    table = Table("session", "state", "default target", "calls", "priority", "label")
    for info in page.sessions:
        calls_text = f"{info.call_count}/{info.max_calls}"
        label = Text(escape_for_terminal(info.label or ""))
        table.add_row(info.session_id, info.state.value, info.target_name, calls_text, info.priority.value, label)
    stdout_console().print(table)
    if page.cursor:
        print_stderr(f"next     quintain session list --cursor {page.cursor}")


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
    calling = _invoke(question, target, system_prompt, no_wait=no_wait)
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
    text = decode_text(sys.stdin.buffer, "standard input") if question == "-" else question
    async with connect(timeout_seconds=10.0) as client:
        info = await client.get_info()
        if (missing := missing_workers(info, [info.target_name if target is None else target])) is not None:
            if no_wait:
                raise UnknownTarget(f"Nothing was called: {missing}", available_targets=info.available_targets)
            print_missing(missing)
        try:
            return await client.invoke(text, target=target, system_prompt=system_prompt)
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
        return await client.get_info(usage=True)
