"""The child session that a remote target's agent calls models with, for the duration of one call."""

from __future__ import annotations

import asyncio

from quintain.config import TargetChildSession
from quintain.contracts.ledger import OpenChild
from quintain.contracts.remote_target import TargetDescriptor
from quintain.contracts.session import SessionOpened
from quintain.errors import BusError, Fault, ProviderFailed
from quintain.remote.child_session import OPEN_SECONDS, ChildSession, ChildSessions
from quintain.routes import OPEN_CHILD
from quintain.rpc.client import RpcClient
from quintain.target import SESSION_SLOT
from quintain_worker.providers.provider import Billing, CallHolder, ProviderFailure


class AgentSession:
    """Child session for the agent of one call.

    It is opened if the target declares the configuration slot for it, and closed after each try. The attempt that runs
    the call has the right to open it: no token is needed.
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
            expires_in_seconds=expires_in_seconds,
        )
        return await self._rpc_client.call_route(OPEN_CHILD, request, {}, timeout_seconds=OPEN_SECONDS)

    async def open(self, descriptor: TargetDescriptor, ends_at: float) -> dict[str, str]:
        """Open the child session and return the configuration for the agent.

        The session expires at ``ends_at`` (the loop's seconds). Raises `ProviderFailure`, unbilled.
        """
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
            raise self._failure(f"the agent's session could not be opened: {error.message}", retryable=True) from None
        return {SESSION_SLOT: self._child.token}

    async def close(self) -> None:
        """Close the child session; raises nothing except a cancellation."""
        await self._children.close_all()

    def masked(self, text: str) -> str:
        """Return the agent's text with the session token masked: answers are stored, graded and shown."""
        return text if self._child is None else self._child.mask_token(text)

    def _failure(self, reason: str, *, retryable: bool = False) -> ProviderFailure:
        return ProviderFailure(
            ProviderFailed(f"{self._name}: {reason}", charged=False), Billing.UNBILLED, retryable=retryable
        )
