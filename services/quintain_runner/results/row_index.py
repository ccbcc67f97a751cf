"""Where the latest row of each key stands in a results file: 16 bytes for each row. No I/O."""

from __future__ import annotations

from array import array
from bisect import bisect_left

import numpy as np

from quintain_runner.results.key_hash import key_hash
from quintain_runner.results.row import RowKey


def _hash_of(key: RowKey) -> int:
    """The hash of a key."""
    return key_hash(key.case_id, key.target, key.repeat, *(() if key.prompt is None else (key.prompt,)))


class RowIndex:
    """The offsets of the latest rows, by the hashes of their keys. Rows are added in the file's order."""

    def __init__(self) -> None:
        self._keys, self._offsets = array("Q"), array("Q")
        self._is_sorted = True
        self._has_superseded = False

    def __len__(self) -> int:
        self._sort()
        return len(self._keys)

    def add(self, key: RowKey, offset: int) -> None:
        """A row of this key stands at this offset."""
        self._keys.append(_hash_of(key))
        self._offsets.append(offset)
        self._is_sorted = False

    def offset_of(self, key: RowKey) -> int | None:
        """Where the latest row of this key stands; None where there is none."""
        self._sort()
        if not self._keys:
            return None
        name = _hash_of(key)
        position = bisect_left(self._keys, name)
        return self._offsets[position] if position < len(self._keys) and self._keys[position] == name else None

    @property
    def has_superseded(self) -> bool:
        """Whether some row of the file has a newer one."""
        self._sort()
        return self._has_superseded

    def _sort(self) -> None:
        if self._is_sorted:
            return
        keys, offsets = np.frombuffer(self._keys, np.uint64), np.frombuffer(self._offsets, np.uint64)
        order = np.lexsort((offsets, keys))
        keys, offsets = keys[order], offsets[order]
        is_latest = np.append(keys[1:] != keys[:-1], True)
        self._has_superseded = self._has_superseded or not bool(is_latest.all())
        self._keys, self._offsets = array("Q", keys[is_latest].tobytes()), array("Q", offsets[is_latest].tobytes())
        self._is_sorted = True
