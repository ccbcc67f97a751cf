"""The worker: composes the consumers of its targets, each with its own prefetch, its lease, and its cancellations."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from quintain.bus.base import Bus, Delivery
from quintain.config.fingerprint import target_fingerprints
from quintain.config.loader import Config
from quintain.config.prices import target_price
from quintain.config.program_targets import ProgramTarget
from quintain.config.targets import card_of
from quintain.contracts.headers import PROTOCOL_VERSION
from quintain.contracts.ledger import Cancellation, DrainState, LeaseRenewed, Register, TargetCard
from quintain.contracts.service_card import ServiceCard
from quintain.errors import Fault
from quintain.fleet.beats import ServiceIdentity
from quintain.programs.agent_urls import AgentUrls
from quintain.routes import CANCEL
from quintain.rpc.own_queues import OwnQueue
from quintain.rpc.requests import RpcClient
from quintain.runtime.concurrency import start_task
from quintain.settings import read_trace_settings, without_variables
from quintain.timings import DEFAULT_TIMINGS, Clock, Timings
from quintain.topology import conversation_topology, target_queue
from quintain_worker.call_runner import CallRunner
from quintain_worker.consumer import TargetConsumer
from quintain_worker.cost_bound import cost_rules
from quintain_worker.lease import WorkerLease
from quintain_worker.ledger_client import BusLedgerPort, LedgerPort
from quintain_worker.providers.factory import build_provider
from quintain_worker.providers.provider import (
    ConversationHolder,
    ProviderContext,
    StartedProvider,
)
from quintain_worker.target import WorkerMetrics, WorkerTarget

log = logging.getLogger(__name__)

#: A call that runs for so long is told of in the worker's card.
LONG_CALL_SECONDS = 60.0

#: A worker that stops says every so many seconds for which calls it waits, and names at most so many of them.
TELL_SECONDS, MAX_TOLD_CALLS = 60.0, 10

#: How many turns are taken at a time: more than wait, so that none is taken for lost.
TURN_PREFETCH = 256


class Worker:
    """Serves targets. Any number of workers, on any machine, may share a target's queue.

    ``sole_id`` is an id that only one process at a time can have, so that a registration ends the leases of its
    predecessors. ``on_drain`` is called, perhaps more than once, when an administrator requests a drain; without it
    drain requests are refused. ``timings`` must be those of the whole fleet. ``ledger`` is that of this process;
    without it the ledger is asked over the bus.
    """

    def __init__(  # noqa: PLR0913 -- a composition root
        self,
        bus: Bus,
        targets: Mapping[str, WorkerTarget],
        cards: Sequence[TargetCard],
        metrics: WorkerMetrics | None = None,
        *,
        sole_id: str | None = None,
        on_drain: Callable[[], object] | None = None,
        timings: Timings = DEFAULT_TIMINGS,
        ledger: LedgerPort | None = None,
    ) -> None:
        metrics = metrics or WorkerMetrics()
        self._bus, self._cards, self._timings = bus, cards, timings
        clock, incarnation = Clock(), secrets.token_hex(16)
        self._turn_queues = {
            card.name: OwnQueue(bus, conversation_topology(card.name, incarnation), TURN_PREFETCH) for card in cards
        }
        self._targets = {
            card.name: dataclasses.replace(targets[card.name], card=card, turns=self._turn_queues[card.name])
            for card in cards
        }
        self.worker_id = sole_id or f"{socket.gethostname()}-{os.getpid()}"
        self._identity = ServiceIdentity("worker", self.worker_id)
        self._rpc_client = RpcClient(bus)
        port = ledger or BusLedgerPort(bus, self._rpc_client, timings)
        self._runner = CallRunner(bus, port, clock, incarnation, metrics, timings)
        self._holders = [one.provider for one in targets.values() if isinstance(one.provider, ConversationHolder)]
        self._rpc_client.subscribe(CANCEL.key, self._on_cancelled)
        drain_state = DrainState.UNSUPPORTED if on_drain is None else DrainState.SUPPORTED
        self._on_drain = on_drain
        self._sharing: set[asyncio.Task[None]] = set()

        def registration() -> Register:
            return Register(
                worker_id=self.worker_id,
                incarnation=incarnation,
                targets=self._cards_with_fingerprints(),
                sole=True if sole_id else None,
                drain=drain_state,
                protocol=PROTOCOL_VERSION,
            )

        self._lease = WorkerLease(self._rpc_client, clock, registration, self._on_renewed, self.card, timings)
        self._consumers = {card.name: TargetConsumer(self._targets[card.name], self._runner, card) for card in cards}

    async def start(self) -> None:
        """Register, then start consuming; waits until a metadata service answers."""
        await self._rpc_client.start()
        await asyncio.gather(
            *(target.hosts.watch_hosts() for target in self._targets.values() if target.hosts is not None)
        )
        await self._lease.start()
        for name, consumer in self._consumers.items():
            self._turn_queues[name].handler = consumer.handle_turn
            await consumer.start()
        log.info("Worker %s serves %s", self.worker_id, ", ".join(self._targets))

    async def stop(self, grace_seconds: float = 30.0) -> None:
        """Stop consuming, return the calls that have not started, and wait up to ``grace_seconds`` for those that run.

        The conversations that it holds end after the turns that run. The RPC client's reply queue is closed last.
        """
        for turn_queue in self._turn_queues.values():
            await turn_queue.cancel()
        for consumer in self._consumers.values():
            await consumer.cancel()
        self._runner.admissions.stop()
        told = asyncio.get_running_loop().create_task(self._tell_long_calls(grace_seconds), name="long calls")
        drained = await asyncio.gather(
            *(consumer.drain(grace_seconds) for consumer in self._consumers.values()),
            *(turn_queue.drain(grace_seconds) for turn_queue in self._turn_queues.values()),
        )
        told.cancel()
        if not all(drained):
            log.warning("A call did not end within %.0f s; another worker takes it over", grace_seconds)
        await self._lease.stop()
        await asyncio.gather(*self._sharing)
        await self._rpc_client.close()
        for target in self._targets.values():
            await target.provider.close()

    def card(self) -> ServiceCard:
        """Return the card that the worker sends in its heartbeats."""
        cards = self._cards if self._lease.is_registered else ()
        served = [self._consumers[target_card.name].served_target(target_card.provider) for target_card in cards]
        lease_age_seconds = self._lease.age_seconds
        oldest = self._runner.calls.running()[:1]
        longest_seconds = max((asyncio.get_running_loop().time() - call.granted_at for call in oldest), default=0.0)
        return self._identity.card(
            targets=served,
            slots=sum(served_target.slots for served_target in served),
            in_flight=sum(served_target.in_flight for served_target in served),
            heartbeat_age_ms=None if math.isinf(lease_age_seconds) else int(lease_age_seconds * 1000),
            longest_call_ms=int(longest_seconds * 1000) if longest_seconds >= LONG_CALL_SECONDS else None,
            broker_reconnects=self._bus.reconnects,
            problem=self._lease.problem,
        )

    async def check(self) -> str | None:
        """Return why the worker is not ready, or None: its lease must be valid and its targets' queues consumed."""
        if self._lease.age_seconds > self._timings.lease_seconds:
            return "the ledger has not renewed this worker's lease: does a metadata service run?"
        not_consumed = [name for name, consumer in self._consumers.items() if not consumer.is_open]
        return f"not consumed: {', '.join(target_queue(name).name for name in not_consumed)}" if not_consumed else None

    async def _tell_long_calls(self, grace_seconds: float) -> None:
        """Log which calls the worker waits for to stop, now and every minute."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + grace_seconds
        while waited_for := self._runner.calls.running():
            ages = [
                f"{call.target.name} {call.request_id[:8]} ({loop.time() - call.granted_at:.0f} s)"
                for call in waited_for[:MAX_TOLD_CALLS]
            ]
            more = f" and {len(waited_for) - MAX_TOLD_CALLS} more" if len(waited_for) > MAX_TOLD_CALLS else ""
            log.warning(
                "Waiting up to %.0f s for %d running calls: %s%s",
                *(max(0.0, ends_at - loop.time()), len(waited_for), ", ".join(ages), more),
            )
            await asyncio.sleep(TELL_SECONDS)

    def _cards_with_fingerprints(self) -> list[TargetCard]:
        """The cards with the fingerprints of the targets' configuration and files as they are now."""
        return [
            card.model_copy(update={"fingerprint": self._targets[card.name].current_fingerprint()})
            for card in self._cards
        ]

    def _on_renewed(self, renewed: LeaseRenewed) -> None:
        """Apply the ledger's answer to a heartbeat: cancelled calls and a drain request."""
        self._runner.admissions.note_renewal(renewed.admit_key)
        for name, consumer in self._consumers.items():
            self._start_sharing(consumer, (renewed.other_slots or {}).get(name, 0))
        self._runner.calls.abort(renewed.taken_back or ())
        if renewed.drain and self._on_drain is not None:
            log.warning("An administrator requested a drain of this worker")
            self._on_drain()

    def _on_cancelled(self, delivery: Delivery) -> None:
        """Abort the cancelled calls that are in flight, and end the conversations to which no turn comes any more."""
        try:
            cancelled = Cancellation.from_wire(delivery.body)
        except Fault as unreadable:
            log.error("An unreadable cancellation was dropped: %s", unreadable.message)
            return
        self._runner.calls.abort(cancelled.calls)
        for ended in cancelled.conversations or ():
            for holder in self._holders:
                holder.end_conversation(ended.session_id, ended.conversation_id)

    def _start_sharing(self, consumer: TargetConsumer, free_slots: int) -> None:
        if not (calls := consumer.calls_for_others(free_slots)):
            return
        start_task(self._sharing, consumer.return_waiting(calls), name="share calls")


