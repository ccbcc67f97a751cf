"""``quintain serve host``: lease out a target under test, until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from quintain.contracts.discovery import ServiceCard
from quintain.contracts.names import TARGET_NAME_PATTERN
from quintain.operations.port import Operations
from quintain.operations.presence import Identity, present
from quintain.settings import Settings, environment, read_settings
from quintain_cli.operating import OpsHost, OpsPort, OpsWish, broker, operating, waiting
from quintain_cli.screen import run_command, set_up_logging
from quintain_cli.serve import AsJson, Verbose, ready
from quintain_cli.stop import Stop, stopping
from quintain_host import (
    CHILD_OPTION,
    READY,
    Children,
    Factory,
    Host,
    HostMetrics,
    Saying,
    Tally,
    host_card,
    load_factory,
    parent_gone,
    probe,
)

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
    ops_port: OpsPort = None,
    ops_host: OpsHost = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
    parent_fd: Annotated[int | None, typer.Option(CHILD_OPTION, hidden=True)] = None,
) -> None:
    """Lease out a target under test to controllers anywhere. Reads QUINTAIN_BROKER_URL."""
    set_up_logging(verbose=verbose)
    wish = Wish(factory, name, slots, isolation, grace_seconds)
    if parent_fd is not None:
        stuck = run_command(_slot(wish, parent_fd), service="host")
    else:
        ops = OpsWish(ops_port, ops_host)
        stuck = run_command(_host(wish, ops, as_json=as_json), as_json=as_json, service="host")
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


async def _host(wish: Wish, ops: OpsWish, *, as_json: bool) -> bool:
    """Serve until SIGTERM. Returns whether a target does not let go of this process."""
    settings = read_settings(environment())
    settings.require_broker_url()
    factory = load_factory(wish.path, Path.cwd())
    chosen = wish.isolation or isolation_for(factory, wish.slots)
    serve = _in_processes if chosen is Isolation.PROCESS else _in_threads
    metrics = HostMetrics()
    async with stopping() as stop, operating(metrics, ops.address(settings)) as operations:
        await probe(factory, wish.path)
        facts = {"target": wish.name, "slots": wish.slots, "isolation": chosen.value}

        def say(more: dict[str, object]) -> None:
            ready("host", {**facts, **more}, as_json=as_json)

        return await serve(wish, factory, _Ground(settings, operations, metrics, stop, say))


@dataclass(frozen=True, slots=True)
class _Ground:
    """What a host of either kind is served on."""

    settings: Settings
    operations: Operations
    metrics: HostMetrics
    stop: Stop
    ready: Callable[[dict[str, object]], None]


async def _in_processes(wish: Wish, _: Factory, ground: _Ground) -> bool:
    children, identity = Children(_child(wish), wish.slots, environment()), Identity("host")
    ground.metrics.read(children.tally)
    children.start()
    try:
        async with contextlib.AsyncExitStack() as stack:
            if ground.operations.heard:
                # This process carries nothing: it has a bus only to be asked whether the broker is there.
                bus = await stack.enter_async_context(broker(ground.settings, "host", ground.operations.waits))

                def card() -> ServiceCard:
                    return host_card(identity, bus, wish.name, slots=wish.slots, leased=children.tally.held)

                await stack.enter_async_context(ground.operations.running(bus, children.check, card))
            await children.ready()
            ground.ready({})
            await ground.stop.wait()
    finally:
        await children.stop(wish.grace_seconds + 5)
    return False


async def _in_threads(wish: Wish, factory: Factory, ground: _Ground) -> bool:
    async with broker(ground.settings, "host", ground.operations.waits) as bus:
        host = Host(bus, wish.name, factory, wish.slots, timings=ground.settings.timings)
        ground.metrics.read(host.tally)
        await host.start()
        try:
            async with present(bus, host.card), ground.operations.running(bus, host.check, host.card):
                ground.ready({"hostId": host.host_id})
                await ground.stop.wait()
        finally:
            await host.stop(wish.grace_seconds)
        return host.stuck.is_set()


def _child(wish: Wish) -> list[str]:
    words = ("serve", "host", wish.path, "--name", wish.name, "--grace-seconds", str(wish.grace_seconds))
    return [sys.executable, "-m", "quintain_cli", *words]


async def _slot(wish: Wish, parent_fd: int) -> bool:
    """One slot, in a process of its own, until SIGTERM, its parent's end, or a target that does not let go: then it
    ends too, and the parent starts another one."""
    settings = read_settings(environment())
    parent = Saying(parent_fd)
    factory = load_factory(wish.path, Path.cwd())
    async with stopping() as stop, broker(settings, "host", waiting) as bus:
        host = Host(bus, wish.name, factory, 1, Tally(told=parent.say), timings=settings.timings)
        await host.start()
        parent.say(READY)
        ends = [asyncio.ensure_future(each) for each in (stop.wait(), parent_gone(), host.stuck.wait())]
        try:
            async with present(bus, host.card):
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
