"""``quintain serve host``: leases instances of a target under test to controllers, until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from quintain.contracts.discovery import ServiceCard
from quintain.contracts.strings import TARGET_NAME_PATTERN
from quintain.discovery.announce import ServiceIdentity, announce
from quintain.errors import ConfigError
from quintain.observability.ops_server import OpsEndpoints
from quintain.settings import Settings, environment, read_settings
from quintain_cli.commands.serve import AsJson, Verbose, print_ready
from quintain_cli.console import run_command, set_up_logging
from quintain_cli.fleet.ops_options import (
    OpsHost,
    OpsOptions,
    OpsPort,
    connect_when_available,
    open_ops_endpoints,
    print_waiting,
)
from quintain_cli.signals import StopSignal, handle_stop_signals
from quintain_host import (
    BOOT_SECONDS,
    PARENT_FD_OPTION,
    PROCESS_ID_OPTION,
    READY,
    SUPERVISOR_OPTION,
    Host,
    HostCounters,
    HostMetrics,
    InstanceFactory,
    IpcWriter,
    ProcessSupervisor,
    SlotProcesses,
    Supervision,
    factory_fingerprint,
    host_card,
    load_factory,
    probe_factory,
    slot_environment,
    wait_parent_exit,
)

#: The exit code of a process in which a thread of the target does not end.
STUCK_EXIT_CODE = 70


class Isolation(StrEnum):
    """Where the instance of a slot runs: in a process of its own, or in a thread of this process."""

    PROCESS = "process"
    THREAD = "thread"


def parse_target_name(text: str) -> str:
    """Check and return a target's name. Raises `typer.BadParameter`."""
    if not re.fullmatch(TARGET_NAME_PATTERN, text):
        raise typer.BadParameter(
            "a name has letters, digits, '.', '_' and '-', 63 at most, and begins with one of the first two"
        )
    return text


