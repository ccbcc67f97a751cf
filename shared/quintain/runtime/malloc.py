"""Keeps the heap of the C library small in processes that read from sockets for a long time."""

from __future__ import annotations

import ctypes

#: Blocks of at least so many bytes are mapped each by itself, and returned to the system when they are freed.
MAPPED_BYTES = 64 * 1024

#: The number of this parameter in glibc's ``malloc.h``.
_M_MMAP_THRESHOLD = -3


def map_large_blocks() -> bool:
    """Keep large blocks out of the heap; returns False where the C library is not glibc, and nothing was changed.

    asyncio reads a socket into a block of 256 KiB and cuts it to what came. glibc maps such blocks only until the first
    of them is freed, and takes them from its heap after that: what is kept of them lies between them, so that the next
    ones do not fit there, and the heap grows. It is a setting of the whole process, so it is not for those that run
    other people's code, which may depend on how quickly it gets such blocks.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES) == 1
