"""Large modules that few commands need: declared at the top of a module, imported at their first use."""

from __future__ import annotations

import importlib
from typing import Any


class LazyModule:
    """Stands for a module until one of its names is read.

    A type checker sees the module itself. Use it for what takes long to import, never to hide a circle of imports.

    Example::

        if TYPE_CHECKING:
            import numpy as np
        else:
            np = LazyModule("numpy")
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        """Import the module if it is not, and return this attribute of it."""
        return getattr(importlib.import_module(self._name), attribute)
