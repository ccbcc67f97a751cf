"""``quintain serve host``: leases instances of a target under test to controllers, until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from quintain.agents.recognition import SENDS_NOTHING
from quintain.client.http_transport import check_gateway_url
from quintain.config.fingerprint import module_digests, unseen_warnings
from quintain.contracts.credentials import mask_secrets
from quintain.contracts.service_card import ServiceCard
from quintain.contracts.values import TARGET_NAME_PATTERN
from quintain.errors import ConfigError
from quintain.fleet.beats import ServiceIdentity
from quintain.observe.health import OpsEndpoints
from quintain.programs.agent_gateway import forward_agent_urls
from quintain.programs.agent_urls import NO_GATEWAY, AgentUrl, AgentUrls, set_by_session
from quintain.programs.processes import ProcessMark, adopt_orphans, reap_orphans
from quintain.programs.program import secrets_of
from quintain.rpc.broker_probe import report_ready
from quintain.settings import Settings, add_variables, environment, read_settings
from quintain_cli.console import StopSignal, handle_stop_signals, run_command, set_up_logging
from quintain_cli.service_process import (
    AsJson,
    OpsHost,
    OpsOptions,
    OpsPort,
    Verbose,
    connect_when_available,
    open_ops_endpoints,
    print_ready,
    print_waiting,
)
from quintain_host.counters import READY, HostCounters, HostMetrics, IpcWriter
from quintain_host.host import Host, Leftovers, host_card
from quintain_host.instances import InstanceFactory, factory_fingerprint, load_factory, probe_factory
from quintain_host.slot import BOOT_SECONDS
from quintain_host.supervisor import (
    PARENT_FD_OPTION,
    REPLACE_EXIT_CODE,
    SlotProcesses,
    slot_environment,
)

log = logging.getLogger(__name__)


class Isolation(StrEnum):
    """Where the instance of a slot runs: in a process of its own, or in a thread of this process."""

    PROCESS = "process"
    THREAD = "thread"


class ProcessUse(StrEnum):
    """For how long a slot's process is used: for one lease after another, or for one lease."""

    PER_SLOT = "per-slot"
    PER_LEASE = "per-lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """The command line options of a host."""

    factory_reference: str
    name: str
    slots: int
    isolation: Isolation | None
    process: ProcessUse
    grace_seconds: float
    boot_seconds: float
    env_from: tuple[str, ...]
    env: tuple[str, ...]
    depends_on: tuple[str, ...]
    gateway: str | None = None

    def load_factory(self, agent_url: AgentUrl | None) -> tuple[InstanceFactory, str]:
        """Import the factory, and read its fingerprint. Raises `ConfigError`.

        ``agent_url`` is that of the agent's calls; clients that are made at import find it in the environment.
        """
        env = {**SENDS_NOTHING, **environment()}
        add_variables(env if agent_url is None else agent_url.variables(env))
        factory = load_factory(self.factory_reference, Path.cwd(), agent_url)
        return factory, factory_fingerprint(self.factory_reference, Path.cwd(), self.depends_on)

    def unseen_imports(self) -> list[str]:
        """Say what of the factory's module is not followed, unless ``--depends-on`` names files."""
        imports = module_digests(self.factory_reference, Path.cwd())[1]
        return unseen_warnings(self.factory_reference, imports, self.depends_on, option="--depends-on")

    def choose_isolation(self, factory: InstanceFactory) -> Isolation:
        """Return where instances run; variables and a use are for processes. Raises `ConfigError`."""
        needs_process = bool(self.env_from or self.env or self.gateway) or self.process is ProcessUse.PER_LEASE
        if self.isolation is Isolation.THREAD and needs_process:
            options = "--env, --env-from, --gateway and --process per-lease"
            raise ConfigError(f"{options} are for --isolation process: a thread is in this process")
        if needs_process:
            return Isolation.PROCESS
        return self.isolation or default_isolation(factory, self.slots)

    def slot_environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the slots' processes. Raises `ConfigError`."""
        pairs = [text.partition("=") for text in self.env]
        if unnamed := [name for name, separator, _ in pairs if not name or not separator]:
            raise ConfigError(f"--env: {unnamed[0]!r} has no value: write it as NAME=VALUE")
        names = [*self.env_from, *(name for name, _, _ in pairs)]
        if self.gateway is not None and (taken := set_by_session(names)):
            raise ConfigError(f"--gateway sets {taken[0]}: take that out of --env and --env-from")
        return slot_environment(env, self.env_from, {name: value for name, _, value in pairs})


def default_isolation(factory: InstanceFactory, slots: int) -> Isolation:
    """Return the isolation if none is requested: processes if there are several slots, else a thread.

    A factory can choose threads with an attribute ``isolation`` of "thread".
    """
    if slots == 1 or getattr(factory, "isolation", None) == Isolation.THREAD.value:
        return Isolation.THREAD
    return Isolation.PROCESS


