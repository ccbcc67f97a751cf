"""The endpoints of trajectories: their list, one in two lanes, and the streams of both."""

from __future__ import annotations

import asyncio
import functools
import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quintain_view.folders import RunFolders
from quintain_view.responses import event_stream, page_number, page_response, requested_folder, to_number, version_of
from quintain_view.trajectory_files import list_trajectories, list_version, read_trajectory, trajectory_version
from quintain_view.trajectory_page import STATE_NOTES, trajectory_page


class TrajectoryPages:
    """The endpoints of trajectories."""

    def __init__(self, folders: RunFolders) -> None:
        self._folders = folders
        self.routes = [
            Route("/run/{name}/trajectories", self.list),
            Route("/run/{name}/trajectories/events", self.list_events),
            Route("/run/{name}/trajectories/{file}", self.trajectory),
            Route("/run/{name}/trajectories/{file}/events", self.trajectory_events),
        ]

    async def list(self, request: Request) -> Response:
        """The recorded runs of hosted targets in a folder, the newest first."""
        name, folder = await requested_folder(self._folders, request)
        page = page_number(request)
        seen = version_of(await asyncio.to_thread(list_version, folder))
        entries, has_next = await asyncio.to_thread(functools.partial(list_trajectories, folder, page=page))
        return await page_response(
            "trajectories.html", name=name, entries=entries, page=page, has_next=has_next, seen=seen
        )

    async def trajectory(self, request: Request) -> Response:
        """One run in two lanes."""
        name, folder = await requested_folder(self._folders, request)
        file = request.path_params["file"]
        seen = version_of(await asyncio.to_thread(trajectory_version, folder, file))
        record = await asyncio.to_thread(read_trajectory, folder, file)
        wanted = to_number(request.query_params.get("page", ""), 0)
        page = await asyncio.to_thread(trajectory_page, record, int(time.time() * 1000), wanted or None)
        return await page_response(
            "trajectory.html", name=name, page=page, file=file, seen=seen, note=STATE_NOTES[page.state]
        )

    async def list_events(self, request: Request) -> Response:
        """The stream of the list."""
        _, folder = await requested_folder(self._folders, request)
        return event_stream(request, lambda: version_of(list_version(folder)))

    async def trajectory_events(self, request: Request) -> Response:
        """The stream of one run."""
        _, folder = await requested_folder(self._folders, request)
        file = request.path_params["file"]
        return event_stream(request, lambda: version_of(trajectory_version(folder, file)))
