"""The pages of a run that has just begun or goes on, and the stream that tells them of changes."""

from __future__ import annotations

import asyncio
import html
import json
import re
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.types import Message

from quintain_view.responses import event_stream
from support.results_folder import graded_row, write_results
from support.view_client import pages_of


async def test_a_page_without_its_record_is_told_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quintain_view.responses.POLL_SECONDS", 0.01)
    folder = tmp_path / "runs" / "begun"
    write_results(folder, [graded_row("1", 1.0)], ended=False)
    record = folder / "run.json"
    record.rename(folder / "later")
    async with pages_of(tmp_path / "runs") as client:
        for path in ("/run/begun", "/run/begun/case?id=1", "/run/begun/compare/begun"):
            assert (await client.get(path)).status_code == 503, path
        text = (await client.get("/run/begun")).text
        assert (await client.get("/")).status_code == 200
        (events,) = re.findall(r'data-events="([^"]+)"', text)
        path, _, query = html.unescape(events).partition("?")
        chunks: asyncio.Queue[bytes] = asyncio.Queue()

        async def send(message: Message) -> None:
            chunks.put_nowait(message.get("body", b""))

        headers = [(b"host", b"127.0.0.1:8600"), (b"cookie", client.headers["cookie"].encode())]
        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "root_path": ""}
        scope |= {"query_string": query.encode(), "scheme": "http", "headers": headers}
        stream = asyncio.create_task(client._transport.app(scope, asyncio.Event().wait, send))
        while b"retry" not in await chunks.get():
            pass
        (folder / "later").rename(record)
        while b"event: changed" not in await chunks.get():
            pass
        assert (await client.get("/run/begun")).status_code == 200
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)


async def test_the_list_counts_the_rows_of_a_run_that_has_not_ended(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "begun"
    write_results(folder, [], ended=False)
    record = json.loads((folder / "run.json").read_text())
    record["totals"]["trials"] = 2700
    (folder / "run.json").write_text(json.dumps(record))
    async with pages_of(tmp_path / "runs") as client:
        pages = [(await client.get("/")).text]
        rows = [graded_row(f"{number}", float(number > 0)) for number in range(4)]
        (folder / "results.jsonl").write_text("".join(f"{row.model_dump_json(by_alias=True)}\n" for row in rows))
        await client.keeper.ensure(folder, wait_seconds=60)
        pages.append((await client.get("/")).text)
    assert ["0/2,700" in page for page in pages] == [True, False]
    assert "4/2,700" in pages[1]
    assert "75 %" in pages[1]
    assert len({seen for page in pages for seen in re.findall(r'data-events="([^"]+)"', page)}) == 2


class _Ended(Exception):
    """Nothing happens any more."""


@pytest.mark.parametrize(("pause_seconds", "told"), [(0, 3), (3600, 1)])
async def test_a_page_that_changes_all_the_time_is_told_at_times(
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
    chunks = []
    with pytest.raises(_Ended):
        async for chunk in response.body_iterator:
            chunks.append(chunk)
    assert chunks == ["retry: 1000\n\n", *["event: changed\ndata: \n\n"] * told]
