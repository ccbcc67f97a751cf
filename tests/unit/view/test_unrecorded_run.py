"""The pages of a run that has just begun: it has its results file, and `run.json` only later, or an old one."""

from __future__ import annotations

import asyncio
import html
import json
import re
from pathlib import Path

import httpx2
import pytest
from starlette.types import Message

from quintain_view.folders import IndexKeeper, RunFolders
from quintain_view.responses import AccessKeys
from quintain_view.server import build_app
from support.results_folder import graded_row, write_results


async def test_it_is_not_there_yet_and_its_page_is_told_when_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quintain_view.responses.POLL_SECONDS", 0.01)
    folder = tmp_path / "runs" / "begun"
    write_results(folder, [graded_row("1", 1.0)], ended=False)
    record = folder / "run.json"
    record.rename(folder / "later")
    keys, keeper = AccessKeys(), IndexKeeper()
    app = build_app(RunFolders([tmp_path / "runs"]), keys, keeper)
    cookie = f"quintain-view-80={keys.cookie}"
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://127.0.0.1:80", headers={"cookie": cookie}
    ) as client:
        for path in ("/run/begun", "/run/begun/case?id=1", "/run/begun/compare/begun"):
            assert (await client.get(path)).status_code == 503, path
        text = (await client.get("/run/begun")).text
        assert (await client.get("/")).status_code == 200
        (events,) = re.findall(r'data-events="([^"]+)"', text)
        path, _, query = html.unescape(events).partition("?")
        chunks: asyncio.Queue[bytes] = asyncio.Queue()

        async def send(message: Message) -> None:
            chunks.put_nowait(message.get("body", b""))

        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "headers": [(b"host", b"127.0.0.1:80"), (b"cookie", cookie.encode())],
        }
        stream = asyncio.create_task(app(scope, asyncio.Event().wait, send))  # type: ignore[arg-type]
        while b"retry" not in await chunks.get():
            pass
        (folder / "later").rename(record)
        while b"event: changed" not in await chunks.get():
            pass
        assert (await client.get("/run/begun")).status_code == 200
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)
        await keeper.close()


async def test_the_list_counts_the_rows_of_a_run_that_has_not_ended(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "begun"
    write_results(folder, [], ended=False)
    record = json.loads((folder / "run.json").read_text())
    record["totals"]["trials"] = 2700
    (folder / "run.json").write_text(json.dumps(record))
    keys, keeper = AccessKeys(), IndexKeeper()
    app = build_app(RunFolders([tmp_path / "runs"]), keys, keeper)
    headers = {"cookie": f"quintain-view-80={keys.cookie}"}
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:80", headers=headers) as client:
        pages = [(await client.get("/")).text]
        rows = [graded_row(f"{number}", float(number > 0)) for number in range(4)]
        (folder / "results.jsonl").write_text("".join(f"{row.model_dump_json(by_alias=True)}\n" for row in rows))
        await keeper.ensure(folder, wait_seconds=60)
        pages.append((await client.get("/")).text)
    await keeper.close()
    assert ["0/2,700" in page for page in pages] == [True, False]
    assert "4/2,700" in pages[1]
    assert "75 %" in pages[1]
    assert len({seen for page in pages for seen in re.findall(r'data-events="([^"]+)"', page)}) == 2