def _has_agents(config: Config) -> bool:
    """Whether a program of the configuration calls targets."""
    return any(isinstance(one, ProgramTarget) and one.child_session for one in config.targets.values())


#: Serves the URLs of agents while the context is open.
AgentGateway = Callable[[AgentUrls], contextlib.AbstractAsyncContextManager[None]]


@contextlib.asynccontextmanager
async def run_worker(  # noqa: PLR0913 -- what starts a service takes what that says
    bus: Bus,
    config: Config,
    env: Mapping[str, str],
    *,
    grace_seconds: float = 30.0,
    metrics: WorkerMetrics | None = None,
    sole_id: str | None = None,
    drain: Callable[[], object] | None = None,
    agent_gateway: AgentGateway | None = None,
    timings: Timings = DEFAULT_TIMINGS,
    ledger: LedgerPort | None = None,
) -> AsyncIterator[Worker]:
    """Run a worker for the targets of a configuration. Raises `ConfigError`.

    ``grace_seconds`` is how long running calls may take on exit. ``agent_gateway`` serves the calls of programs with a
    child session, where there are any. The others are those of `Worker`.
    """
    resolved = config.resolve(env)
    # Commands of the configuration get the worker's environment, without what gives access to the ledger.
    command_env = without_variables(env, {"QUINTAIN_ADMIN_TOKEN", "QUINTAIN_LEDGER_URL"})
    agent_urls = AgentUrls() if agent_gateway is not None and _has_agents(resolved) else None
    provider_context = ProviderContext(config.folder, command_env, bus, timings, agent_urls)
    fingerprints = target_fingerprints(resolved.targets, config.folder, command_env)
    prices = {name: target_price(target) for name, target in resolved.targets.items()}
    rules = cost_rules(resolved.targets, prices)
    cards = [card_of(name, one, config.quotas, rules[name].terms()) for name, one in resolved.targets.items()]
    served_targets = {
        name: WorkerTarget(
            name=name,
            provider=build_provider(name, target, provider_context),
            max_tries=target.max_tries,
            timeout_seconds=target.timeout_seconds,
            trace_content=read_trace_settings(env).include_content,
            ignore_unsupported=target.unsupported == "ignore",
            asks_once=target.is_agent,
            fingerprint=fingerprints[name].first,
            read_fingerprint=fingerprints[name].read,
            price=prices[name],
            cost_rule=rules[name],
        )
        for name, target in resolved.targets.items()
    }
    worker = Worker(
        *(bus, served_targets, cards, metrics),
        sole_id=sole_id,
        on_drain=drain,
        timings=timings,
        ledger=ledger,
    )
    async with contextlib.AsyncExitStack() as stack:
        if agent_urls is not None and agent_gateway is not None:
            await stack.enter_async_context(agent_gateway(agent_urls))
        stack.push_async_callback(worker.stop, grace_seconds)
        providers = [target.provider for target in served_targets.values()]
        await asyncio.gather(*(each.start() for each in providers if isinstance(each, StartedProvider)))
        await worker.start()
        yield worker