def parse_target_name(text: str) -> str:
    """Check and return a target's name. Raises `typer.BadParameter`."""
    if not re.fullmatch(TARGET_NAME_PATTERN, text):
        raise typer.BadParameter(
            "a name has letters, digits, '.', '_' and '-', 63 at most, and begins with one of the first two"
        )
    return text


Process = Annotated[
    ProcessUse, typer.Option(help="How long a slot's process is used; per-lease starts each lease in a new one.")
]
Gateway = Annotated[
    str | None,
    typer.Option(help="The gateway of the model calls of a hosted agent, which then takes a child_session."),
]
DependsOn = Annotated[
    list[str] | None,
    typer.Option(help="A file that the factory imports or reads; its bytes are a part of the target's version."),
]


def serve_host(
    factory: Annotated[str, typer.Argument(help="What creates the target, or an agent, as module:name.")],
    name: Annotated[str, typer.Option(help="The name under which the target is leased.", parser=parse_target_name)],
    slots: Annotated[
        int, typer.Option(min=1, max=1000, help="The number of instances that can be leased concurrently.")
    ] = 1,
    isolation: Annotated[
        Isolation | None,
        typer.Option(help="Where instances run; by default in processes if there are several slots."),
    ] = None,
    process: Process = ProcessUse.PER_SLOT,
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
    depends_on: DependsOn = None,
    gateway: Gateway = None,
    ops_port: OpsPort = None,
    ops_host: OpsHost = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
    parent_fd: Annotated[int | None, typer.Option(PARENT_FD_OPTION, hidden=True)] = None,
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
        process=process,
        grace_seconds=grace_seconds,
        boot_seconds=boot_timeout_seconds,
        env_from=tuple(env_from or ()),
        env=tuple(env or ()),
        depends_on=tuple(depends_on or ()),
        gateway=gateway,
    )
    if parent_fd is not None:
        must_end = run_command(_run_slot(host_options, parent_fd), service="host")
    else:
        ops_options = OpsOptions(ops_port, ops_host)
        must_end = run_command(_run_host(host_options, ops_options, as_json=as_json), as_json=as_json, service="host")
    if must_end:
        # A thread of the target that never ends would keep this process from exiting.
        logging.shutdown()
        os._exit(REPLACE_EXIT_CODE)


async def _run_host(host_options: HostOptions, ops_options: OpsOptions, *, as_json: bool) -> bool:
    """Serve until SIGTERM. Returns whether a target's thread does not end, so that the process must be killed."""
    slot_env = host_options.slot_environment(environment())  # before the factory is imported, which may change it
    try:
        return await _serve_host(host_options, ops_options, slot_env, as_json=as_json)
    except ConfigError as error:
        raise ConfigError(mask_secrets(error.message, secrets_of(slot_env))) from None


async def _serve_host(
    host_options: HostOptions, ops_options: OpsOptions, slot_env: Mapping[str, str], *, as_json: bool
) -> bool:
    settings = read_settings(environment())
    settings.require_broker_url()
    if host_options.gateway is not None:
        check_gateway_url(host_options.gateway, "--gateway")
    # Here it is only imported, and probed.
    url = None if host_options.gateway is None else AgentUrls(NO_GATEWAY).add()
    factory, fingerprint = host_options.load_factory(url)
    for unseen in host_options.unseen_imports():
        log.warning("%s", unseen)
    isolation = host_options.choose_isolation(factory)
    serve_slots = _serve_in_processes if isolation is Isolation.PROCESS else _serve_in_threads
    metrics = HostMetrics()
    async with handle_stop_signals() as stop, open_ops_endpoints(metrics, ops_options.address(settings)) as endpoints:
        await probe_factory(factory, host_options.factory_reference, host_options.boot_seconds)
        details = {"target": host_options.name, "slots": host_options.slots, "isolation": isolation.value}

        def report_ready(extra_details: dict[str, object]) -> None:
            print_ready("host", {**details, **extra_details}, as_json=as_json)

        context = _HostContext(settings, endpoints, metrics, stop, report_ready, fingerprint, slot_env)
        return await serve_slots(host_options, factory, context)


@dataclass(frozen=True, slots=True)
class _HostContext:
    """What both kinds of isolation need: ``fingerprint`` is the factory's, ``slot_env`` for processes of slots."""

    settings: Settings
    endpoints: OpsEndpoints
    metrics: HostMetrics
    stop: StopSignal
    report_ready: Callable[[dict[str, object]], None]
    fingerprint: str
    slot_env: Mapping[str, str]