def serve_host(
    factory: Annotated[str, typer.Argument(help="The class or function that creates the target, as module:name.")],
    name: Annotated[str, typer.Option(help="The name under which the target is leased.", parser=parse_target_name)],
    slots: Annotated[
        int, typer.Option(min=1, max=1000, help="The number of instances that can be leased concurrently.")
    ] = 1,
    isolation: Annotated[
        Isolation | None,
        typer.Option(help="Where instances run; by default in processes if there are several slots."),
    ] = None,
    grace_seconds: Annotated[float, typer.Option(help="Seconds that leases may last after SIGTERM.")] = 30.0,
    boot_timeout_seconds: Annotated[
        float, typer.Option(min=0.001, help="Seconds that the factory may take to create an instance.")
    ] = BOOT_SECONDS,
    env_from: Annotated[
        list[str] | None,
        typer.Option(help="A variable of this environment that the slots' processes get too; --isolation process."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="A variable of the slots' processes, as NAME=VALUE; --isolation process."),
    ] = None,
    depends_on: Annotated[
        list[str] | None,
        typer.Option(help="A file that the factory imports or reads; its bytes are a part of the target's version."),
    ] = None,
    ops_port: OpsPort = None,
    ops_host: OpsHost = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
    parent_fd: Annotated[int | None, typer.Option(PARENT_FD_OPTION, hidden=True)] = None,
    supervisor_key: Annotated[str, typer.Option(SUPERVISOR_OPTION, hidden=True)] = "",
    process_id: Annotated[str, typer.Option(PROCESS_ID_OPTION, hidden=True)] = "",
) -> None:
    """Run a host that leases out a target under test. Controllers lease its instances over the broker.

    Reads QUINTAIN_BROKER_URL.
    """
    set_up_logging(verbose=verbose)
    host_options = HostOptions(
        factory_reference=factory,
        name=name,
        slots=slots,
        isolation=isolation,
        grace_seconds=grace_seconds,
        boot_seconds=boot_timeout_seconds,
        env_from=tuple(env_from or ()),
        env=tuple(env or ()),
        depends_on=tuple(depends_on or ()),
    )
    if parent_fd is not None:
        supervision = Supervision(supervisor_key, process_id)
        is_stuck = run_command(_run_slot(host_options, parent_fd, supervision), service="host")
    else:
        ops_options = OpsOptions(ops_port, ops_host)
        is_stuck = run_command(_run_host(host_options, ops_options, as_json=as_json), as_json=as_json, service="host")
    if is_stuck:
        # A thread of the target that never ends would keep this process from exiting.
        logging.shutdown()
        os._exit(STUCK_EXIT_CODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """The command line options of a host."""

    factory_reference: str
    name: str
    slots: int
    isolation: Isolation | None
    grace_seconds: float
    boot_seconds: float
    env_from: tuple[str, ...]
    env: tuple[str, ...]
    depends_on: tuple[str, ...]

    def load_factory(self) -> tuple[InstanceFactory, str]:
        """Import the factory, and read its fingerprint. Raises `ConfigError`."""
        factory = load_factory(self.factory_reference, Path.cwd())
        return factory, factory_fingerprint(self.factory_reference, Path.cwd(), self.depends_on)

    def choose_isolation(self, factory: InstanceFactory) -> Isolation:
        """Return where instances run; variables are for processes. Raises `ConfigError`."""
        has_variables = bool(self.env_from or self.env)
        if self.isolation is Isolation.THREAD and has_variables:
            raise ConfigError("--env and --env-from are for --isolation process: a thread has this environment")
        if has_variables:
            return Isolation.PROCESS
        return self.isolation or default_isolation(factory, self.slots)

    def slot_environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the slots' processes. Raises `ConfigError`."""
        pairs = [text.partition("=") for text in self.env]
        if unnamed := [name for name, separator, _ in pairs if not name or not separator]:
            raise ConfigError(f"--env: {unnamed[0]!r} has no value: write it as NAME=VALUE")
        return slot_environment(env, self.env_from, {name: value for name, _, value in pairs})


async def _run_host(host_options: HostOptions, ops_options: OpsOptions, *, as_json: bool) -> bool:
    """Serve until SIGTERM. Returns whether a target's thread does not end, so that the process must be killed."""
    settings = read_settings(environment())
    settings.require_broker_url()
    factory, fingerprint = host_options.load_factory()
    isolation = host_options.choose_isolation(factory)
    serve_slots = _serve_in_processes if isolation is Isolation.PROCESS else _serve_in_threads
    metrics = HostMetrics()
    async with handle_stop_signals() as stop, open_ops_endpoints(metrics, ops_options.address(settings)) as endpoints:
        await probe_factory(factory, host_options.factory_reference)
        details = {"target": host_options.name, "slots": host_options.slots, "isolation": isolation.value}

        def report_ready(extra_details: dict[str, object]) -> None:
            print_ready("host", {**details, **extra_details}, as_json=as_json)

        context = _HostContext(settings, endpoints, metrics, stop, report_ready, fingerprint)
        return await serve_slots(host_options, factory, context)


@dataclass(frozen=True, slots=True)
class _HostContext:
    """What both kinds of isolation need: ``fingerprint`` is the factory's."""

    settings: Settings
    endpoints: OpsEndpoints
    metrics: HostMetrics
    stop: StopSignal
    report_ready: Callable[[dict[str, object]], None]
    fingerprint: str


async def _serve_in_processes(host_options: HostOptions, _: InstanceFactory, context: _HostContext) -> bool:
    """Run the slots' processes, and answer for them. This process serves no lease."""
    env = host_options.slot_environment(environment())
    async with connect_when_available(context.settings, "host", context.endpoints.set_not_ready) as bus:
        supervisor, identity = ProcessSupervisor(bus), ServiceIdentity("host")
        await supervisor.open()
        slot_processes = SlotProcesses(_child_command(host_options), host_options.slots, env, supervisor)
        context.metrics.set_counters(slot_processes.counters)

        def card() -> ServiceCard:
            in_flight = slot_processes.counters.active_leases
            return host_card(identity, bus, host_options.name, slots=host_options.slots, in_flight=in_flight)

        slot_processes.start()
        try:
            async with contextlib.AsyncExitStack() as stack:
                if context.endpoints.is_serving:
                    await stack.enter_async_context(context.endpoints.report_ready(bus, slot_processes.check, card))
                await slot_processes.wait_ready()
                context.report_ready({})
                await context.stop.wait()
        finally:
            await slot_processes.stop(host_options.grace_seconds + 5)
            await supervisor.close()
    return False


async def _serve_in_threads(host_options: HostOptions, factory: InstanceFactory, context: _HostContext) -> bool:
    async with connect_when_available(context.settings, "host", context.endpoints.set_not_ready) as bus:
        host = Host(
            *(bus, host_options.name, factory, host_options.slots),
            fingerprint=context.fingerprint,
            boot_seconds=host_options.boot_seconds,
            timings=context.settings.timings,
        )
        context.metrics.set_counters(host.counters)
        await host.start()
        try:
            async with announce(bus, host.card), context.endpoints.report_ready(bus, host.check, host.card):
                context.report_ready({"hostId": host.host_id})
                await context.stop.wait()
        finally:
            await host.stop(host_options.grace_seconds)
        return host.stuck.is_set()


def _child_command(host_options: HostOptions) -> list[str]:
    arguments = (
        "serve",
        "host",
        host_options.factory_reference,
        "--name",
        host_options.name,
        "--grace-seconds",
        str(host_options.grace_seconds),
        "--boot-timeout-seconds",
        str(host_options.boot_seconds),
        *(word for file in host_options.depends_on for word in ("--depends-on", file)),
    )
    return [sys.executable, "-m", "quintain_cli", *arguments]


async def _run_slot(host_options: HostOptions, parent_fd: int, supervision: Supervision) -> bool:
    """Serve one slot in this process, as a child of `serve host`.

    Returns whether a target's thread does not end, so that the process must be killed. Ends at SIGTERM, when the
    parent process exits, or when a thread of the target does not end; the parent then starts another process.
    """
    settings = read_settings(environment())
    ipc_writer = IpcWriter(parent_fd)
    factory, fingerprint = host_options.load_factory()
    async with handle_stop_signals() as stop, connect_when_available(settings, "host", print_waiting) as bus:
        host = Host(
            *(bus, host_options.name, factory, 1, HostCounters(on_count=ipc_writer.send)),
            fingerprint=fingerprint,
            supervision=supervision,
            boot_seconds=host_options.boot_seconds,
            timings=settings.timings,
        )
        await host.start()
        ipc_writer.send(READY)
        end_tasks = [asyncio.ensure_future(end) for end in (stop.wait(), wait_parent_exit(), host.stuck.wait())]
        try:
            async with announce(bus, host.card):
                await asyncio.wait(end_tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end_task in end_tasks:
                end_task.cancel()
            await host.stop(0 if host.stuck.is_set() else host_options.grace_seconds)
        return host.stuck.is_set()


def default_isolation(factory: InstanceFactory, slots: int) -> Isolation:
    """Return the isolation if none is requested: processes if there are several slots, else a thread.

    A factory can choose threads with an attribute ``isolation`` of "thread".
    """
    if slots == 1 or getattr(factory, "isolation", None) == Isolation.THREAD.value:
        return Isolation.THREAD
    return Isolation.PROCESS
