"""64-bit hashes of keys, and a memory-efficient set of them. No I/O.

The probability that two of a million keys have the same hash is below 1 in 10⁷.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from bisect import bisect_left

import numpy as np

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
