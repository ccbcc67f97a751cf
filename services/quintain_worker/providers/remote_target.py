"""The remote-target provider: leases an instance from a host and performs one run for each call.

The question replaces the value of the first controllable event; the other events keep theirs. The answer is what
the configured query returns, or without a query the last content that the target emitted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from quintain.bus.base import Bus
from quintain.config import TargetTarget
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.remote_target import LogLine
from quintain.contracts.strings import replace_surrogates
from quintain.contracts.token import SessionToken
from quintain.errors import (
    BusError,
    ConfigError,
    Fault,
    HostLost,
    LeaseRequestNotDelivered,
    NoAnswer,
    Overloaded,
    ProviderFailed,
    RemoteTargetError,
    TimedOut,
)
from quintain.remote.connection_thread import InlineExecutor
from quintain.remote.lease import RemoteLease, acquire_lease
from quintain.remote.run_channel import RunOutputQueue
from quintain.remote.run_driver import RunDriver
from quintain.routes import QUERY, RESET, SET_CONFIG
from quintain.rpc.client import RpcClient
from quintain.target import ControllableInjection, ControllableNoInjection, Event, EventResponse
from quintain.target.codec import Codec
from quintain.target.serialization import to_json_text
from quintain.target.type_registry import QUINTAIN_TYPES
from quintain.timings import Timings
from quintain_worker.providers.child_session import AgentSession
from quintain_worker.providers.conversation import refusal, refuse_settings, text_messages
from quintain_worker.providers.factory import ProviderContext
from quintain_worker.providers.provider import (
    Billing,
    OnText,
    Provider,
    ProviderAnswer,
    ProviderFailure,
    SessionScopedProvider,
)

log = logging.getLogger(__name__)

#: A class name that is longer is nobody's.
MAX_CLASS_NAME_LENGTH = 80

#: How long one try waits for a free slot of a host, in seconds.
LEASE_SECONDS = 30.0

#: How long a used instance may take to be let go of, in seconds; then its lease lapses by itself.
RELEASE_SECONDS = 2.0


def remote_target_provider(name: str, target: TargetTarget, context: ProviderContext) -> RemoteTargetProvider:
    """The provider of this target. Raises `ConfigError` where there is no bus to reach a host by."""
    if context.bus is None:
        raise ConfigError(f"targets.{name}: provider target needs a broker to reach its hosts by")
    return RemoteTargetProvider(name, target, context.bus, context.timings)


class RunEventHandler:
    """What one run is told, and what it shows."""

    def __init__(self, question: str) -> None:
        self._question: str | None = question
        self._last_answer: str | None = None
        self._last_content: object = None
        self._has_content = False

    def emit(self, event: Event) -> None:
        """Take in what the target shows."""
        if hasattr(event, "content"):
            self._last_content, self._has_content = event.content, True

    async def send_event(self, event: Event) -> EventResponse:
        """The question for the first event that can be controlled, and no injection for every other one."""
        controllable: Any = getattr(event, "controllable", None)
        if controllable is None:
            return EventResponse(event=event)
        self._last_answer = getattr(event, "answer", self._last_answer)
        question, self._question = self._question, None
        if question is None:
            return ControllableNoInjection(event=event, controllable=controllable)
        return ControllableInjection(event=event, controllable=controllable, value=question)

    @property
    def answer(self) -> str | None:
        """The last thing that the target showed: else the last answer that it let be replaced; else None."""
        if self._has_content:
            return self._last_content if isinstance(self._last_content, str) else to_json_text(self._last_content)
        return self._last_answer


class RemoteTargetProvider(SessionScopedProvider):
    """Leases a fresh instance for every call, from whichever host has a free slot."""

    def __init__(self, name: str, target: TargetTarget, bus: Bus, timings: Timings) -> None:
        self._name, self._target, self._bus, self._timings = name, target, bus, timings
        self._rpc_client = RpcClient(bus)
        self._start_lock = asyncio.Lock()
        self._is_started = False

    def for_session(self, token: SessionToken) -> Provider:
        """The provider for one call: where the target says so, its agent is given a child of this session."""
        terms = self._target.child_session
        return (
            self
            if terms is None
            else _SessionRemoteTargetProvider(self, AgentSession(self._name, terms, self._rpc_client, token))
        )

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """The target's answer, within the timeout. Raises `ProviderFailure`."""
        return await self.answer_in_session(None, request, timeout_seconds)

    async def answer_in_session(
        self, agent_session: AgentSession | None, request: InvokeRequest, timeout_seconds: float
    ) -> ProviderAnswer:
        """The same, of an agent that calls models in the session it is given, if any."""
        refuse_settings(request.settings, supported=(), provider=f"{self._name}, a hosted target,")
        question = self._question(request)
        ends_at = asyncio.get_running_loop().time() + timeout_seconds
        remote_lease = await self._lease(min(timeout_seconds, LEASE_SECONDS))
        call = _LeasedCall(self._name, self._target, remote_lease)
        try:
            async with asyncio.timeout_at(ends_at):
                config = {} if agent_session is None else await agent_session.open(remote_lease.descriptor, ends_at)
                text = await call.answer(question, {**self._target.config, **config})
                return ProviderAnswer(text=text if agent_session is None else agent_session.masked(text))
        except TimeoutError:
            failure = TimedOut(f"{self._name}: the target did not end its run within {timeout_seconds:g} s")
            raise ProviderFailure(failure, call.billing) from None
        finally:
            if agent_session is not None:
                await agent_session.close()
            await call.release()

    async def close(self) -> None:
        """Take no more answers of hosts."""
        await self._rpc_client.close()

    def _question(self, request: InvokeRequest) -> str:
        turns = text_messages(request)
        if len(turns) > 1:
            raise refusal(turns[0].field, f"{self._name} is a hosted target and takes one question; leave it out")
        return replace_surrogates(turns[0].text)

    async def _lease(self, timeout_seconds: float) -> RemoteLease:
        host = self._target.host or self._name
        try:
            async with self._start_lock:
                if not self._is_started:
                    await self._rpc_client.start()
                    self._is_started = True
            return await acquire_lease(
                self._bus, self._rpc_client, host, timeout_seconds=timeout_seconds, timings=self._timings
            )
        except NoAnswer as no_answer:
            raise ProviderFailure(Overloaded(no_answer.message), Billing.UNBILLED, retryable=True) from None
        except BusError as error:
            failure = ProviderFailed(f"{self._name}: {error.message}", charged=False)
            raise ProviderFailure(failure, Billing.UNBILLED, retryable=True) from None
        except Exception as error:
            # Whatever the target's factory raises on its host; its words may hold secrets.
            failure = ProviderFailed(f"{self._name}: {host} could not be made: {class_name_of(error)}", charged=False)
            raise ProviderFailure(failure, Billing.UNBILLED) from error


