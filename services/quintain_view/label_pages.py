"""The pages on which a person labels answers: two queues that hide what graders said, and what saves a label.

What graders said of an answer is in no page of a queue until the answer has its label.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import urlencode

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from quintain_runner.results.labels import Chosen, Note, NoteKey, append_note, latest_notes, read_notes
from quintain_runner.results.row import Row
from quintain_view.case_page import CaseOrigin, case_page
from quintain_view.folders import RunFolders
from quintain_view.labels import next_in_queue
from quintain_view.reading import ContentMissing, read_case_rows, trial_id
from quintain_view.responses import LINKS, page_response, read_form, requested_folder

#: The queues, by their name in addresses, and what their page says of them.
QUEUES = {
    Chosen.RANDOM: "Answers in a random order. Only from their labels it is known how good a grader is.",
    Chosen.DISPUTED: "Answers on which graders differ, then those with a score near the one that passes.",
}

_ContentT = TypeVar("_ContentT")


class ReadRows(Protocol):
    """Reads something of a folder in a thread; where rows are not where the index says, the index is made anew."""

    def __call__(self, folder: Path, read: Callable[[], _ContentT]) -> Awaitable[_ContentT]:
        """Return what ``read`` returns."""


class ShownVerdicts:
    """The cases whose verdicts this server has shown."""

    def __init__(self) -> None:
        self._cases = set[tuple[Path, str]]()

    def add(self, folder: Path, case_ids: Iterable[str]) -> None:
        """Note that a page shows what graders said of the answers to these cases."""
        self._cases.update((folder, case_id) for case_id in case_ids)

    def has(self, folder: Path, case_id: str) -> bool:
        """Whether a page showed what graders said of the answers to this case."""
        return (folder, case_id) in self._cases


class LabelPages:
    """The endpoints of labels. ``shown`` is told by other pages which verdicts they show."""

    def __init__(self, folders: RunFolders, read: ReadRows, shown: ShownVerdicts) -> None:
        self._folders, self._read, self._shown = folders, read, shown
        self.routes = [
            Route("/run/{name}/label", self.queue),
            Route("/run/{name}/notes", self.note, methods=["POST"]),
        ]

    async def queue(self, request: Request) -> Response:
        """The next answer of a queue; above it the verdicts on the one that was labeled last."""
        name, folder = await requested_folder(self._folders, request)
        wanted = request.query_params.get("queue", Chosen.RANDOM)
        chosen = next((queue for queue in QUEUES if queue == wanted), Chosen.RANDOM)
        queued = await self._read(folder, functools.partial(next_in_queue, folder, chosen))
        page = None
        if queued is not None:
            page = case_page(queued.row.case_id, [queued.row], CaseOrigin())
        return await page_response(
            "label.html",
            name=name,
            title=name,
            queues=QUEUES,
            chosen=chosen,
            page=page,
            queued=queued,
            trial=None if queued is None else trial_id(queued.row),
            last=await self._last(folder, request),
        )

    async def _last(self, folder: Path, request: Request) -> dict[str, object] | None:
        """The answer that the page before was about, with its label and its verdicts; None if it has no label."""
        case_id, trial = request.query_params.get("case", ""), request.query_params.get("trial", "")
        row = await self._row(folder, case_id, trial) if trial else None
        if row is None or (note := (await _notes_of(folder)).get(NoteKey.of(row))) is None:
            return None
        (answer,) = case_page(case_id, [row], CaseOrigin()).answers
        return {"case_id": case_id, "note": note, "verdicts": answer.verdicts}

    async def note(self, request: Request) -> Response:
        """Save a label or a note."""
        name, folder = await requested_folder(self._folders, request)
        form = await read_form(request)
        case_id, trial = form.get("id", ""), form.get("trial", "")
        row = await self._row(folder, case_id, trial)
        if row is None:
            raise ContentMissing("This case has no such row")
        chosen = next((queue for queue in QUEUES if queue == form.get("queue")), Chosen.PICKED)
        key = NoteKey.of(row)
        noted = await _notes_of(folder)
        try:
            note = Note(
                **key._asdict(),
                passed={"true": True, "false": False}.get(form.get("pass", "")),
                text=form.get("text", ""),
                chosen=chosen,
                # After a label its verdicts are shown, by this server or an earlier one.
                verdicts_shown=self._shown.has(folder, case_id) or key in noted or chosen is Chosen.PICKED,
            )
        except ValidationError:
            raise HTTPException(413) from None
        await asyncio.to_thread(append_note, folder, note)
        if chosen is Chosen.PICKED:
            return RedirectResponse(request.headers.get("referer") or LINKS.case(name, case_id), 303)
        query = urlencode({"queue": chosen, "case": case_id, "trial": trial})
        return RedirectResponse(LINKS.label(name, query), 303)

    async def _row(self, folder: Path, case_id: str, trial: str) -> Row | None:
        rows = await self._read(folder, functools.partial(read_case_rows, folder, case_id))
        return next((row for row in rows if trial_id(row) == trial), None)


async def _notes_of(folder: Path) -> dict[NoteKey, Note]:
    return await asyncio.to_thread(lambda: latest_notes(read_notes(folder)))
