"""What the rows of before mean for going on: which trials are settled, what the others left, and the counts. Pure.

A dataset may have a million rows: of a graded one only a fingerprint is held, of one that is to be asked again its
mark as well, and never what anybody wrote.
"""

from __future__ import annotations

from quintain_runner.fingerprint import Fingerprints, fingerprint
from quintain_runner.rows import Key, Mark, Row, Status
from quintain_runner.tally import Tally


class Kept:
    """The rows that a folder holds. The latest row of a key counts; after a graded one there is no later one."""

    def __init__(self) -> None:
        self._graded = Fingerprints()
        self._others: dict[int, Mark] = {}
        self._superseded: set[int] = set()
        #: The counts of each target and repeat.
        self.tallies: dict[tuple[str, int], Tally] = {}

    def __len__(self) -> int:
        return len(self._graded) + len(self._others)

    def add(self, row: Row) -> None:
        """Take a row in, in the order of the file."""
        name, mark = _name(row.key), Mark.of(row)
        if name in self._graded:
            self._superseded.add(name)
            return
        tally = self.tallies.setdefault((row.target, row.repeat), Tally(0))
        before = self._others.pop(name, None)
        if before is not None:
            self._superseded.add(name)
            tally.add(before, times=-1)
        tally.add(mark)
        if mark.status is Status.GRADED:
            self._graded.add(name)
        else:
            self._others[name] = mark

    def is_graded(self, key: Key) -> bool:
        """Whether this trial has its score."""
        return bool(len(self._graded)) and _name(key) in self._graded

    def mark(self, key: Key) -> Mark | None:
        """What the latest row of an ungraded trial left; None where there is none."""
        return self._others.get(_name(key)) if self._others else None

    def let_go(self) -> None:
        """Forget which trials are settled, and what the others left: all of them have been passed by."""
        self._graded, self._others = Fingerprints(), {}

    def supersede(self, key: Key) -> None:
        """A newer row of this key was written."""
        self._superseded.add(_name(key))

    @property
    def any_superseded(self) -> bool:
        """Whether some row of the file has a newer one."""
        return bool(self._superseded)

    def has_several(self, key: Key) -> bool:
        """Whether the file has more rows than one of this key."""
        return _name(key) in self._superseded


def _name(key: Key) -> int:
    return fingerprint(*key)
