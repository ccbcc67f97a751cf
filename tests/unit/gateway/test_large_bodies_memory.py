"""The memory for large bodies, which all requests share."""

from __future__ import annotations

import pytest

from quintain_gateway.http.context import RequestContext
from quintain_gateway.http.errors import LargeBodiesBusy
from quintain_gateway.http.large_bodies import LargeBodies


def test_memory_is_taken_until_the_request_ends() -> None:
    ended: list[str] = []
    bodies, first = LargeBodies(10), RequestContext("1", on_end=lambda: ended.append("1"))
    bodies.take(first, 6)
    with pytest.raises(LargeBodiesBusy) as busy:
        bodies.take(RequestContext("2"), 5)
    assert (busy.value.status, busy.value.retryable) == (503, True)
    assert first.on_end is not None
    first.on_end()
    assert ended == ["1"]
    bodies.take(RequestContext("3"), 10)
