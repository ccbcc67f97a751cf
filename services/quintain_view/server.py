"""The server of `quintain view`: pages of results folders on a port of this machine, for the holder of its token."""

from __future__ import annotations

import asyncio
import functools
import json
import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from quintain.errors import ConfigError, QuintainError
from quintain.runtime.http_server import LOOPBACK, open_listener, serve_uvicorn, url_of
from quintain.web import STATIC_TYPES, static_file
from quintain_runner.report.run_file import read_run
from quintain_view.comparison import read_compare_page
from quintain_view.filters import TrialFilter
from quintain_view.folders import UNRECORDED_TEXT, IndexKeeper, RunFolders, is_unrecorded, results_state
from quintain_view.html_report import html_of_runs
from quintain_view.index_reader import RowMoved
from quintain_view.index_writer import IndexProgress
from quintain_view.label_pages import LabelPages, ShownVerdicts
from quintain_view.labels import agreement_tables
from quintain_view.reading import (
    ContentMissing,
    NotIndexed,
    neighbors,
    next_failure,
    read_case_page,
    read_case_rows,
    read_run_page,
    trial_id,
    with_counts,
)
from quintain_view.responses import (
    LINKS,
    POLL_SECONDS,
    AccessCheck,
    AccessKeys,
    event_stream,
    opened_path,
    opening_command,
    page_number,
    page_response,
    read_form,
    requested_folder,
    to_number,
    version_of,
)
from quintain_view.run_list import RunSource, columns_over_time, run_list, trends, with_words
from quintain_view.timeline import MAX_ROW_STEPS, MAX_SHOWN_STEPS
from quintain_view.trajectory_files import has_trajectories
from quintain_view.trajectory_routes import TrajectoryPages


@asynccontextmanager
async def serve_view(paths: Sequence[Path], *, port: int = 0, at: str | None = None) -> AsyncIterator[str]:
    """Serve the results folders of these paths while the block runs; yields the address to open, with its token.

    ``port`` 0 takes a free one; ``at`` is as in `opened_path`. Raises `ConfigError` if the port is in use, a path is
    a file, or the page has no filter that ``at`` names.

    Example::

        async with serve_view([Path("runs")]) as address:
            print(address)  # http://127.0.0.1:41234/#token=...
            await asyncio.Event().wait()
    """
    folders, keys, keeper = RunFolders(paths), AccessKeys(), IndexKeeper()
    folders.check()
    path = "/" if at is None else opened_path(folders, at)
    listener = open_listener(LOOPBACK, port)
    app = build_app(folders, keys, keeper)
    try:
        # Streams have no end of their own: no grace period.
        async with serve_uvicorn(listener, app, "view", timeout_graceful_shutdown=0):
            yield f"{url_of('http', LOOPBACK, listener)}{path}#token={keys.token}"
    finally:
        await keeper.close()


#: The version of a run whose record cannot be read.
_UNRECORDED_VERSION = version_of(None)

_ContentT = TypeVar("_ContentT")


def build_app(folders: RunFolders, keys: AccessKeys, keeper: IndexKeeper) -> ASGIApp:
    """The application, behind the check of who may read."""
    pages = _Pages(folders, keeper)
    app = Starlette(
        routes=[
            Route("/", pages.runs),
            Route("/events", pages.list_events),
            Route("/static/{name}", _static),
            Route("/run/{name}", pages.run),
            Route("/run/{name}/events", pages.run_events),
            Route("/run/{name}/move", pages.move, methods=["GET", "POST"]),
            Route("/run/{name}/case", pages.case),
            Route("/run/{name}/failure", pages.failure),
            Route("/run/{name}/file", pages.file),
            Route("/run/{name}/raw", pages.raw),
            *LabelPages(folders, pages.read, pages.shown).routes,
            Route("/run/{name}/trend", pages.trend),
            Route("/run/{name}/compare", pages.compare_before),
            Route("/run/{name}/compare/{before}", pages.compare),
            *TrajectoryPages(folders).routes,
        ],
        exception_handlers={
            HTTPException: _http_problem,
            QuintainError: _problem,
            ContentMissing: _problem,
            _NotRecorded: _not_recorded,
            NotIndexed: _not_indexed,
            RowMoved: _not_indexed,
        },
    )
    return AccessCheck(app, keys)


class _NotRecorded(Exception):
    """The run has only begun: it has no record, and there is nothing to show of it."""


