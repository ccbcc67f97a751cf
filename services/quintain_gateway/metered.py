"""A session's client whose calls are counted, and whose `info` tells the gateway the time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quintain.caller import Caller
from quintain.client.client import DEFAULT_DEADLINE_SECONDS, Client
from quintain.client.ears import Heard, HeardProgress
from quintain.clock import Clock
from quintain.contracts.invoke import InvokeRequest, Result
from quintain.contracts.metadata import Info
from quintain.errors import BusError, Cancelled, Fault
from quintain_gateway.meter import Meter

OK = "ok"
LOST = "bus_error"


class MeteredClient(Client):
    """`Client`, and ``heard`` gets every `Info` as it comes."""

    def __init__(self, caller: Caller, clock: Clock, token: str, meter: Meter, heard: Callable[[Info], None]) -> None:
        super().__init__(caller, clock, token)
        self._meter, self._informed = meter, heard

    async def send(
        self,
        request: InvokeRequest,
        *,
        request_id: str | None = None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
        heard: Heard | None = None,
        progress: HeardProgress | None = None,
        taken_back: bool | None = None,
    ) -> Result:
        """As `Client.send`."""
        try:
            result = await super().send(
                request,
                request_id=request_id,
                deadline_seconds=deadline_seconds,
                heard=heard,
                progress=progress,
                taken_back=taken_back,
            )
        except Fault as fault:
            self._meter.called(request, fault.code)
            raise
        except BusError:
            self._meter.called(request, LOST)
            raise
        except asyncio.CancelledError:
            self._meter.called(request, Cancelled.code)
            raise
        self._meter.called(request, OK, served_by=result.target)
        return result

    async def get_info(self, *, per_target: bool = False) -> Info:
        """As `Client.get_info`."""
        info = await super().get_info(per_target=per_target)
        self._informed(info)
        return info
