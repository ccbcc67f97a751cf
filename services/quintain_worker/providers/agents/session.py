"""The child session of one call, for the calls that the agent under test makes itself, and its URL in a program."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from quintain.bus.base import Bus
from quintain.config.target_fields import TargetChildSession
from quintain.contracts.agents import AgentStep
from quintain.contracts.headers import TOKEN_HEADER
from quintain.contracts.ledger import OpenChild
from quintain.contracts.session import GetInfo, SessionOpened
from quintain.errors import BusError, ConfigError, Fault, ProviderFailed, QuintainError
from quintain.programs.agent_urls import AgentUrls
from quintain.remote.child_session import OPEN_SECONDS, ChildSession, ChildSessions
from quintain.routes import INFO, OPEN_CHILD
from quintain.rpc.requests import RpcClient
from quintain_worker.providers.provider import (
    Billing,
    CallHolder,
    ModelUsage,
    ProviderAnswer,
    ProviderContext,
    ProviderFailure,
)

log = logging.getLogger(__name__)


class AgentSession:
    """Child session for the agent of one call.

    It is opened for each try, and closed after it. The attempt that runs the call has the right to open it: no token is
    needed.
    """

    def __init__(self, name: str, terms: TargetChildSession, rpc_client: RpcClient, holder: CallHolder) -> None:
        self._name, self._terms, self._rpc_client, self._holder = name, terms, rpc_client, holder
        self._children = ChildSessions(rpc_client, self._open)
        self._child: ChildSession | None = None

    async def _open(self, expires_in_seconds: float | None) -> SessionOpened:
        request = OpenChild(
            **self._holder._asdict(),
            targets=list(self._terms.targets),
            max_calls=self._terms.max_calls,
            max_cost_usd=self._terms.max_cost_usd,
            expires_in_seconds=expires_in_seconds,
        )
        return await self._rpc_client.call_route(OPEN_CHILD, request, {}, timeout_seconds=OPEN_SECONDS)

    async def open(self, ends_at: float) -> str:
        """Open the child session and return its token; it expires soon after ``ends_at`` (the loop's seconds).

        Raises `ProviderFailure`, unbilled.
        """
        try:
            # It is asked what its calls took once they have ended.
            remaining_seconds = max(ends_at - asyncio.get_running_loop().time(), 1.0) + OPEN_SECONDS
            self._child = await self._children.open(expires_in_seconds=remaining_seconds)
        except Fault as fault:
            raise ProviderFailure(fault, Billing.UNBILLED, retryable=fault.retryable) from None
        except BusError as error:
            failure = ProviderFailed(
                f"{self._name}: the agent's session could not be opened: {error.message}", charged=False
            )
            raise ProviderFailure(failure, Billing.UNBILLED, retryable=True) from None
        return self._child.token

    async def with_usage(self, answer: ProviderAnswer) -> ProviderAnswer:
        """Return the agent's answer with what its calls took."""
        return replace(answer, models=await self._took())

    async def _took(self) -> ModelUsage | None:
        """Return what the agent's calls took, as far as they have ended: it is asked before the close.

        Raises nothing except a cancellation.
        """
        if self._child is None:
            return None
        headers, request = {TOKEN_HEADER: self._child.token}, GetInfo(settled=True)
        try:
            info = await self._rpc_client.call_route(INFO, request, headers, timeout_seconds=OPEN_SECONDS)
        except QuintainError as error:
            log.warning("%s: what its calls took is not known: %s", self._name, error.message)
            return None
        return ModelUsage(info.token_usage, 0.0 if info.cost is None else info.cost.known_usd)

    @asynccontextmanager
    async def closed_after(self) -> AsyncIterator[None]:
        """Close the child session after the context; a `ProviderFailure` in it is told what its calls cost."""
        try:
            yield
        except ProviderFailure as failure:
            if (models := await self._took()) is not None:
                failure.fault.cost_usd = models.cost_usd or None
            raise
        finally:
            await self._children.close_all()

    def masked(self, answer: ProviderAnswer) -> ProviderAnswer:
        """Return the agent's answer with the session token masked: answers are stored, graded and shown."""
        text = answer.text if self._child is None else self._child.mask_token(answer.text)
        return replace(answer, text=text, steps=self.masked_steps(answer.steps))

    def masked_steps(self, steps: Sequence[AgentStep]) -> tuple[AgentStep, ...]:
        """Return the agent's steps with the session token masked."""
        if (child := self._child) is None:
            return tuple(steps)
        return tuple(AgentStep.from_wire(child.mask_token(step.to_wire().decode())) for step in steps)


class AgentModels:
    """The calls of a target's programs: each has a URL, which stands for the child session of its running call."""

    def __init__(self, name: str, terms: TargetChildSession, bus: Bus, urls: AgentUrls) -> None:
        self._name, self._terms, self.urls = name, terms, urls
        self._rpc_client = RpcClient(bus)

    @classmethod
    def of_target(cls, name: str, terms: TargetChildSession | None, context: ProviderContext) -> AgentModels | None:
        """Return those of a target; None if its programs make no calls.

        Raises `ConfigError` where nobody serves them.
        """
        if terms is None:
            return None
        if context.bus is None or context.agent_urls is None:
            raise ConfigError(f"targets.{name}.child_session: there is no gateway here for the program's calls")
        return cls(name, terms, context.bus, context.agent_urls)

    @asynccontextmanager
    async def session(self, holder: CallHolder, ends_at: float) -> AsyncIterator[tuple[AgentSession, str]]:
        """Open the session of a call while the context is open; yields it and its token.

        Raises `ProviderFailure`, unbilled.
        """
        await self._rpc_client.start()
        session = AgentSession(self._name, self._terms, self._rpc_client, holder)
        async with session.closed_after():
            yield session, await session.open(ends_at)

    async def close(self) -> None:
        """Close the RPC client."""
        await self._rpc_client.close()
