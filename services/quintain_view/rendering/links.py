"""The addresses in pages: of a server, or places within a single file. No I/O."""

from __future__ import annotations

from typing import Protocol
from urllib.parse import quote, urlencode


class PageLinks(Protocol):
    """Where the pages of a run are found; None for what cannot be reached from here."""

    is_served: bool

    def runs(self) -> str | None:
        """The list of runs."""

    def run(self, name: str, query: str = "") -> str | None:
        """A run, with filters."""

    def case(self, name: str, case_id: str, query: str = "") -> str | None:
        """A case of a run; ``query`` is the list in which it stands."""

    def raw(self, name: str, case_id: str, trial: str) -> str | None:
        """The stored row of a trial."""

    def compare(self, before: str, after: str, query: str = "") -> str | None:
        """Two runs, case by case."""

    def trajectories(self, name: str, file: str = "", *, page: int | None = None) -> str | None:
        """The recorded runs of hosted targets of a folder, or one of them."""


class ServedLinks:
    """The addresses of the server."""

    is_served = True

    def runs(self) -> str:
        """See `PageLinks`."""
        return "/"

    def run(self, name: str, query: str = "") -> str:
        """See `PageLinks`."""
        return _with_query(f"/run/{quote(name, safe='')}", query)

    def case(self, name: str, case_id: str, query: str = "") -> str:
        """See `PageLinks`."""
        case_query = urlencode({"id": case_id.encode(errors="replace").decode()})
        return _with_query(f"{self.run(name)}/case", "&".join(part for part in (case_query, query) if part))

    def raw(self, name: str, case_id: str, trial: str) -> str:
        """See `PageLinks`."""
        ids = {"id": case_id.encode(errors="replace").decode(), "trial": trial.encode(errors="replace").decode()}
        return f"{self.run(name)}/raw?{urlencode(ids)}"

    def compare(self, before: str, after: str, query: str = "") -> str:
        """See `PageLinks`."""
        return _with_query(f"{self.run(after)}/compare/{quote(before, safe='')}", query)

    def trajectories(self, name: str, file: str = "", *, page: int | None = None) -> str:
        """See `PageLinks`."""
        path = f"{self.run(name)}/trajectories" + (f"/{quote(file, safe='')}" if file else "")
        return _with_query(path, "" if page is None else urlencode({"page": page}))


class FileLinks:
    """The places within one file that holds one or more runs.

    ``cases`` are the cases in it, by run and id, ``trajectories`` the recorded runs of hosted targets, by run and file.
    """

    is_served = False

    def __init__(
        self, cases: dict[tuple[str, str], str], runs: dict[str, str], trajectories: dict[tuple[str, str], str]
    ) -> None:
        self._cases, self._runs, self._trajectories = cases, runs, trajectories

    def runs(self) -> str | None:
        """See `PageLinks`."""
        return None

    def run(self, name: str, query: str = "") -> str | None:
        """A list with filters is not in the file."""
        return None if query or name not in self._runs else f"#{self._runs[name]}"

    def case(self, name: str, case_id: str, query: str = "") -> str | None:
        """The case's part of the file; None if the file leaves it out."""
        place = self._cases.get((name, case_id))
        return None if place is None else f"#{place}"

    def raw(self, name: str, case_id: str, trial: str) -> None:
        """A file holds no rows beside those that it shows."""

    def compare(self, before: str, after: str, query: str = "") -> None:
        """A file holds no comparison."""

    def trajectories(self, name: str, file: str = "", *, page: int | None = None) -> str | None:
        """The trajectory's part of the file; None if the file leaves it out."""
        place = self._trajectories.get((name, file))
        return None if place is None else f"#{place}"


def _with_query(path: str, query: str) -> str:
    return f"{path}?{query}" if query else path
