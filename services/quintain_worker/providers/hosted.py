"""A hosted target under test as a target to invoke: one lease and one run per call.

The question answers the first event that can be controlled, every other one goes on with its own value. What the
target says for an answer is what a query of its gives; without one, the last thing it showed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from quintain.bus.base import Bus
from quintain.caller import Caller
from quintain.config import TargetTarget
from quintain.contracts.hosted import LogLine
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.text import whole
from quintain.contracts.token import SessionToken
from quintain.errors import (
    BusError,
    ConfigError,
    Fault,
    HostLost,
    NeverAsked,
    NoAnswer,
    Overloaded,
    ProviderFailed,
    RemoteTargetError,
    TimedOut,
)
from quintain.remote.lease import RemoteLease, lease
from quintain.remote.line import Here
from quintain.remote.performing import RemoteRun
from quintain.remote.run import Ear
from quintain.routes import QUERY, RESET, SET_CONFIG
from quintain.target import ControllableInjection, ControllableNoInjection, Event, EventResponse
from quintain.target.codec import Codec
from quintain.target.text import to_json_text
from quintain.target.vocabulary import OURS
from quintain.timings import Timings
from quintain_worker.port import ActsForCaller, Answer, Billing, Heard, Provider, ProviderFailure
from quintain_worker.providers.build import Surroundings
from quintain_worker.providers.conversation import refusal, refuse_settings, turns_of
from quintain_worker.providers.given_session import GivenSession

log = logging.getLogger(__name__)

#: A class name that is longer is nobody's.
MOST_CLASS_NAME = 80

#: How long one try waits for a free slot of a host, in seconds.
LEASE_SECONDS = 30.0

#: How long a used instance may take to be let go of, in seconds; then its lease lapses by itself.
RELEASE_SECONDS = 2.0


def hosted_provider(name: str, target: TargetTarget, surroundings: Surroundings) -> HostedProvider:
    """The provider of this target. Raises `ConfigError` where there is no bus to reach a host by."""
    if surroundings.bus is None:
        raise ConfigError(f"targets.{name}: provider target needs a broker to reach its hosts by")
    return HostedProvider(name, target, surroundings.bus, surroundings.timings)


class Exchange:
    """What one run is told, and what it shows."""

    def __init__(self, question: str) -> None:
        self._question: str | None = question
        self._answered: str | None = None
        self._shown: object = None
        self._has_shown = False

    def emit(self, event: Event) -> None:
        """Take in what the target shows."""
        if hasattr(event, "content"):
            self._shown, self._has_shown = event.content, True

    async def send_event(self, event: Event) -> EventResponse:
        """The question for the first event that can be controlled, and no injection for every other one."""
        controllable: Any = getattr(event, "controllable", None)
        if controllable is None:
            return EventResponse(event=event)
        self._answered = getattr(event, "answer", self._answered)
        question, self._question = self._question, None
        if question is None:
            return ControllableNoInjection(event=event, controllable=controllable)
        return ControllableInjection(event=event, controllable=controllable, value=question)

    @property
    def last(self) -> str | None:
        """The last thing that the target showed: else the last answer that it let be replaced; else None."""
        if self._has_shown:
            return self._shown if isinstance(self._shown, str) else to_json_text(self._shown)
        return self._answered


class HostedProvider(ActsForCaller):
    """Leases a fresh instance for every call, from whichever host has a free slot."""

    def __init__(self, name: str, target: TargetTarget, bus: Bus, timings: Timings) -> None:
        self._name, self._target, self._bus, self._timings = name, target, bus, timings
        self._caller = Caller(bus)
        self._starting = asyncio.Lock()
        self._started = False

    def acting_for(self, token: SessionToken) -> Provider:
        """The provider for one call: where the target says so, its agent is given a child of this session."""
        terms = self._target.child_session
        return self if terms is None else _ForCaller(self, GivenSession(self._name, terms, self._caller, token))

    async def answer(self, request: InvokeRequest, *, timeout_seconds: float, heard: Heard | None = None) -> Answer:
        """The target's answer, within the timeout. Raises `ProviderFailure`."""
        return await self.answer_with(None, request, timeout_seconds)

    async def answer_with(self, given: GivenSession | None, request: InvokeRequest, timeout_seconds: float) -> Answer:
        """The same, of an agent that calls models in the session it is given, if any."""
        refuse_settings(request.settings, honoured=(), who=f"{self._name}, a hosted target,")
        question = self._question(request)
        ends = asyncio.get_running_loop().time() + timeout_seconds
        leased = await self._leased(min(timeout_seconds, LEASE_SECONDS))
        call = _Call(self._name, self._target, leased)
        try:
            async with asyncio.timeout_at(ends):
                config = {} if given is None else await given.open(leased.descriptor, ends)
                said = await call.answer(question, {**self._target.config, **config})
                return Answer(text=said if given is None else given.masked(said))
        except TimeoutError:
            failure = TimedOut(f"{self._name}: the target did not end its run within {timeout_seconds:g} s")
            raise ProviderFailure(failure, call.owed) from None
        finally:
            if given is not None:
                await given.close()
            await call.let_go()

    async def close(self) -> None:
        """Take no more answers of hosts."""
        await self._caller.close()

    def _question(self, request: InvokeRequest) -> str:
        turns = turns_of(request)
        if len(turns) > 1:
            raise refusal(turns[0].field, f"{self._name} is a hosted target and takes one question; leave it out")
        return whole(turns[0].text)

    async def _leased(self, timeout_seconds: float) -> RemoteLease:
        host = self._target.host or self._name
        try:
            async with self._starting:
                if not self._started:
                    await self._caller.start()
                    self._started = True
            return await lease(self._bus, self._caller, host, timeout_seconds=timeout_seconds, timings=self._timings)
        except NoAnswer as silence:
            raise ProviderFailure(Overloaded(silence.message), Billing.UNBILLED, again=True) from None
        except BusError as error:
            failure = ProviderFailed(f"{self._name}: {error.message}", charged=False)
            raise ProviderFailure(failure, Billing.UNBILLED, again=True) from None
        except Exception as error:
            # Whatever the target's factory raises on its host; its words may hold secrets.
            failure = ProviderFailed(f"{self._name}: {host} could not be made: {kind_of(error)}", charged=False)
            raise ProviderFailure(failure, Billing.UNBILLED) from error


