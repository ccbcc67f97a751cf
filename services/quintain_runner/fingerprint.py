"""Knowing a name again without keeping it: eight bytes for each, where a text takes a hundred. Pure.

Two of a million names are taken for one with a probability below 1 in 10⁷.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from bisect import bisect_left

import numpy as np

_DIGEST_BYTES = 8

#: So many new names are held as they are before they are put in order with the others, and an eighth as many as those.
_FEW = 10_000


def fingerprint(*parts: str | int) -> int:
    """A number for these parts; other parts, or the same ones cut elsewhere, have another."""
    name = str(parts[0]) if len(parts) == 1 else json.dumps(parts)
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(digest)


class Fingerprints:
    """A set of fingerprints that only grows."""

    def __init__(self) -> None:
        self._ordered = array("Q")
        self._recent: set[int] = set()

    def __len__(self) -> int:
        return len(self._ordered) + len(self._recent)

    def __contains__(self, name: int) -> bool:
        if name in self._recent:
            return True
        at = bisect_left(self._ordered, name)
        return at < len(self._ordered) and self._ordered[at] == name

    def add(self, name: int) -> None:
        """Hold this one too; nothing where it is held already."""
        if name in self:
            return
        self._recent.add(name)
        if len(self._recent) >= max(_FEW, len(self._ordered) // 8):
            recent = np.sort(np.fromiter(self._recent, np.uint64, len(self._recent)))
            together = np.concatenate([np.frombuffer(self._ordered, np.uint64), recent])
            # Two runs in order are merged by this kind, not sorted anew.
            together.sort(kind="stable")
            self._ordered, self._recent = array("Q", together.tobytes()), set()
