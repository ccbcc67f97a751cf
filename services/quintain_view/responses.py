"""What the pages of the server share: the folder of a request, a page as a response, and the stream of its changes."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from quintain.web import visible
from quintain_view.folders import RunFolders
from quintain_view.reading import ContentMissing
from quintain_view.render import ServedLinks, render

#: How often a stream looks whether its page changed, and how often it sends a sign of life, in seconds.
POLL_SECONDS, KEEP_ALIVE_POLLS = 0.5, 30

#: A page that changes all the time is loaded again after this time at the earliest, in seconds.
CHANGE_SECONDS = 1.0

LINKS = ServedLinks()


async def requested_folder(folders: RunFolders, request: Request, parameter: str = "name") -> tuple[str, Path]:
    """The run that a request's address names, and its folder. Raises `ContentMissing`."""
    name = request.path_params[parameter]
    folder = await asyncio.to_thread(folders.folder, name)
    if folder is None:
        raise ContentMissing(f"There is no run {visible(name)} in the folders that are shown")
    return name, folder


async def page_response(template: str, status: int = 200, **values: object) -> Response:
    """A template with these values as a response."""
    html = await asyncio.to_thread(functools.partial(render, template, links=LINKS, **values))
    return HTMLResponse(html, status)


def event_stream(
    request: Request, version: Callable[[], str], on_poll: Callable[[], Awaitable[None]] | None = None
) -> Response:
    """A stream with an event "changed" each time that the version is another one than before.

    The page names in ``seen`` the version that it shows: what changed before its stream was open is told at once.
    """

    async def stream() -> AsyncIterator[str]:
        last = request.query_params.get("seen")
        yield "retry: 1000\n\n"
        quiet, next_at = 0, 0.0
        while True:
            now = await asyncio.to_thread(version)
            if now != last and time.monotonic() >= next_at:
                last, quiet, next_at = now, 0, time.monotonic() + CHANGE_SECONDS
                yield "event: changed\ndata: \n\n"
            elif quiet >= KEEP_ALIVE_POLLS:
                quiet = 0
                yield ": still here\n\n"
            await asyncio.sleep(POLL_SECONDS)
            quiet += 1
            if on_poll is not None:
                await on_poll()

    return StreamingResponse(stream(), media_type="text/event-stream")


def version_of(state: object) -> str:
    """A short name of what a page shows, which is another one for another state."""
    return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


def page_number(request: Request) -> int:
    """The page of a list that a request asks for, from 1."""
    return max(1, min(to_number(request.query_params.get("page", ""), 1), 1_000_000))


def to_number(text: str, default: int) -> int:
    """A number of an address, else the default."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default
