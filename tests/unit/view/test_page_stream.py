"""The stream of a page of results: what it tells of a page that changes all the time."""

from __future__ import annotations

import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from quintain_view.responses import event_stream


class _Ended(Exception):
    """Nothing happens any more."""


@pytest.mark.parametrize(("pause_seconds", "told"), [(0, 3), (3600, 1)])
async def test_a_page_that_changes_all_the_time_is_told_so_after_a_pause(
    monkeypatch: pytest.MonkeyPatch, pause_seconds: float, told: int
) -> None:
    monkeypatch.setattr("quintain_view.responses.POLL_SECONDS", 0)
    monkeypatch.setattr("quintain_view.responses.CHANGE_SECONDS", pause_seconds)
    versions = ["1", "2", "2", "3"]

    async def on_poll() -> None:
        if not versions:
            raise _Ended

    request = Request({"type": "http", "path": "/", "headers": [], "query_string": b"seen=0"})
    response = event_stream(request, lambda: versions.pop(0), on_poll)
    assert isinstance(response, StreamingResponse)
    chunks = []
    with pytest.raises(_Ended):
        async for chunk in response.body_iterator:
            chunks.append(chunk)
    assert chunks == ["retry: 1000\n\n", *["event: changed\ndata: \n\n"] * told]
