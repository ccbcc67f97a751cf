"""``quintain dlq list|show|replay|drop``: the messages in ``quintain.poison`` that no service could process."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import sys
from collections.abc import AsyncIterator
from typing import Annotated

import typer

from quintain.bus.connect import open_bus
from quintain.client.client import connect
from quintain.contracts.invoke import InvokeRequest, Result
from quintain.dlq import PoisonMessage, PoisonMessageList, PoisonQueue
from quintain.errors import BadRequest, ConfigError, Expired, Fault
from quintain.settings import environment, read_settings
from quintain_cli import console
from quintain_cli.commands.session import print_result
from quintain_cli.console import (
    EXIT_ERRORS,
    AsJson,
    escape_for_terminal,
    exit_with_error,
    print_json,
    print_stderr,
    print_stdout,
    print_table,
    run_command,
    single_line,
    stderr_console,
)

PoisonIdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The message's id, as `quintain dlq list` shows it.")
]

#: The timeout for connecting to the broker, in seconds.
CONNECT_TIMEOUT_SECONDS = 10.0


def list_messages(
    limit: Annotated[int | None, typer.Option(min=1, help="List at most so many, those kept first.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the kept messages, oldest first. Listing does not remove any."""
    message_list = PoisonMessageList(messages=run_command(_list_messages(limit), as_json=as_json))
    if as_json:
        print_json(message_list)
    elif not message_list.messages:
        print_stderr("quintain.poison is empty: there are no messages that could not be processed")
    else:
        listed = [_fields(message) for message in message_list.messages]
        print_table((list(fields.values()) for fields in listed), list(listed[0]))
        print_stderr(f"next     quintain dlq show {single_line(message_list.messages[0].id)}")


def show_message(poison_id: PoisonIdArgument, as_json: AsJson = False) -> None:
    """Show one message: its headers and its body, with tokens masked."""
    message, body = run_command(find_message(poison_id), as_json=as_json)
    if as_json:
        print_json({**json.loads(message.to_wire()), **console.body_to_json(body)})
        return
    headers = {f"header {name}": str(value) for name, value in sorted(message.headers.items())}
    print_table((_fields(message) | headers).items())
    text = console.body_to_text(body)
    sys.stdout.write(f"\n{'The body is not UTF-8: --json has it' if text is None else escape_for_terminal(text)}\n")
    sys.stdout.flush()
    print_stderr(
        f"next     quintain dlq replay {single_line(poison_id)}, or quintain dlq drop {single_line(poison_id)}"
    )


