"""Where the rows of a results file are, and sets of cases, in a few bytes for each key."""

from __future__ import annotations

import hashlib
import json
from array import array
from bisect import bisect_left

import numpy as np

from quintain_runner.results.row import RowKey

_DIGEST_BYTES = 8

#: New hashes are collected in a set until there are this many, or an eighth of the sorted ones, and then merged into
#: the sorted array.
_MIN_MERGE_SIZE = 10_000


def key_hash(*parts: str | int) -> int:
    """The 64-bit BLAKE2b hash of a tuple of parts; ``("a", "b")`` and ``("ab",)`` have different hashes."""
    key = str(parts[0]) if len(parts) == 1 else json.dumps(parts)
    digest = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(digest)


class KeyHashSet:
    """A set of key hashes that only grows and takes about 8 bytes for each."""

    def __init__(self) -> None:
        self._sorted = array("Q")
        self._recent: set[int] = set()

    def __len__(self) -> int:
        """The number of hashes."""
        return len(self._sorted) + len(self._recent)

    def __contains__(self, value: int) -> bool:
        """Whether the set contains this hash."""
        if value in self._recent:
            return True
        index = bisect_left(self._sorted, value)
        return index < len(self._sorted) and self._sorted[index] == value

    def add(self, value: int) -> None:
        """Add a hash; it may be in the set already."""
        if value in self:
            return
        self._recent.add(value)
        if len(self._recent) >= max(_MIN_MERGE_SIZE, len(self._sorted) // 8):
            recent = np.sort(np.fromiter(self._recent, np.uint64, len(self._recent)))
            merged = np.concatenate([np.frombuffer(self._sorted, np.uint64), recent])
            # The stable sort merges two sorted sequences in linear time.
            merged.sort(kind="stable")
            self._sorted, self._recent = array("Q", merged.tobytes()), set()


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
