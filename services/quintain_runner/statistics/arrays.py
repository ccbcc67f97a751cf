"""NumPy, imported when something is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain.runtime.lazy_module import LazyModule

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np, npt = LazyModule("numpy"), LazyModule("numpy.typing")

__all__ = ["np", "npt"]
