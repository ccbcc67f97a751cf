"""The garbage collector of a process with much to do: what was loaded to begin with is looked through no more."""

from __future__ import annotations

import gc

#: How many objects more there may be before it looks for cycles.
_COLLECTED_AFTER = 20_000


def collect_seldom() -> None:
    """Let what is loaded by now stay. To look through it again and again took a tenth of a large run's time."""
    gc.freeze()
    gc.set_threshold(_COLLECTED_AFTER)
