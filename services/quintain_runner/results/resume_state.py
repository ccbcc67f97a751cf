"""What the stored rows mean for a resumed run: which trials are graded, which are repeated, and the counts. No I/O.

Holds a hash for each graded row and a few numbers for each other row, so a million rows fit in memory.
"""

from __future__ import annotations

from quintain_runner.results.counts import RowTally
from quintain_runner.results.fingerprint import FingerprintSet, fingerprint
from quintain_runner.results.row import Row, RowKey, RowStats, RowStatus


class ResumeState:
    """The state of the rows in a results folder.

    Of several rows with the same key the latest is current, but a graded row is final: later rows of its key are
    ignored.
    """

    def __init__(self) -> None:
        self._graded = FingerprintSet()
        self._ungraded: dict[int, RowStats] = {}
        self._superseded: set[int] = set()
        #: The counts of current rows by target and repeat.
        self.tallies: dict[tuple[str, int], RowTally] = {}

    def __len__(self) -> int:
        """The number of keys with a row."""
        return len(self._graded) + len(self._ungraded)

    def add_row(self, row: Row) -> None:
        """Add a stored row; rows must be added in the order of the file."""
        key_hash, stats = _key_hash(row.key), RowStats.of(row)
        if key_hash in self._graded:
            self._superseded.add(key_hash)
            return
        tally = self.tallies.setdefault((row.target, row.repeat), RowTally(0))
        previous = self._ungraded.pop(key_hash, None)
        if previous is not None:
            self._superseded.add(key_hash)
            tally.add(previous, times=-1)
        tally.add(stats)
        if stats.status is RowStatus.GRADED:
            self._graded.add(key_hash)
        else:
            self._ungraded[key_hash] = stats

    def is_graded(self, key: RowKey) -> bool:
        """Whether this trial has a graded row."""
        return bool(len(self._graded)) and _key_hash(key) in self._graded

    def ungraded_row(self, key: RowKey) -> RowStats | None:
        """The statistics of the current row of a trial without a graded row, or None if it has no row."""
        return self._ungraded.get(_key_hash(key)) if self._ungraded else None

    def clear(self) -> None:
        """Release the memory of all keys, once every trial has been scheduled; counts and superseded keys are kept."""
        self._graded, self._ungraded = FingerprintSet(), {}

    def mark_superseded(self, key: RowKey) -> None:
        """Record that a newer row of this key was written."""
        self._superseded.add(_key_hash(key))

    @property
    def has_superseded(self) -> bool:
        """Whether the file contains superseded rows."""
        return bool(self._superseded)

    def has_several_rows(self, key: RowKey) -> bool:
        """Whether the file contains more than one row of this key."""
        return _key_hash(key) in self._superseded


def _key_hash(key: RowKey) -> int:
    """The 64-bit hash of a row's key."""
    return fingerprint(*key)
