"""Fits the garbage collector and the heap of the C library to processes that serve for a long time."""

from __future__ import annotations

import ctypes
import gc

#: How many more objects may be allocated before the collector runs in a service, where calls begin and end by the
#: hundred: the objects of those that run are not looked at again and again. The two older generations are collected at
#: each 6th and 3rd collection of the one before, so that the oldest is collected after about as many new objects as by
#: Python's own thresholds (700, 10, 10).
_SERVICE_GC_THRESHOLDS = (5_000, 5, 2)


def exempt_existing_objects() -> None:
    """Exempt existing objects from garbage collection, so that what is made from now on is collected in time, and make
    collections fit a service.

    All objects are looked at only when those that are new to the oldest generation are a quarter of it. The packages
    of a service are hundreds of thousands of objects: tens of thousands would be kept in cycles before that.
    """
    gc.freeze()
    gc.set_threshold(*_SERVICE_GC_THRESHOLDS)
    gc.collect()  # counts the oldest generation again: it is empty


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
