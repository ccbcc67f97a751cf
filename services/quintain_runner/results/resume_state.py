"""What the stored rows mean for a resumed run: which trials are graded, which are retried, and the counts. No I/O.

Holds a hash for each graded row and a few numbers for each other row, so a million rows fit in memory.
"""

from __future__ import annotations

from quintain_runner.results.counts import RowTally
from quintain_runner.results.fingerprint import FingerprintSet, fingerprint
from quintain_runner.results.row import Row, RowKey, RowStats, RowStatus


class ResumeState:
    """The rows that a folder holds. The latest row of a key counts; after a graded one there is no later one."""

    def __init__(self) -> None:
        self._graded = FingerprintSet()
        self._ungraded: dict[int, RowStats] = {}
        self._superseded: set[int] = set()
        #: The counts of each target and repeat.
        self.tallies: dict[tuple[str, int], RowTally] = {}

    def __len__(self) -> int:
        return len(self._graded) + len(self._ungraded)

    def add_row(self, row: Row) -> None:
        """Take a row in, in the order of the file."""
        name, mark = _key_hash(row.key), RowStats.of(row)
        if name in self._graded:
            self._superseded.add(name)
            return
        tally = self.tallies.setdefault((row.target, row.repeat), RowTally(0))
        previous = self._ungraded.pop(name, None)
        if previous is not None:
            self._superseded.add(name)
            tally.add(previous, times=-1)
        tally.add(mark)
        if mark.status is RowStatus.GRADED:
            self._graded.add(name)
        else:
            self._ungraded[name] = mark

    def is_graded(self, key: RowKey) -> bool:
        """Whether this trial has its score."""
        return bool(len(self._graded)) and _key_hash(key) in self._graded

    def ungraded_row(self, key: RowKey) -> RowStats | None:
        """What the latest row of an ungraded trial left; None where there is none."""
        return self._ungraded.get(_key_hash(key)) if self._ungraded else None

    def clear(self) -> None:
        """Forget which trials are settled, and what the others left: all of them have been passed by."""
        self._graded, self._ungraded = FingerprintSet(), {}

    def mark_superseded(self, key: RowKey) -> None:
        """A newer row of this key was written."""
        self._superseded.add(_key_hash(key))

    @property
    def has_superseded(self) -> bool:
        """Whether some row of the file has a newer one."""
        return bool(self._superseded)

    def has_several_rows(self, key: RowKey) -> bool:
        """Whether the file has more rows than one of this key."""
        return _key_hash(key) in self._superseded


def _key_hash(key: RowKey) -> int:
    return fingerprint(*key)
