"""``quintain serve host``: lease out a target under test, until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from quintain.contracts.names import TARGET_NAME_PATTERN
from quintain.settings import environment, read_settings
from quintain_cli.screen import run_command, set_up_logging
from quintain_cli.serve import AsJson, Verbose, broker, ready
from quintain_cli.stop import stopping
from quintain_host.factory import Factory, load_factory, probe
from quintain_host.host import Host
from quintain_host.isolation import CHILD_OPTION, Children, parent_gone, say_ready

#: The exit code of a process whose target did not let go.
STUCK = 70


class Isolation(StrEnum):
    """Where a slot's instance lives: a process of its own, or a thread of this one."""

    PROCESS = "process"
    THREAD = "thread"


def name_of(text: str) -> str:
    """A target's name. Raises `typer.BadParameter`."""
    if not re.fullmatch(TARGET_NAME_PATTERN, text):
        raise typer.BadParameter(
            "a name has letters, digits, '.', '_' and '-', 63 at most, and begins with one of the first two"
        )
    return text


def serve_host(
    factory: Annotated[str, typer.Argument(help="What makes the target, as module:name: a class, or a function.")],
    name: Annotated[str, typer.Option(help="The name it is leased under.", parser=name_of)],
    slots: Annotated[int, typer.Option(min=1, max=1000, help="How many instances are leased out at a time.")] = 1,
    isolation: Annotated[
        Isolation | None,
        typer.Option(help="Where each instance lives. Else: a process of its own for more than one slot."),
    ] = None,
    grace_seconds: Annotated[float, typer.Option(help="How long leases may go on after SIGTERM.")] = 30.0,
    as_json: AsJson = False,
    verbose: Verbose = False,
    ready_fd: Annotated[int | None, typer.Option(CHILD_OPTION, hidden=True)] = None,
) -> None:
    """Lease out a target under test to controllers anywhere. Reads QUINTAIN_BROKER_URL."""
    set_up_logging(verbose=verbose)
    wish = Wish(factory, name, slots, isolation, grace_seconds)
    if ready_fd is not None:
        stuck = run_command(_slot(wish, ready_fd), service="host")
    else:
        stuck = run_command(_host(wish, as_json=as_json), as_json=as_json, service="host")
    if stuck:
        # A thread of the target's that never ends would keep this process from ending.
        logging.shutdown()
        os._exit(STUCK)


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command was asked for."""

    path: str
    name: str
    slots: int
    isolation: Isolation | None
    grace_seconds: float


async def _host(wish: Wish, *, as_json: bool) -> bool:
    """Serve until SIGTERM. Returns whether a target does not let go of this process."""
    settings = read_settings(environment())
    settings.require_broker_url()
    factory = load_factory(wish.path, Path.cwd())
    chosen = wish.isolation or isolation_for(factory, wish.slots)
    async with stopping() as stop:
        await probe(factory, wish.path)
        facts: dict[str, object] = {"target": wish.name, "slots": wish.slots, "isolation": chosen.value}
        if chosen is Isolation.PROCESS:
            children = Children(_child(wish), wish.slots)
            children.start()
            try:
                await children.ready()
                ready("host", facts, as_json=as_json)
                await stop.wait()
            finally:
                await children.stop(wish.grace_seconds + 5)
            return False
        async with broker(settings, "host") as bus:
            host = Host(bus, wish.name, factory, wish.slots)
            await host.start()
            try:
                ready("host", {**facts, "hostId": host.host_id}, as_json=as_json)
                await stop.wait()
            finally:
                await host.stop(wish.grace_seconds)
            return host.stuck.is_set()


def _child(wish: Wish) -> list[str]:
    words = ("serve", "host", wish.path, "--name", wish.name, "--grace-seconds", str(wish.grace_seconds))
    return [sys.executable, "-m", "quintain_cli", *words]


async def _slot(wish: Wish, ready_fd: int) -> bool:
    """One slot, in a process of its own, until SIGTERM, its parent's end, or a target that does not let go: then it
    ends too, and the parent starts another one."""
    settings = read_settings(environment())
    factory = load_factory(wish.path, Path.cwd())
    async with stopping() as stop, broker(settings, "host") as bus:
        host = Host(bus, wish.name, factory, 1)
        await host.start()
        say_ready(ready_fd)
        ends = [asyncio.ensure_future(each) for each in (stop.wait(), parent_gone(), host.stuck.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in ends:
                each.cancel()
            await host.stop(0 if host.stuck.is_set() else wish.grace_seconds)
        return host.stuck.is_set()


def isolation_for(factory: Factory, slots: int) -> Isolation:
    """A process for each of several slots, unless the factory says that its instances share this one: it has an
    attribute ``isolation`` of "thread"."""
    if slots == 1 or getattr(factory, "isolation", None) == Isolation.THREAD.value:
        return Isolation.THREAD
    return Isolation.PROCESS
