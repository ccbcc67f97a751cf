"""Watches the fleet behind a broker, for `quintain status` and `quintain doctor`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping

from quintain.bus.base import Bus
from quintain.client.admin import Admin
from quintain.client.amqp_transport import AmqpTransport
from quintain.fleet.fleet_figures import LEASED_PROVIDER, FleetFigures, TargetFigures
from quintain.fleet.watch import FleetWatch
from quintain.rpc.client import RpcClient
from quintain.topology import METADATA_TOPOLOGY, POISON_QUEUE, target_queue
from quintain_cli.fleet import bootstrap

#: The queues that every metadata service consumes, each with one consumer.
CONSUMED_QUEUES = METADATA_TOPOLOGY.without(POISON_QUEUE).queues


@contextlib.asynccontextmanager
async def watch_fleet(
    bus: Bus, admin_token: str | None, *, wait_seconds: float, timeout_seconds: float
) -> AsyncIterator[FleetWatch]:
    """Watch the fleet behind this bus; the ledger is read if ``admin_token`` is given, with ``timeout_seconds``."""
    rpc_client = RpcClient(bus)
    await rpc_client.start()
    try:
        admin = None
        if admin_token is not None:
            admin = Admin(AmqpTransport(rpc_client, admin_token), timeout_seconds=timeout_seconds)
        async with FleetWatch(bus, rpc_client, admin, answer_seconds=wait_seconds).running() as watch:
            yield watch
    finally:
        await rpc_client.close()


async def look_at_fleet(
    bus: Bus, admin_token: str | None, *, wait_seconds: float, timeout_seconds: float
) -> FleetFigures:
    """Return the figures of the fleet behind this bus after ``wait_seconds``, or twice that if one is missing.

    Raises `BusError` if services cannot be asked who they are.
    """
    async with watch_fleet(bus, admin_token, wait_seconds=wait_seconds, timeout_seconds=timeout_seconds) as watch:
        await watch.wait_asked(timeout_seconds)
        await asyncio.sleep(wait_seconds)
        await watch.wait_state(timeout_seconds)
        watch.raise_if_unasked()
        figures = watch.figures()
        consumers = await _count_consumers(bus, figures)
        if figures.problems or figures.warnings or consumer_problems(figures, consumers):
            # A busy service may answer late, and one that has just started consumes its queues before it answers: only
            # who consumed them before a request and does not answer it is a problem.
            await asyncio.sleep(wait_seconds)
            figures = watch.figures()
            later = await _count_consumers(bus, figures)
            consumers = {name: min(count, later.get(name, 0)) for name, count in consumers.items()}
    return figures.with_fields(problems=[*figures.problems, *consumer_problems(figures, consumers)])


async def look_at_fleet_at(
    url: str, purpose: str, admin_token: str | None, *, wait_seconds: float, timeout_seconds: float
) -> FleetFigures:
    """Return the figures of the fleet behind the broker at this URL, see `look_at_fleet`. Raises `BusError`."""
    async with bootstrap.open_bus(url, purpose, None, timeout_seconds=timeout_seconds) as bus:
        return await look_at_fleet(bus, admin_token, wait_seconds=wait_seconds, timeout_seconds=timeout_seconds)


def consumer_problems(figures: FleetFigures, consumers: Mapping[str, int]) -> list[str]:
    """Return what is wrong with the numbers of consumers, by queue: each is to be a service that answers."""
    problems = [
        f"The queue of target {target.name} has {count} consumers, and {target.workers or 0} of its workers answer: "
        f"{_STRANGER}"
        for target in _called(figures)
        if (count := consumers.get(target_queue(target.name).name, 0)) > (target.workers or 0)
    ]
    services = sum(one.service == "metadata" and not one.is_silent for one in figures.services)
    too_many = [queue.name for queue in CONSUMED_QUEUES if consumers.get(queue.name, 0) > services]
    if too_many:
        problems.append(
            f"{', '.join(too_many)} have more consumers than the {services} metadata services that answer: {_STRANGER}"
        )
    return problems


_STRANGER = (
    "a process that is stopped or cut off, or a program that is none of the fleet's, takes messages and does not "
    "answer them: find it with `rabbitmqctl list_consumers`, and end it"
)


def _called(figures: FleetFigures) -> Iterable[TargetFigures]:
    return (target for target in figures.targets if target.provider != LEASED_PROVIDER)


async def _count_consumers(bus: Bus, figures: FleetFigures) -> dict[str, int]:
    counts = await bus.count([*CONSUMED_QUEUES, *(target_queue(target.name) for target in _called(figures))])
    return {name: count.consumers for name, count in counts.items()}