class _ForCaller:
    """The provider for one call of one session: every try is given a session of its own."""

    def __init__(self, provider: HostedProvider, given: GivenSession) -> None:
        self._provider, self._given = provider, given

    async def answer(self, request: InvokeRequest, *, timeout_seconds: float, heard: Heard | None = None) -> Answer:
        """The target's answer, within the timeout. Raises `ProviderFailure`."""
        return await self._provider.answer_with(self._given, request, timeout_seconds)

    async def close(self) -> None:
        """Nothing is held: the session ends with each try."""


class _Call:
    """One call's lease, from its configuration to its end."""

    def __init__(self, name: str, target: TargetTarget, leased: RemoteLease) -> None:
        self._name, self._target, self._lease = name, target, leased
        self._ear = Ear(leased.bus)
        #: What is known of the bill if it ends now.
        self.owed = Billing.UNBILLED

    async def answer(self, question: str, config: Mapping[str, str]) -> str:
        """Configure, run, and have the answer. Raises `ProviderFailure`."""
        try:
            return await self._said(question, config)
        except HostLost as loss:
            charged = self.owed is not Billing.UNBILLED
            failure = ProviderFailed(f"{self._name}: {loss.message}", charged=charged)
            # What ran may have had effects: it is not run again.
            raise ProviderFailure(failure, self.owed, again=not charged) from None
        except ProviderFailure:
            raise
        except Fault as fault:
            raise ProviderFailure(fault, self.owed) from None
        except Exception as error:
            # Whatever a target raises is its failure; its words may hold secrets.
            doing = "running" if self.owed is not Billing.UNBILLED else "being configured"
            charged = self.owed is not Billing.UNBILLED
            failure = ProviderFailed(f"{self._name}: the target raised {kind_of(error)} while {doing}", charged=charged)
            raise ProviderFailure(failure, Billing.BILLED if charged else Billing.UNBILLED) from error

    async def _said(self, question: str, config: Mapping[str, str]) -> str:
        for name, value in config.items():
            await self._lease.ask(SET_CONFIG, name=name, value=value)
        exchange = Exchange(question)
        run = RemoteRun(Here(), self._lease, self._ear, Codec(OURS), exchange.emit, exchange.send_event, relay=_unheard)
        self.owed = Billing.UNKNOWN
        try:
            await run.perform()
        except NeverAsked:
            self.owed = Billing.UNBILLED
            raise
        if self._target.query is None:
            said = exchange.last
        else:
            said = (await self._lease.ask(QUERY, name=self._target.query, params={})).value
        if said is None:
            failure = ProviderFailed(
                f"{self._name}: the target ran and showed nothing: give its configuration a query that has the answer",
                charged=True,
            )
            raise ProviderFailure(failure, Billing.BILLED)
        return said

    async def let_go(self) -> None:
        """Reset, and have the host tear the instance down; never raises but for a cancellation."""
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                if not self._lease.gone:
                    await self._lease.ask(RESET)
        except Exception as error:
            # The answer is had, or the failure known: what the target makes of its end changes neither.
            log.info("%s: the target was not reset: %s", self._name, kind_of(error))
        finally:
            await self._lease.release()
            await self._ear.close()


def kind_of(error: Exception) -> str:
    """The class of what a target raised, as its host named it; not its words."""
    if isinstance(error, RemoteTargetError):
        named = error.message.partition(":")[0]
        return named if named.isidentifier() and len(named) <= MOST_CLASS_NAME else "an exception"
    return type(error).__name__


def _unheard(_: LogLine) -> None:
    """A target's log records are for who attacks it; a worker's log does not take a stranger's text."""
