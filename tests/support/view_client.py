"""Clients of ``quintain view`` without a browser: of a running server, and of its pages in this process."""

from __future__ import annotations

import http.client
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2

from quintain_view.folders import IndexKeeper, RunFolders
from quintain_view.responses import AccessKeys
from quintain_view.server import build_app

#: Where the pages in this process are.
ORIGIN = "http://127.0.0.1:8600"


def ask(address: str, method: str, path: str, body: object = None, **headers: str) -> tuple[int, dict[str, str], str]:
    """Status, headers and text of one request to the server of this address."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.netloc, timeout=30)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def enter_cookie(origin: str, token: str) -> tuple[str, str]:
    """The name and the value of the cookie for a token."""
    status, headers, _ = ask(origin, "POST", "/enter", {"token": token}, Origin=origin)
    assert status == 200
    cookie, *attributes = headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=strict"} <= set(attributes)
    name, _, value = cookie.partition("=")
    return name, value


def open_page(address: str, path: str) -> str:
    """The text of a page, for whoever has the printed address."""
    origin, token = address.split("/#token=")
    name, value = enter_cookie(origin, token)
    status, _, text = ask(origin, "GET", path, Cookie=f"{name}={value}")
    assert status == 200, text
    return text


@asynccontextmanager
async def pages_of(runs: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the pages of these runs, who may read and write; ``keeper`` is what keeps their indexes."""
    keys, keeper = AccessKeys(), IndexKeeper()
    transport = httpx2.ASGITransport(app=build_app(RunFolders([runs]), keys, keeper))
    headers = {"cookie": f"quintain-view-8600={keys.cookie}", "origin": ORIGIN}
    async with httpx2.AsyncClient(transport=transport, base_url=ORIGIN, headers=headers) as client:
        client.keeper = keeper
        yield client
    await keeper.close()
