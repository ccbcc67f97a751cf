"""What a hosted agent calls models with: a session of its own under its caller's, for as long as one call lasts."""

from __future__ import annotations

import asyncio

from quintain.caller import Caller
from quintain.config import TargetChildSession
from quintain.contracts.hosted import Descriptor
from quintain.contracts.token import SessionToken
from quintain.errors import BusError, Fault, ProviderFailed
from quintain.remote.child_session import ChildSession, ChildSessions, ChildTerms
from quintain.target import SESSION_SLOT
from quintain_worker.port import Billing, ProviderFailure


class GivenSession:
    """One call's session for its agent: opened for a target that declares the slot, closed with each try."""

    def __init__(self, name: str, terms: TargetChildSession, caller: Caller, parent: SessionToken) -> None:
        self._name = name
        self._children = ChildSessions(
            caller, parent.text, ChildTerms(targets=terms.targets, max_calls=terms.max_calls)
        )
        self._child: ChildSession | None = None

    async def open(self, declared: Descriptor, ends: float) -> dict[str, str]:
        """Open it; returns what to configure the agent with. It expires when the loop's time is ``ends``. Raises
        `ProviderFailure`, uncharged."""
        if all(spec.name != SESSION_SLOT for spec in declared.config_specs):
            raise self._failed(
                f"child_session is set, and the target declares no configuration slot {SESSION_SLOT!r} to take it: "
                "declare one, or take child_session out"
            )
        try:
            left = max(ends - asyncio.get_running_loop().time(), 1.0)
            self._child = await self._children.open(expires_in_seconds=left)
        except Fault as fault:
            raise ProviderFailure(fault, Billing.UNBILLED, again=fault.retryable) from None
        except BusError as error:
            raise self._failed(f"no session for the agent: {error.message}", again=True) from None
        return {SESSION_SLOT: self._child.token}

    async def close(self) -> None:
        """End it. Never raises, but for a cancellation."""
        await self._children.close()

    def masked(self, text: str) -> str:
        """What the agent said, without the session's secret: an answer is kept, graded and shown."""
        return text if self._child is None else self._child.masked(text)

    def _failed(self, why: str, *, again: bool = False) -> ProviderFailure:
        return ProviderFailure(ProviderFailed(f"{self._name}: {why}", charged=False), Billing.UNBILLED, again=again)