def drop_messages(
    poison_ids: Annotated[list[str] | None, typer.Argument(metavar="ID…", help="The ids of the messages.")] = None,
    all_messages: Annotated[bool, typer.Option("--all", help="All messages that are kept now.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask for confirmation; required without a terminal.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete messages permanently.

    Exit codes: 0 deleted, 1 an id is unknown or the deletion was not confirmed, 2 usage.
    """
    ids = list(dict.fromkeys(poison_ids or []))
    if all_messages == bool(ids):
        raise typer.BadParameter("give the ids of messages, or --all", param_hint="ID…")
    _confirm_deletion(
        "every message that is kept" if all_messages else f"{len(ids)} messages" if len(ids) > 1 else ids[0], yes=yes
    )
    dropped = run_command(drop_by_id(None if all_messages else ids), as_json=as_json)
    unknown = [message_id for message_id in ids if message_id not in dropped]
    if as_json:
        print_json({"dropped": sorted(dropped), "unknown": unknown})
        raise typer.Exit(EXIT_ERRORS if unknown else 0)
    print_stdout(f"dropped  {len(dropped)} {'message' if len(dropped) == 1 else 'messages'}")
    if unknown:
        exit_with_error(unknown_ids_error(unknown), as_json=False)
    print_stderr("next     quintain dlq list")


async def find_message(poison_id: str) -> tuple[PoisonMessage, bytes]:
    """Return a message and its body. Raises `BadRequest` if there is none with this id."""
    async with open_poison_queue() as poison:
        message = await poison.find(poison_id)
    if message is None:
        raise unknown_ids_error([poison_id])
    return message


async def drop_by_id(ids: list[str] | None) -> set[str]:
    """Delete the messages with these ids, or all if ``ids`` is None; returns the ids that were found."""
    async with open_poison_queue() as poison:
        return await poison.drop(ids)


@contextlib.asynccontextmanager
async def open_poison_queue() -> AsyncIterator[PoisonQueue]:
    """Open the queue of kept messages at the environment's broker. Raises `ConfigError` or `BusError`."""
    url = read_settings(environment()).require_broker_url()
    async with open_bus(url, "dlq", timeout_seconds=CONNECT_TIMEOUT_SECONDS) as bus:
        yield PoisonQueue(bus)


def unknown_ids_error(ids: list[str]) -> BadRequest:
    """Return the error for ids that no message has."""
    id_list = ", ".join(repr(message_id) for message_id in ids)
    return BadRequest(f"No message {id_list} in quintain.poison: `quintain dlq list` shows what is there")


async def _list_messages(limit: int | None) -> list[PoisonMessage]:
    async with open_poison_queue() as poison:
        return await poison.list(limit)


def _confirm_deletion(description: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            "standard input is not a terminal, so the deletion cannot be confirmed: give --yes", param_hint="--yes"
        )
    # Not `typer.confirm`, which also writes to standard output.
    stderr_console().print(
        f"Delete {single_line(description)} permanently? [y/N]", markup=False, soft_wrap=True, end=" "
    )
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        print_stderr("nothing was deleted")
        raise typer.Exit(EXIT_ERRORS)


def _fields(message: PoisonMessage) -> dict[str, str]:
    return {
        "id": message.id,
        "when": _format_time(message),
        "size": f"{message.size_bytes} B",
        "type": message.type,
        "from": _format_origin(message),
        "reason": message.reason or "",
    }


def _format_origin(message: PoisonMessage) -> str:
    return f"{message.exchange or '?'} / {message.routing_key or '(no routing key)'}"


def _format_time(message: PoisonMessage) -> str:
    """Format when a message was kept, in UTC; ``?`` if that is unknown or outside the calendar."""
    if message.kept_ms is None:
        return "?"
    try:
        dead_lettered_at = dt.datetime.fromtimestamp(message.kept_ms / 1000, tz=dt.UTC)
    except (ValueError, OverflowError, OSError):
        return "?"
    return f"{dead_lettered_at:%Y-%m-%d %H:%M:%S}Z"


def replay(
    poison_id: PoisonIdArgument,
    target: Annotated[str | None, typer.Option(help="The target; by default the one it was sent to.")] = None,
    as_json: AsJson = False,
) -> None:
    """Send a message again, and delete it once it is answered.

    The message is deleted when its call is charged and has ended. Needs QUINTAIN_SESSION_TOKEN, because the message's
    own token is masked. Replaying a message twice in one session makes one call.
    """
    outcome = run_command(_replay_message(poison_id, target), as_json=as_json)
    # The answer is printed before the message is deleted, because it was charged.
    if isinstance(outcome, Result):
        print_result(outcome, as_json=as_json)
    run_command(drop_by_id([poison_id]))
    if not as_json:
        print_stderr(f"dropped  {single_line(poison_id)}: it is answered\nnext     quintain dlq list")
    if isinstance(outcome, Fault):
        exit_with_error(outcome, as_json=as_json)


async def _replay_message(poison_id: str, target: str | None) -> Result | Fault:
    """Return the result of the call, or the fault of one that was charged and has ended."""
    if read_settings(environment()).session_token is None:
        raise ConfigError(
            "QUINTAIN_SESSION_TOKEN is not set: the message's own token is masked, so the message is sent in a session "
            "of yours: open one with `quintain session open --default-target NAME`"
        )
    async with connect(timeout_seconds=CONNECT_TIMEOUT_SECONDS) as client:
        message, body = await find_message(poison_id)
        request = replay_request(message, body, target)
        # The same message to the same target under the same session is the same call: charged once.
        request_id = f"dlq-{message.id[:32]}-{(request.requested_target or '')[:63]}"
        try:
            return await client.send(request, request_id=request_id)
        except Expired:
            raise  # no reply in time: the same request id may still get the answer
        except Fault as fault:
            if not fault.charged:
                raise
            return fault


def replay_request(message: PoisonMessage, body: bytes, target: str | None) -> InvokeRequest:
    """Return the request of a kept message, to ``target``, else to that of its routing key, else to that of its body.

    Raises `BadRequest` if the body is not an invoke request, or if routing key and body name different targets.
    """
    hint = f"it is kept; `quintain dlq drop {message.id}` deletes it"
    try:
        request = InvokeRequest.from_wire(body)
    except BadRequest as error:
        raise BadRequest(f"This message is not an invoke request ({error.message}): {hint}") from None
    routing_key = message.routing_key
    if target is None and routing_key and request.requested_target not in {None, routing_key}:
        raise BadRequest(
            f"The body names target {request.requested_target!r}, the routing key {routing_key!r}: choose one "
            f"with --target; {hint}"
        )
    target_name = target or routing_key or request.requested_target
    return request.model_copy(update={"target": target_name, "provider": None})
