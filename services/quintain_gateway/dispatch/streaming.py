"""The streaming HTTP response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from quintain.errors import Fault
from quintain_gateway.dispatch.dispatch import CallGroup
from quintain_gateway.http.errors import GatewayStopping


class CallStreamingResponse(StreamingResponse):
    """A response body that is written while calls run, and closes them at the end.

    ``encode_fault`` encodes the fault to send as the last bytes if the gateway stops before the body is complete.
    """

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        calls: CallGroup,
        encode_fault: Callable[[Fault], bytes],
        media_type: str,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(chunks, media_type=media_type, headers=headers)
        self._calls, self._encode_fault = calls, encode_fault

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the body until it is complete or the client disconnects."""
        has_started = is_complete = False

        async def tracked_send(message: Message) -> None:
            nonlocal has_started, is_complete
            has_started = True
            is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            await super().__call__(scope, receive, tracked_send)
        except asyncio.CancelledError:
            # The server's grace period is over; nothing else cancels this task.
            if not has_started:
                raise
            await send(
                {"type": "http.response.body", "body": self._encode_fault(GatewayStopping()), "more_body": False}
            )
        finally:
            await self._calls.close(client_left=not is_complete)