class _Pages:
    def __init__(self, folders: RunFolders, keeper: IndexKeeper) -> None:
        self._folders, self._keeper = folders, keeper
        self.shown = ShownVerdicts()

    async def runs(self, request: Request) -> Response:
        seen = await asyncio.to_thread(self._list_version)
        sources = await asyncio.to_thread(self._folders.sources)
        await asyncio.gather(*(self._keeper.ensure(Path(source.folder)) for source in sources if source.is_open))
        lines = run_list(await asyncio.to_thread(lambda: [with_counts(source) for source in sources]))
        words = request.query_params.get("q", "")
        found = with_words(lines, words.casefold().split())
        # Where no run has all of the words: how many have each.
        alone = {word: len(with_words(lines, [word.casefold()])) for word in words.split() if not found}
        paths = ", ".join(str(path) for path in self._folders.paths)
        values = {"words": words, "total": len(lines), "trends": trends(lines, found), "folders": paths, "seen": seen}
        return await page_response("runs.html", 200, lines=found, alone=alone, **values)

    async def run(self, request: Request) -> Response:
        name, folder = await self._requested_run(request)
        progress = await self._keeper.ensure(folder)
        seen = await asyncio.to_thread(_run_version, folder, progress)
        trial_filter = TrialFilter.from_query(request.query_params.multi_items())
        page = await asyncio.to_thread(
            functools.partial(read_run_page, folder, trial_filter, progress, page=page_number(request))
        )
        agreements = await asyncio.to_thread(agreement_tables, folder)
        return await page_response(
            "run.html",
            page=page,
            name=name,
            seen=seen,
            agreements=agreements,
            problem=self._keeper.problems.get(folder),
            command=opening_command(folder, request.url.query),
            has_trajectories=has_trajectories(folder),
        )

    async def move(self, request: Request) -> Response:
        """Ask how a run is to be renamed, or whether it is to be deleted, and do it."""
        name, folder = await requested_folder(self._folders, request)
        form = await read_form(request)
        back = problem = ""
        try:
            if request.method == "POST" and form.keys() & {"to", "delete"}:
                moved = await asyncio.to_thread(self._folders.move, folder, form.get("to"))
                back = shlex.join(["mv", str(moved), str(folder.absolute())])
        except ConfigError as error:
            problem = error.message
        status = 409 if problem else 200
        return await page_response("move.html", status, name=name, folder=folder, back=back, problem=problem)

    async def case(self, request: Request) -> Response:
        name, folder = await self._requested_run(request)
        progress = await self._keeper.ensure(folder)
        seen = await asyncio.to_thread(_run_version, folder, progress)
        case_id = request.query_params.get("id", "")
        max_steps = MAX_ROW_STEPS if request.query_params.get("steps") == "all" else MAX_SHOWN_STEPS
        page, notes = await self.read(folder, functools.partial(read_case_page, folder, case_id, max_steps))
        self.shown.add(folder, [case_id])
        trial_filter = TrialFilter.from_query(request.query_params.multi_items())
        place = to_number(request.query_params.get("at", ""), -1)
        before, after = await asyncio.to_thread(neighbors, folder, trial_filter, place)

        def address(neighbor: str | None, at: int) -> str | None:
            return None if neighbor is None else LINKS.case(name, neighbor, trial_filter.to_query(at=at))

        return await page_response(
            "case.html",
            page=page,
            name=name,
            seen=seen,
            title=name,
            raw_case_id=case_id,
            notes=notes,
            trial_filter=trial_filter,
            at=place,
            raw=request.query_params.get("text") == "raw",
            command=opening_command(folder, f"case?{request.url.query}"),
            is_end="end" in request.query_params,
            before=address(before, place - 1),
            after=address(after, place + 1),
        )

    async def failure(self, request: Request) -> Response:
        """The next failure of a list, or the case at this place where there is none."""
        name, folder = await self._requested_run(request)
        trial_filter = TrialFilter.from_query(request.query_params.multi_items())
        place = to_number(request.query_params.get("at", ""), 0)
        step = -1 if "back" in request.query_params else 1
        found = await asyncio.to_thread(next_failure, folder, trial_filter, place, step)
        if found is None:
            raise ContentMissing("This list has no case here")
        case_id, at = found
        end = {"end": 1} if at == place else {}
        return RedirectResponse(LINKS.case(name, case_id, trial_filter.to_query(at=at, **end)), 303)

    async def file(self, request: Request) -> Response:
        """One case as a file of its own."""
        _, folder = await self._requested_run(request)
        await self._keeper.ensure(folder)
        case_id = request.query_params.get("id", "")
        html = await self.read(folder, functools.partial(html_of_runs, [folder], case_id))
        self.shown.add(folder, [case_id])
        return HTMLResponse(html, headers={"Content-Disposition": 'attachment; filename="case.html"'})

    async def raw(self, request: Request) -> Response:
        _, folder = await requested_folder(self._folders, request)
        await self._keeper.ensure(folder)
        rows = await self.read(folder, functools.partial(read_case_rows, folder, request.query_params.get("id", "")))
        wanted = request.query_params.get("trial")
        for row in rows:
            if trial_id(row) == wanted:
                self.shown.add(folder, [row.case_id])
                # ASCII: nothing in it moves a terminal's cursor or turns the direction of text.
                return PlainTextResponse(json.dumps(json.loads(row.to_line()), indent=2))
        raise ContentMissing("This case has no such row")

    async def compare(self, request: Request) -> Response:
        name, folder = await self._requested_run(request)
        before, earlier = await self._requested_run(request, "before")
        for each in (earlier, folder):
            await self._keeper.ensure(each)
        asked = {key: value for key in ("target", "change", "force") if (value := request.query_params.get(key, ""))}
        read = functools.partial(
            read_compare_page,
            *((before, name), (earlier, folder), asked.get("target", ""), asked.get("change", "")),
            force="force" in asked,
            page=page_number(request),
        )
        page = await asyncio.to_thread(read)
        for each in (earlier, folder):
            self.shown.add(each, (case.case_id for case in page.cases))

        def page_query(**more: str | int) -> str:
            return urlencode({**asked, **more})

        return await page_response("compare.html", page=page, names=(before, name), query=page_query)

    async def trend(self, request: Request) -> Response:
        """All runs of the evaluation of this run."""
        name, _ = await self._requested_run(request)
        lines = run_list(await asyncio.to_thread(self._folders.sources))
        table, plots = await asyncio.to_thread(columns_over_time, lines, name)
        return await page_response("trend.html", name=name, table=table, plots=plots)

    async def compare_before(self, request: Request) -> Response:
        """The comparison with the run of the same evaluation before this one."""
        name, _ = await self._requested_run(request)
        lines = run_list(await asyncio.to_thread(self._folders.sources))
        earlier = next((line.earlier for line in lines if line.source.name == name), None)
        if earlier is None:
            raise ContentMissing(
                "There is no earlier run of this evaluation in the folders that are shown: give quintain view the "
                "folder that holds both"
            )
        return RedirectResponse(LINKS.compare(earlier.name, name), 303)

    async def list_events(self, request: Request) -> Response:
        return event_stream(request, self._list_version)

    async def run_events(self, request: Request) -> Response:
        _, folder = await requested_folder(self._folders, request)

        async def on_poll() -> None:
            await self._keeper.ensure(folder, wait_seconds=POLL_SECONDS)

        return event_stream(request, lambda: _run_version(folder, self._keeper.progress_of(folder)), on_poll)

    async def _requested_run(self, request: Request, parameter: str = "name") -> tuple[str, Path]:
        """The run that a request's address names, and its folder. Raises `ContentMissing` and `_NotRecorded`."""
        name, folder = await requested_folder(self._folders, request, parameter)
        if await asyncio.to_thread(is_unrecorded, folder):
            raise _NotRecorded(name)
        return name, folder

    def _list_version(self) -> str:
        sources = self._folders.sources()
        return version_of(
            [
                (source.name, source.run and (source.run.ended_at, source.run.totals), self._open_state(source))
                for source in sources
            ]
        )

    def _open_state(self, source: RunSource) -> object:
        """What changes while a run has not ended: its rows, and how far their index is."""
        folder = Path(source.folder)
        return (results_state(folder), self._keeper.progress_of(folder)) if source.is_open else None

    async def read(self, folder: Path, read: Callable[[], _ContentT]) -> _ContentT:
        """Read rows; if they are not where the index says, make the index anew first."""
        try:
            return await asyncio.to_thread(read)
        except RowMoved:
            self._keeper.forget(folder)
            await self._keeper.ensure(folder, wait_seconds=2)
            return await asyncio.to_thread(read)


