"""``quintain dlq list|show|replay|drop``: the messages that nobody could answer, as an operator meets them."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import sys
from collections.abc import AsyncIterator
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from quintain.client.poison import PoisonQueue
from quintain.contracts.poison import Poisoned, PoisonList
from quintain.errors import BadRequest
from quintain.settings import environment, read_settings
from quintain_cli import body_text, compose
from quintain_cli.screen import ERRORS, err, fail, out, plain, print_json, run_command, tell

AsJson = Annotated[bool, typer.Option("--json", help="Print only the answer, as JSON.")]
PoisonId = Annotated[str, typer.Argument(metavar="ID", help="The message's id, as `quintain dlq list` shows it.")]

#: How long the broker may take to be there, in seconds.
CONNECT_SECONDS = 10.0


def list_messages(as_json: AsJson = False) -> None:
    """The kept messages, the oldest first. Looking takes nothing out."""
    listed = PoisonList(messages=run_command(_list(), as_json=as_json))
    if as_json:
        print_json(listed)
    elif not listed.messages:
        tell("quintain.poison is empty: there is no message that nobody could answer")
    else:
        out().print(_table(listed.messages))
        tell(f"next     quintain dlq show {one_line(listed.messages[0].id)}")


def show_message(poison_id: PoisonId, as_json: AsJson = False) -> None:
    """One message: its headers and its body, tokens masked."""
    message, body = run_command(found(poison_id), as_json=as_json)
    if as_json:
        print_json({**json.loads(message.to_wire()), **body_text.as_json(body)})
        return
    out().print(_facts(message))
    text = body_text.text_of(body)
    sys.stdout.write(f"\n{body_text.hex_dump(body) if text is None else plain(text)}\n")
    sys.stdout.flush()
    tell(f"next     quintain dlq replay {one_line(poison_id)}, or quintain dlq drop {one_line(poison_id)}")


def drop_messages(
    poison_ids: Annotated[list[str] | None, typer.Argument(metavar="ID…", help="Which messages.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every message that is kept now.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first; needed where nobody can be asked.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete messages for ever."""
    ids = list(dict.fromkeys(poison_ids or []))
    if every == bool(ids):
        raise typer.BadParameter("name messages, or say --all", param_hint="ID…")
    _confirm("every message that is kept" if every else f"{len(ids)} messages" if len(ids) > 1 else ids[0], yes=yes)
    dropped = run_command(drop(None if every else ids), as_json=as_json)
    unknown = [one for one in ids if one not in dropped]
    if as_json:
        print_json({"dropped": sorted(dropped), "unknown": unknown})
        raise typer.Exit(ERRORS if unknown else 0)
    out().print(f"dropped  {len(dropped)} {'message' if len(dropped) == 1 else 'messages'}", markup=False)
    if unknown:
        fail(not_there(unknown), as_json=False)
    tell("next     quintain dlq list")


async def found(poison_id: str) -> tuple[Poisoned, bytes]:
    """One message and its body. Raises `BadRequest` where there is none of this id."""
    async with poison_queue() as poison:
        message = await poison.find(poison_id)
    if message is None:
        raise not_there([poison_id])
    return message


async def drop(ids: list[str] | None) -> set[str]:
    """Delete these messages, or all; returns the ids that were there."""
    async with poison_queue() as poison:
        return await poison.drop(ids)


@contextlib.asynccontextmanager
async def poison_queue() -> AsyncIterator[PoisonQueue]:
    """The poison queue of the environment's broker. Raises `ConfigError`, `BusError`."""
    url = read_settings(environment()).require_broker_url()
    async with compose.connected(url, "dlq", None, timeout_seconds=CONNECT_SECONDS) as bus:
        yield PoisonQueue(bus)


def not_there(ids: list[str]) -> BadRequest:
    """What is said of ids that no message has."""
    named = ", ".join(repr(one) for one in ids)
    return BadRequest(f"No message {named} in quintain.poison: `quintain dlq list` shows what is there")


def one_line(text: str) -> str:
    """Anybody's text on one line of a terminal."""
    return plain(text).replace("\n", "\\n").replace("\t", "\\t")


async def _list() -> list[Poisoned]:
    async with poison_queue() as poison:
        return await poison.list()


def _confirm(what: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody can be asked here, and what is dropped is gone: say --yes", param_hint="--yes")
    # Not the library's own question, which writes to standard output, too.
    err().print(f"Delete {one_line(what)} for ever? [y/N]", markup=False, soft_wrap=True, end=" ")
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        tell("nothing was deleted")
        raise typer.Exit(ERRORS)


def _table(messages: list[Poisoned]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("id", "when", "size", "type"):
        table.add_column(name, no_wrap=name != "type", overflow="fold")
    for name in ("from", "reason"):
        table.add_column(name, overflow="fold")
    for one in messages:
        cells = (one.id, _when(one), f"{one.size_bytes} B", one.type, _origin(one), one.reason or "")
        table.add_row(*(Text(one_line(cell)) for cell in cells))
    return table


def _facts(message: Poisoned) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    facts = {
        "id": message.id,
        "when": _when(message),
        "reason": message.reason or "",
        "from": _origin(message),
        "size": f"{message.size_bytes} B",
        "type": message.type,
    }
    headers = {f"header {name}": str(value) for name, value in sorted(message.headers.items())}
    for name, value in (facts | headers).items():
        table.add_row(Text(one_line(name)), Text(one_line(value)))
    return table


def _origin(message: Poisoned) -> str:
    return f"{message.exchange or '?'} / {message.routing_key or '(no routing key)'}"


def _when(message: Poisoned) -> str:
    """When it was kept, to the second, in UTC; a moment outside the calendar is none."""
    if message.kept_ms is None:
        return "?"
    try:
        moment = dt.datetime.fromtimestamp(message.kept_ms / 1000, tz=dt.UTC)
    except (ValueError, OverflowError, OSError):
        return "?"
    return f"{moment:%Y-%m-%d %H:%M:%S}Z"
