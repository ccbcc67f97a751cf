"""The remote-target provider: leases an instance from a host and performs one run for each call.

The question replaces the value of the first controllable event; the other events keep theirs. The answer is what
the configured query returns, or without a query the last content that the target emitted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from quintain import errors
from quintain.bus.base import Bus
from quintain.config.targets import TargetTarget
from quintain.contracts.agents import AgentStep, StepsCut
from quintain.contracts.hosting import QueryTarget, SetConfig
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.remote_target import TargetDescriptor
from quintain.contracts.values import replace_surrogates
from quintain.remote.child_session import check_takes_session
from quintain.remote.connection_thread import InlineExecutor
from quintain.remote.lease import RemoteLease, TargetTimeouts, acquire_lease, describe_host
from quintain.remote.run_driver import RunDriver
from quintain.rpc.requests import RpcClient
from quintain.runtime.concurrency import IdleLimit, cancel_and_wait
from quintain.target import SESSION_SLOT
from quintain.target.codec import Codec
from quintain.target.type_registry import QUINTAIN_TYPES
from quintain.timings import Timings
from quintain_worker.providers.agents.run_events import RunEventHandler
from quintain_worker.providers.agents.session import AgentSession
from quintain_worker.providers.conversation import ignored_settings, refusal, text_messages
from quintain_worker.providers.provider import (
    Billing,
    CallHolder,
    HostedProvider,
    OnText,
    ProviderAnswer,
    ProviderContext,
    ProviderFailure,
    steps_before_failure,
)

log = logging.getLogger(__name__)

#: How long one try waits for a free slot of a host, in seconds.
LEASE_SECONDS = 30.0


def remote_target_provider(name: str, target: TargetTarget, context: ProviderContext) -> RemoteTargetProvider:
    """Create the remote-target provider. Raises `ConfigError` where there is no bus to reach a host."""
    if context.bus is None:
        raise errors.ConfigError(f"targets.{name}: provider target needs a broker to reach its hosts")
    return RemoteTargetProvider(name, target, context.bus, context.timings)


class RemoteTargetProvider(HostedProvider):
    """Leases a new instance for every call, from any host that has a free slot."""

    def __init__(self, name: str, target: TargetTarget, bus: Bus, timings: Timings) -> None:
        self._name, self._target, self._bus, self._timings = name, target, bus, timings
        self._rpc_client = RpcClient(bus)
        self._host = target.host or name
        #: A host without a free slot does not reply: what one reported before counts until one reports something else.
        self._host_fingerprint: str | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def host_fingerprint(self) -> str | None:
        """The fingerprint that a host reported last; None where none has, or the last one computes none."""
        return self._host_fingerprint

    async def watch_hosts(self) -> None:
        """Ask the hosts for their fingerprint now, and regularly until `close`."""
        await self._rpc_client.start()
        await self._ask_hosts()
        self._watch = asyncio.create_task(self._ask_hosts_periodically(), name=f"hosts of {self._host}")

    async def answer(
        self,
        request: InvokeRequest,
        *,
        timeout_seconds: float,
        on_text: OnText | None = None,
        holder: CallHolder | None = None,
    ) -> ProviderAnswer:
        """Run a leased instance once and return its answer, within ``timeout_seconds``. Raises `ProviderFailure`.

        With ``child_session`` configured, the target's agent gets a child of the holder's session for this try.
        """
        terms, agent_session = self._target.child_session, None
        if terms is not None and holder is not None:
            agent_session = AgentSession(self._name, terms, self._rpc_client, holder)
        ignored = ignored_settings(request.settings, f"{self._name}, a hosted target,")
        question = self._question(request)
        ends_at = asyncio.get_running_loop().time() + timeout_seconds
        remote_lease = await self._lease(
            TargetTimeouts(slot_seconds=min(timeout_seconds, LEASE_SECONDS), boot_seconds=timeout_seconds)
        )
        call = _LeasedCall(self._name, self._target, remote_lease)
        with steps_before_failure(partial(_steps_of, call, agent_session)):
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_callback(call.release)
                if agent_session is not None:
                    await stack.enter_async_context(agent_session.closed_after())
                try:
                    async with asyncio.timeout_at(ends_at), call.idle.watch():
                        config = {}
                        if agent_session is not None:
                            self._check_takes_session(remote_lease.descriptor)
                            config = {SESSION_SLOT: await agent_session.open(ends_at)}
                        answer = await call.answer(question, {**self._target.config, **config})
                    answer = replace(answer, ignored=ignored, host_fingerprint=remote_lease.fingerprint)
                    return (
                        answer
                        if agent_session is None
                        else await agent_session.with_usage(agent_session.masked(answer))
                    )
                except TimeoutError:
                    idle = self._target.idle_seconds
                    silence = "" if idle is None else f", or sent nothing for {idle:g} s"
                    late = f"{self._name}: the target did not end its run within {timeout_seconds:g} s{silence}"
                    raise ProviderFailure(errors.TimedOut(late), call.billing) from None

    async def close(self) -> None:
        """Stop asking the hosts, and close the RPC client."""
        await cancel_and_wait(self._watch)
        await self._rpc_client.close()

    def _question(self, request: InvokeRequest) -> str:
        turns = text_messages(request)
        if len(turns) > 1:
            raise refusal(turns[0].field, f"{self._name} is a hosted target and takes one question; leave it out")
        return replace_surrogates(turns[0].text)

    def _check_takes_session(self, descriptor: TargetDescriptor) -> None:
        try:
            check_takes_session(self._name, (spec.name for spec in descriptor.config_specs))
        except errors.ConfigError as error:
            raise ProviderFailure(errors.ProviderFailed(error.message, charged=False), Billing.UNBILLED) from None

    async def _ask_hosts_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._timings.host_heartbeat_seconds)
            await self._ask_hosts()

    async def _ask_hosts(self) -> None:
        seconds = self._timings.host_heartbeat_seconds
        with contextlib.suppress(errors.NoAnswer, errors.BusError, errors.Fault):
            self._note_fingerprint(await describe_host(self._rpc_client, self._host, timeout_seconds=seconds))

    def _note_fingerprint(self, fingerprint: str | None) -> None:
        """Record what a host has just reported."""
        if self._host_fingerprint not in (None, fingerprint):
            log.info("A host of %s runs another factory, or another version of it, than the one before", self._host)
        self._host_fingerprint = fingerprint

    async def _lease(self, timeouts: TargetTimeouts) -> RemoteLease:
        host = self._host
        try:
            await self._rpc_client.start()
            async with asyncio.timeout(timeouts.boot_seconds):
                lease = await acquire_lease(self._bus, self._rpc_client, host, timeouts=timeouts, timings=self._timings)
        except errors.NoAnswer as no_answer:
            raise ProviderFailure(errors.Overloaded(no_answer.message), Billing.UNBILLED, retryable=True) from None
        except errors.BusError as error:
            failure = errors.ProviderFailed(f"{self._name}: {error.message}", charged=False)
            raise ProviderFailure(failure, Billing.UNBILLED, retryable=True) from None
        except Exception as error:
            # Any exception of the target's factory; its message may hold secrets and is not quoted.
            failure = errors.ProviderFailed(
                f"{self._name}: {host} could not be created: {class_name_of(error)}", charged=False
            )
            raise ProviderFailure(failure, Billing.UNBILLED) from error
        self._note_fingerprint(lease.fingerprint)
        return lease


def _steps_of(call: _LeasedCall, agent_session: AgentSession | None) -> tuple[Sequence[AgentStep], StepsCut | None]:
    """Return what a target did so far, as it may be stored."""
    steps, cut = call.steps()
    return steps if agent_session is None else agent_session.masked_steps(steps), cut


class _LeasedCall:
    """One call on one lease, from the instance's configuration to its release."""

    def __init__(self, name: str, target: TargetTarget, remote_lease: RemoteLease) -> None:
        self._name, self._target, self._lease = name, target, remote_lease
        #: Ends a run from which no event comes for long.
        self.idle = IdleLimit(target.idle_seconds)
        #: The billing if the call ended now.
        self.billing = Billing.UNBILLED
        self._events: RunEventHandler | None = None

    def steps(self) -> tuple[tuple[AgentStep, ...], StepsCut | None]:
        """Return what the target did so far, and what was left out of that."""
        return ((), None) if self._events is None else self._events.steps()

    async def answer(self, question: str, config: Mapping[str, str]) -> ProviderAnswer:
        """Configure the instance, run it, and return the answer. Raises `ProviderFailure`."""
        try:
            return await self._run(question, config)
        except errors.HostLost as host_lost:
            charged = self.billing is not Billing.UNBILLED
            failure = errors.ProviderFailed(f"{self._name}: {host_lost.message}", charged=charged)
            # A target that ran may have had side effects: it is not run again.
            raise ProviderFailure(failure, self.billing, retryable=not charged) from None
        except ProviderFailure:
            raise
        except errors.Fault as fault:
            raise ProviderFailure(fault, self.billing) from None
        except Exception as error:
            # Any exception of the target is its failure; its message may hold secrets and is not quoted.
            phase = "running" if self.billing is not Billing.UNBILLED else "being configured"
            charged = self.billing is not Billing.UNBILLED
            failure = errors.ProviderFailed(
                f"{self._name}: the target raised {class_name_of(error)} while {phase}", charged=charged
            )
            raise ProviderFailure(failure, Billing.BILLED if charged else Billing.UNBILLED) from error

    async def _run(self, question: str, config: Mapping[str, str]) -> ProviderAnswer:
        if config:
            await self._lease.call(SetConfig(values=dict(config)))
        event_handler = self._events = RunEventHandler(question, self.idle.touch)
        run = RunDriver(
            InlineExecutor(),
            self._lease,
            Codec(QUINTAIN_TYPES),
            event_handler.emit,
            event_handler.send_event,
            forward_log=event_handler.log,
        )
        self.billing = Billing.UNKNOWN
        try:
            await run.run()
        except errors.LeaseRequestNotDelivered:
            self.billing = Billing.UNBILLED
            raise
        if self._target.query is None:
            text = event_handler.answer
        else:
            text = (await self._lease.call(QueryTarget(name=self._target.query))).value
        if text is None:
            failure = errors.ProviderFailed(
                f"{self._name}: the target ran and emitted nothing: configure a query that returns the answer",
                charged=True,
            )
            raise ProviderFailure(failure, Billing.BILLED)
        steps, cut = event_handler.steps()
        return ProviderAnswer(text=text, steps=steps, steps_cut=cut)

    async def release(self) -> None:
        """Release the lease, whose host resets the instance before; raises nothing except a cancellation."""
        await self._lease.release(reset=True)


#: Longer exception class names are not shown.
MAX_CLASS_NAME_LENGTH = 80


def class_name_of(error: Exception) -> str:
    """Return the class name of a target's exception, as its host reported it, without the message."""
    if isinstance(error, errors.RemoteTargetError):
        class_name = error.message.partition(":")[0]
        return class_name if class_name.isidentifier() and len(class_name) <= MAX_CLASS_NAME_LENGTH else "an exception"
    return type(error).__name__
