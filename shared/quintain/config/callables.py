"""Imports a callable given as ``module:name``, with modules next to the configuration file importable."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quintain.errors import ConfigError


def load_callable(reference: str, folder: Path, *, kind: str = "function") -> Callable[..., Any]:
    """Import ``module:name``, looking for the module in ``folder`` first; ``kind`` is for the text of `ConfigError`."""
    module_name, _, name = reference.partition(":")
    # As for a script: the folder comes first in sys.path and stays there, because the module may import others lazily.
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        # A module may raise anything while it is imported.
        raise ConfigError(f"{module_name} cannot be imported: {type(error).__name__}: {error}") from error
    function: Callable[..., Any] | None = getattr(module, name, None)
    if function is None or not callable(function):
        raise ConfigError(f"{module_name} has no {kind} {name}")
    return function
