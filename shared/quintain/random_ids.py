"""Random names, many at a time: a call takes several, and asking the kernel for each lets other threads in between."""

from __future__ import annotations

import os

#: How much randomness one name has, and how much is asked for at once, in bytes.
NAME_BYTES = 16
BLOCK_BYTES = 256 * NAME_BYTES


class RandomIds:
    """Names that nobody can guess. Not to be shared by a process and its fork: both would go on alike."""

    def __init__(self) -> None:
        self._left: list[bytes] = []

    def next(self) -> str:
        """A name: 32 hexadecimal digits."""
        if not self._left:
            block = os.urandom(BLOCK_BYTES)
            self._left = [block[at : at + NAME_BYTES] for at in range(0, BLOCK_BYTES, NAME_BYTES)]
        return self._left.pop().hex()
