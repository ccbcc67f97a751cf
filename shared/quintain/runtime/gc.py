"""Tunes the garbage collector for processes with many live objects."""

from __future__ import annotations

import gc

#: How many more objects may be allocated before the collector runs.
_GC_THRESHOLD = 20_000


def reduce_gc_frequency() -> None:
    """Exempt existing objects from garbage collection and collect less often.

    Collection took a tenth of the CPU time of a large run.
    """
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