class _SessionRemoteTargetProvider:
    """The provider for one call of one session: every try is given a session of its own."""

    def __init__(self, provider: RemoteTargetProvider, agent_session: AgentSession) -> None:
        self._provider, self._agent_session = provider, agent_session

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """The target's answer, within the timeout. Raises `ProviderFailure`."""
        return await self._provider.answer_in_session(self._agent_session, request, timeout_seconds)

    async def close(self) -> None:
        """Nothing is held: the session ends with each try."""


class _LeasedCall:
    """One call's lease, from its configuration to its end."""

    def __init__(self, name: str, target: TargetTarget, remote_lease: RemoteLease) -> None:
        self._name, self._target, self._lease = name, target, remote_lease
        self._output_queue = RunOutputQueue(remote_lease.bus)
        #: What is known of the bill if it ends now.
        self.billing = Billing.UNBILLED

    async def answer(self, question: str, config: Mapping[str, str]) -> str:
        """Configure, run, and have the answer. Raises `ProviderFailure`."""
        try:
            return await self._run(question, config)
        except HostLost as host_lost:
            charged = self.billing is not Billing.UNBILLED
            failure = ProviderFailed(f"{self._name}: {host_lost.message}", charged=charged)
            # What ran may have had effects: it is not run again.
            raise ProviderFailure(failure, self.billing, retryable=not charged) from None
        except ProviderFailure:
            raise
        except Fault as fault:
            raise ProviderFailure(fault, self.billing) from None
        except Exception as error:
            # Whatever a target raises is its failure; its words may hold secrets.
            phase = "running" if self.billing is not Billing.UNBILLED else "being configured"
            charged = self.billing is not Billing.UNBILLED
            failure = ProviderFailed(
                f"{self._name}: the target raised {class_name_of(error)} while {phase}", charged=charged
            )
            raise ProviderFailure(failure, Billing.BILLED if charged else Billing.UNBILLED) from error

    async def _run(self, question: str, config: Mapping[str, str]) -> str:
        for name, value in config.items():
            await self._lease.call(SET_CONFIG, name=name, value=value)
        event_handler = RunEventHandler(question)
        run = RunDriver(
            InlineExecutor(),
            self._lease,
            self._output_queue,
            Codec(QUINTAIN_TYPES),
            event_handler.emit,
            event_handler.send_event,
            forward_log=_ignore_log,
        )
        self.billing = Billing.UNKNOWN
        try:
            await run.run()
        except LeaseRequestNotDelivered:
            self.billing = Billing.UNBILLED
            raise
        if self._target.query is None:
            text = event_handler.answer
        else:
            text = (await self._lease.call(QUERY, name=self._target.query, params={})).value
        if text is None:
            failure = ProviderFailed(
                f"{self._name}: the target ran and showed nothing: give its configuration a query that has the answer",
                charged=True,
            )
            raise ProviderFailure(failure, Billing.BILLED)
        return text

    async def release(self) -> None:
        """Reset, and have the host tear the instance down; never raises but for a cancellation."""
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                if not self._lease.ended:
                    await self._lease.call(RESET)
        except Exception as error:
            # The answer is had, or the failure known: what the target makes of its end changes neither.
            log.info("%s: the target was not reset: %s", self._name, class_name_of(error))
        finally:
            await self._lease.release()
            await self._output_queue.close()


def class_name_of(error: Exception) -> str:
    """The class of what a target raised, as its host named it; not its words."""
    if isinstance(error, RemoteTargetError):
        class_name = error.message.partition(":")[0]
        return class_name if class_name.isidentifier() and len(class_name) <= MAX_CLASS_NAME_LENGTH else "an exception"
    return type(error).__name__


def _ignore_log(_: LogLine) -> None:
    """A target's log records are for who attacks it; a worker's log does not take a stranger's text."""
