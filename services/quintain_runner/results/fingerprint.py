"""Hashes of 64 bits for keys, and a compact set of them. No I/O.

The probability that two of a million keys have the same hash is below 1 in 10⁷.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from bisect import bisect_left

import numpy as np

_DIGEST_BYTES = 8

#: So many new names are held as they are before they are put in order with the others, and an eighth as many as those.
_MIN_MERGE_SIZE = 10_000


def fingerprint(*parts: str | int) -> int:
    """A number for these parts; other parts, or the same ones cut elsewhere, have another."""
    name = str(parts[0]) if len(parts) == 1 else json.dumps(parts)
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(digest)


class FingerprintSet:
    """A set of fingerprints that only grows."""

    def __init__(self) -> None:
        self._sorted = array("Q")
        self._recent: set[int] = set()

    def __len__(self) -> int:
        return len(self._sorted) + len(self._recent)

    def __contains__(self, name: int) -> bool:
        if name in self._recent:
            return True
        index = bisect_left(self._sorted, name)
        return index < len(self._sorted) and self._sorted[index] == name

    def add(self, name: int) -> None:
        """Hold this one too; nothing where it is held already."""
        if name in self:
            return
        self._recent.add(name)
        if len(self._recent) >= max(_MIN_MERGE_SIZE, len(self._sorted) // 8):
            recent = np.sort(np.fromiter(self._recent, np.uint64, len(self._recent)))
            merged = np.concatenate([np.frombuffer(self._sorted, np.uint64), recent])
            # Two runs in order are merged by this kind, not sorted anew.
            merged.sort(kind="stable")
            self._sorted, self._recent = array("Q", merged.tobytes()), set()
