"""The child session that a remote target's agent calls models with, for the duration of one call."""

from __future__ import annotations

import asyncio

from quintain.config import TargetChildSession
from quintain.contracts.remote_target import TargetDescriptor
from quintain.contracts.token import SessionToken
from quintain.errors import BusError, Fault, ProviderFailed
from quintain.remote.child_session import ChildSession, ChildSessionPolicy, ChildSessions
from quintain.rpc.client import RpcClient
from quintain.target import SESSION_SLOT
from quintain_worker.providers.provider import Billing, ProviderFailure


class AgentSession:
    """One call's session for its agent: opened for a target that declares the slot, closed with each try."""

    def __init__(self, name: str, terms: TargetChildSession, rpc_client: RpcClient, parent: SessionToken) -> None:
        self._name = name
        self._children = ChildSessions(
            rpc_client, parent.text, ChildSessionPolicy(targets=terms.targets, max_calls=terms.max_calls)
        )
        self._child: ChildSession | None = None

    async def open(self, descriptor: TargetDescriptor, ends_at: float) -> dict[str, str]:
        """Open it; returns what to configure the agent with. It expires when the loop's time is ``ends_at``. Raises
        `ProviderFailure`, uncharged."""
        if all(spec.name != SESSION_SLOT for spec in descriptor.config_specs):
            raise self._failure(
                f"child_session is set, and the target declares no configuration slot {SESSION_SLOT!r} to take it: "
                "declare one, or take child_session out"
            )
        try:
            remaining_seconds = max(ends_at - asyncio.get_running_loop().time(), 1.0)
            self._child = await self._children.open(expires_in_seconds=remaining_seconds)
        except Fault as fault:
            raise ProviderFailure(fault, Billing.UNBILLED, retryable=fault.retryable) from None
        except BusError as error:
            raise self._failure(f"no session for the agent: {error.message}", retryable=True) from None
        return {SESSION_SLOT: self._child.token}

    async def close(self) -> None:
        """End it. Never raises, but for a cancellation."""
        await self._children.close_all()

    def masked(self, text: str) -> str:
        """What the agent said, without the session's secret: an answer is kept, graded and shown."""
        return text if self._child is None else self._child.mask_token(text)

    def _failure(self, reason: str, *, retryable: bool = False) -> ProviderFailure:
        return ProviderFailure(
            ProviderFailed(f"{self._name}: {reason}", charged=False), Billing.UNBILLED, retryable=retryable
        )
