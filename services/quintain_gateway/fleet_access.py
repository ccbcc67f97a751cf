"""Who looks at the fleet, and the one watch that all of them share, which runs only while somebody looks."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from quintain.bus.base import Bus
from quintain.client.admin import Admin
from quintain.client.amqp_transport import AmqpTransport
from quintain.errors import BusError, Unauthorized
from quintain.fleet.fleet_figures import FleetFigures
from quintain.fleet.watch import FleetWatch
from quintain.rpc.requests import RpcClient
from quintain.web import is_same_text

#: The watch ends when nobody has looked for so long, in seconds; a page that is open looks all the time.
IDLE_SECONDS = 30.0

#: For how long a page waits for the first state of the fleet, in seconds.
FIRST_STATE_SECONDS = 5.0

#: A cookie is valid for so long after it was used last, in seconds, and so many are.
COOKIE_SECONDS, MAX_COOKIES = 12 * 3600.0, 100


class FleetAccess:
    """Checks who may look at the fleet, and gives its figures.

    A token is the administrator's if the metadata service says so. It is kept in memory while its cookies are valid:
    the watch asks for states with it. Cookies are random, and end with the gateway or with the token.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._token = ""
        self._cookies: dict[str, float] = {}
        self._watch: FleetWatch | None = None
        self._holder: asyncio.Task[None] | None = None
        self._looked_at = 0.0
        self._lock = asyncio.Lock()
        #: Set when the gateway stops: streams end then.
        self.is_closing = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer while the context is open; at its end streams end, and the watch."""
        try:
            yield
        finally:
            self.is_closing = True
            await self._end_watch()

    async def enter(self, token: str) -> str:
        """Return a cookie for the holder of the admin token. Raises `Unauthorized`, or what `figures_for` raises."""
        await self.figures_for(token)
        now = time.monotonic()
        # The cookie that was used first makes room.
        valid = sorted((used_at, one) for one, used_at in self._cookies.items() if now - used_at < COOKIE_SECONDS)
        self._cookies = {one: used_at for used_at, one in valid[-(MAX_COOKIES - 1) :]}
        cookie = secrets.token_urlsafe(24)
        self._cookies[cookie] = now
        return cookie

    async def figures_for(self, token: str) -> FleetFigures:
        """Return the figures for a token. Raises `Unauthorized` for one that is not the administrator's, `BusError`."""
        if not token:
            raise Unauthorized
        if not is_same_text(token, self._token):
            await self._verify(token)
            async with self._lock:
                await self._end_watch()
                self._token, self._cookies = token, {}
        return await self._figures()

    async def figures(self, cookie: str) -> FleetFigures:
        """Return the figures for a cookie. Raises `Unauthorized` for one that is not valid, `BusError`."""
        now = time.monotonic()
        if now - self._cookies.get(cookie, -COOKIE_SECONDS) >= COOKIE_SECONDS:
            raise Unauthorized
        self._cookies[cookie] = now
        return await self._figures()

    async def _figures(self) -> FleetFigures:
        self._looked_at = time.monotonic()
        async with self._lock:
            watch = self._watch or await self._start_watch()
        await watch.wait_state(FIRST_STATE_SECONDS)
        if watch.is_refused:
            # The token was changed: nobody who came with the old one may look any more.
            async with self._lock:
                self._token, self._cookies = "", {}
                await self._end_watch()
            raise Unauthorized
        return watch.figures()

    async def _verify(self, token: str) -> None:
        async with _started_client(self._bus) as rpc_client:
            await Admin(AmqpTransport(rpc_client, token)).fleet()

    async def _start_watch(self) -> FleetWatch:
        started: asyncio.Future[FleetWatch] = asyncio.get_running_loop().create_future()
        self._holder = asyncio.create_task(self._hold(self._token, started), name="fleet watch")
        return await started

    async def _end_watch(self) -> None:
        if self._holder is not None:
            self._holder.cancel()
            await asyncio.gather(self._holder, return_exceptions=True)
        self._watch = None

    async def _hold(self, token: str, started: asyncio.Future[FleetWatch]) -> None:
        """Watch the fleet until nobody looks any more."""
        try:
            # A client of its own: what it waits for does not count as a call of the gateway.
            async with _started_client(self._bus) as rpc_client:
                watch = FleetWatch(self._bus, rpc_client, Admin(AmqpTransport(rpc_client, token)))
                async with watch.running():
                    self._watch = watch
                    started.set_result(watch)
                    await self._wait_idle()
                    self._watch = None
        except BusError as error:
            if not started.done():
                started.set_exception(error)
        finally:
            started.cancel()

    async def _wait_idle(self) -> None:
        while True:
            left_seconds = self._looked_at + IDLE_SECONDS - time.monotonic()
            if left_seconds <= 0:
                return
            await asyncio.sleep(left_seconds)


@asynccontextmanager
async def _started_client(bus: Bus) -> AsyncIterator[RpcClient]:
    rpc_client = RpcClient(bus)
    await rpc_client.start()
    try:
        yield rpc_client
    finally:
        with contextlib.suppress(BusError):
            await rpc_client.close()
