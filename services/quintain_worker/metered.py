"""A provider whose every try is timed and counted."""

from __future__ import annotations

import time

from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.token import SessionToken
from quintain.errors import Throttled
from quintain_worker.meter import OK, WorkerMeter
from quintain_worker.port import ActsForCaller, Answer, Billing, Heard, Provider, ProviderFailure, for_caller


class MeteredProvider(ActsForCaller):
    """The provider it is given."""

    def __init__(self, provider: Provider, target: str, meter: WorkerMeter) -> None:
        self._provider, self._target, self._meter = provider, target, meter

    async def answer(self, request: InvokeRequest, *, timeout_seconds: float, heard: Heard | None = None) -> Answer:
        """As `Provider.answer`."""
        began = time.perf_counter()
        # Cut off from outside, or by a defect: nobody knows what came of it.
        end: str = Billing.UNKNOWN.value
        try:
            answer = await self._provider.answer(request, timeout_seconds=timeout_seconds, heard=heard)
            end = OK
        except ProviderFailure as failure:
            end = failure.billing.value
            if isinstance(failure.fault, Throttled):
                self._meter.throttled(self._target)
            raise
        finally:
            self._meter.tried(self._target, end, time.perf_counter() - began)
        return answer

    def acting_for(self, token: SessionToken) -> MeteredProvider:
        """As counted where the provider acts in its caller's name."""
        acting = for_caller(self._provider, token)
        return self if acting is self._provider else MeteredProvider(acting, self._target, self._meter)

    async def close(self) -> None:
        """As `Provider.close`."""
        await self._provider.close()
