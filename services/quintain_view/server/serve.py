"""Serves the pages on a port of this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from quintain.runtime.http_server import LOOPBACK, open_listener, serve_uvicorn, url_of
from quintain_view.server.access import AccessKeys
from quintain_view.server.app import build_app
from quintain_view.server.folders import RunFolders
from quintain_view.server.indexing import IndexKeeper


@asynccontextmanager
async def serve_view(paths: Sequence[Path], *, port: int = 0) -> AsyncIterator[str]:
    """Serve the results folders of these paths while the block runs; yields the address to open, with its token.

    ``port`` 0 takes a free one. Raises `ConfigError` if the port is in use or a path is a file.

    Example::

        async with serve_view([Path("runs")]) as address:
            print(address)  # http://127.0.0.1:41234/#token=...
            await asyncio.Event().wait()
    """
    folders, keys, keeper = RunFolders(paths), AccessKeys(), IndexKeeper()
    folders.check()
    listener = open_listener(LOOPBACK, port)
    app = build_app(folders, keys, keeper)
    try:
        # Streams have no end of their own: no grace period.
        async with serve_uvicorn(listener, app, "view", timeout_graceful_shutdown=0):
            yield f"{url_of('http', LOOPBACK, listener)}/#token={keys.token}"
    finally:
        await keeper.close()
