"""Limits the memory of request bodies that are larger than the default."""

from __future__ import annotations

from collections.abc import Callable

from quintain_gateway.http.context import RequestContext
from quintain_gateway.http.errors import LargeBodiesBusy

#: When a refused request may be sent again, in milliseconds.
RETRY_AFTER_MS = 1000


class LargeBodies:
    """The memory for large bodies, in bytes, which all requests share."""

    def __init__(self, max_bytes: int) -> None:
        self._free_bytes = max_bytes

    def take(self, context: RequestContext, size: int) -> None:
        """Take the memory for one body until its request ends. Raises `LargeBodiesBusy` if there is not enough."""
        if size > self._free_bytes:
            raise LargeBodiesBusy(retry_after_ms=RETRY_AFTER_MS)
        self._free_bytes -= size
        context.on_end = self._releasing(size, context.on_end)

    def _releasing(self, size: int, then: Callable[[], None] | None) -> Callable[[], None]:
        def release() -> None:
            self._free_bytes += size
            if then is not None:
                then()

        return release
