"""An answer that is written while its calls go on: whoever leaves takes them back, whoever stays hears an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from quintain.errors import Fault
from quintain_gateway.asking import Asking
from quintain_gateway.refusals import Stopping


class Flow(StreamingResponse):
    """A body in pieces. ``last_word`` writes the fault of an answer that this gateway cannot bring to its end."""

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        calls: Asking,
        last_word: Callable[[Fault], bytes],
        media_type: str,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(pieces, media_type=media_type, headers=headers)
        self._calls, self._last_word = calls, last_word

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write it, for as long as the client is there."""
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await super().__call__(scope, receive, watched)
        except asyncio.CancelledError:
            # The server's grace is over; nobody else cancels this task.
            if not begun:
                raise
            await send({"type": "http.response.body", "body": self._last_word(Stopping()), "more_body": False})
        finally:
            await self._calls.close()