def _run_version(folder: Path, progress: IndexProgress | None) -> str:
    try:
        run = read_run(folder)
    except QuintainError:
        return _UNRECORDED_VERSION
    return version_of((results_state(folder), run.ended_at, progress))


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC_TYPES:
        raise HTTPException(404)
    return Response(static_file(name), media_type=STATIC_TYPES[name])


async def _problem(_: Request, error: Exception) -> Response:
    is_missing = isinstance(error, ContentMissing | ConfigError)
    text = error.message if isinstance(error, QuintainError) else str(error)
    title = "Not found" if is_missing else "This cannot be shown"
    return await page_response("problem.html", 404 if is_missing else 500, title=title, text=text)


async def _not_recorded(_: Request, error: Exception) -> Response:
    events = f"{LINKS.run(str(error))}/events?seen={_UNRECORDED_VERSION}"
    return await page_response("problem.html", 503, title="Not yet", text=UNRECORDED_TEXT, events=events)


async def _not_indexed(_: Request, __: Exception) -> Response:
    text = "The results of this run are being read; this page shows them in a moment."
    response = await page_response("problem.html", 503, title="Not yet", text=text)
    response.headers["refresh"] = "1"
    return response


async def _http_problem(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return await page_response("problem.html", status, title=f"{status}", text="This address has no page for that.")
