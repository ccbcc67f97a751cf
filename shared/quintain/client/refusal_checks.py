"""Asks the metadata service about sessions whose calls were refused, once for many calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from quintain.contracts.session import Info
from quintain.errors import BusError, Fault, NoAnswer, Unauthorized

#: How long a token that the metadata service refused is not asked about again, in seconds. Only a session that had
#: expired and gets a later end is usable again.
REFUSED_SECONDS = 1.0


class RefusalChecks:
    """Reads the information of sessions whose calls were refused; several transports of one `RpcClient` may share it.

    An answer says nothing of a refusal that came after its request was sent: calls that are refused while a request is
    under way share the next one. If the request itself is refused, no other authorization helps, and none is asked for.
    """

    def __init__(self) -> None:
        #: Token → the request that is under way.
        self._requests: dict[str, asyncio.Task[None]] = {}
        #: Token → until when it counts as refused, on the loop's clock.
        self._refused_until: dict[str, float] = {}

    async def check(self, token: str, read_info: Callable[[], Awaitable[Info]], timeout_seconds: float) -> None:
        """Wait until ``read_info`` was called after now, or the token is known to be refused. Raises nothing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(timeout_seconds, 0)):
                if (earlier := self._requests.get(token)) is not None:
                    await asyncio.wait({earlier})
                if asyncio.get_running_loop().time() < self._refused_until.get(token, 0):
                    return
                if token not in self._requests:
                    self._requests[token] = asyncio.create_task(self._ask(token, read_info), name="check a refusal")
                await asyncio.wait({self._requests[token]})

    async def _ask(self, token: str, read_info: Callable[[], Awaitable[Info]]) -> None:
        try:
            await read_info()
        except Unauthorized:
            now = asyncio.get_running_loop().time()
            self._refused_until = {name: until for name, until in self._refused_until.items() if until > now}
            self._refused_until[token] = now + REFUSED_SECONDS
        except (Fault, BusError, NoAnswer):
            pass  # The call is refused as it was.
        finally:
            del self._requests[token]
