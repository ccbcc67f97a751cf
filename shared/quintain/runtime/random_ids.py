"""Random ids, generated in blocks: a system call per id would release the GIL each time."""

from __future__ import annotations

import os

#: How much randomness one name has, and how much is asked for at once, in bytes.
NAME_BYTES = 16
BLOCK_BYTES = 256 * NAME_BYTES


class RandomIds:
    """Names that nobody can guess. Not to be shared by a process and its fork: both would go on alike."""

    def __init__(self) -> None:
        self._unused: list[bytes] = []

    def next(self) -> str:
        """A name: 32 hexadecimal digits."""
        if not self._unused:
            block = os.urandom(BLOCK_BYTES)
            self._unused = [block[offset : offset + NAME_BYTES] for offset in range(0, BLOCK_BYTES, NAME_BYTES)]
        return self._unused.pop().hex()
