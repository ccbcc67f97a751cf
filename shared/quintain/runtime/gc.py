"""Tunes the garbage collector for processes with many live objects."""

from __future__ import annotations

import gc

#: How many more objects may be allocated before the collector runs.
_GC_THRESHOLD = 20_000

#: The same for a service, where calls begin and end by the hundred: the objects of those that run are not looked at
#: again and again. The two older generations are collected at each 6th and 3rd collection of the one before, so that
#: the oldest is collected after about as many new objects as by Python's own thresholds (700, 10, 10).
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


def reduce_gc_frequency() -> None:
    """Exempt existing objects from garbage collection and collect less often.

    Collection took a tenth of the CPU time of a large run.
    """
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