async def _serve_in_processes(host_options: HostOptions, _: InstanceFactory, context: _HostContext) -> bool:
    """Run the slots' processes, and answer for them. This process serves no lease."""
    async with connect_when_available(context.settings, "host", context.endpoints.set_not_ready) as bus:
        identity, timings = ServiceIdentity("host"), context.settings.timings
        slot_processes = SlotProcesses(bus, _child_command(host_options), host_options.slots, context.slot_env, timings)
        context.metrics.set_counters(slot_processes.counters)

        def card() -> ServiceCard:
            in_flight = slot_processes.counters.active_leases
            return host_card(identity, bus, host_options.name, slots=host_options.slots, in_flight=in_flight)

        slot_processes.start()
        try:
            async with contextlib.AsyncExitStack() as stack:
                if context.endpoints.is_serving:
                    await stack.enter_async_context(report_ready(context.endpoints, bus, slot_processes.check, card))
                await slot_processes.wait_ready()
                context.report_ready({})
                await context.stop.wait()
        finally:
            await slot_processes.stop(host_options.grace_seconds + 5)
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
            async with report_ready(context.endpoints, bus, host.check, host.card):
                context.report_ready({"hostId": host.host_id})
                await context.stop.wait()
        finally:
            await host.stop(host_options.grace_seconds)
        return host.must_end.is_set()


def _child_command(host_options: HostOptions) -> list[str]:
    arguments = (
        "serve",
        "host",
        host_options.factory_reference,
        "--name",
        host_options.name,
        "--process",
        host_options.process.value,
        "--grace-seconds",
        str(host_options.grace_seconds),
        "--boot-timeout-seconds",
        str(host_options.boot_seconds),
        *(word for file in host_options.depends_on for word in ("--depends-on", file)),
        *(() if host_options.gateway is None else ("--gateway", host_options.gateway)),
    )
    return [sys.executable, "-m", "quintain_cli", *arguments]


async def _run_slot(host_options: HostOptions, parent_fd: int) -> bool:
    """Serve one slot in this process, as a child of `serve host`.

    Returns whether this process is to be replaced, and must be killed. Ends at SIGTERM, when the parent process exits,
    or to be replaced; the parent then starts another process.
    """
    ipc_writer = IpcWriter(parent_fd)
    try:
        async with _agent_url(host_options.gateway) as url, handle_stop_signals() as stop:
            factory, fingerprint = host_options.load_factory(url)
            ends = [asyncio.ensure_future(end) for end in (stop.wait(), ipc_writer.wait_parent_exit())]
            warming = asyncio.ensure_future(_warm_up(factory, host_options))
            await asyncio.wait([warming, *ends], return_when=asyncio.FIRST_COMPLETED)
            return not warming.done() or await _serve_slot(host_options, factory, fingerprint, ipc_writer, ends)
    finally:
        ProcessMark(environment(), inherited=True).kill()


@contextlib.asynccontextmanager
async def _agent_url(gateway: str | None) -> AsyncIterator[AgentUrl | None]:
    """Serve the URL of the calls of this process's agent, which go to the gateway; None if there is no gateway."""
    if gateway is None:
        yield None
        return
    async with forward_agent_urls(gateway, environment()) as urls:
        yield urls.add()


async def _serve_slot(
    host_options: HostOptions,
    factory: InstanceFactory,
    fingerprint: str,
    ipc_writer: IpcWriter,
    ends: Sequence[asyncio.Task[Any]],
) -> bool:
    """Serve one lease after another until one of ``ends`` is done or the process is to be replaced; returns whether."""
    adopt_orphans()
    settings, leftovers = read_settings(environment()), Leftovers(environment())

    async def after_lease() -> bool:
        has_left = await leftovers.end()
        reap_orphans()
        return has_left or host_options.process is ProcessUse.PER_LEASE

    async with connect_when_available(settings, "host", print_waiting) as bus:
        host = Host(
            *(bus, host_options.name, factory, 1),
            HostCounters(on_count=ipc_writer.send, on_address=ipc_writer.send_address),
            fingerprint=fingerprint,
            boot_seconds=host_options.boot_seconds,
            after_lease=after_lease,
            timings=settings.timings,
        )
        await host.start()
        ipc_writer.send(READY)
        must_end = asyncio.create_task(host.must_end.wait())
        try:
            await asyncio.wait([*ends, must_end], return_when=asyncio.FIRST_COMPLETED)
        finally:
            must_end.cancel()
            await host.stop(0 if host.must_end.is_set() else host_options.grace_seconds)
        return host.must_end.is_set()


async def _warm_up(factory: InstanceFactory, host_options: HostOptions) -> None:
    """Make one instance, so that the first lease of this process does not wait for what its factory imports."""
    try:
        await probe_factory(factory, host_options.factory_reference, host_options.boot_seconds)
    except ConfigError as error:
        # A lease raises it for its driver.
        log.warning("%s", error.message)
