"""What an operator names as ``module:name``: imported as a script beside the configuration would import it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quintain.errors import ConfigError


def load_callable(path: str, folder: Path, *, kind: str = "function") -> Callable[..., Any]:
    """The callable of ``module:name``, its module looked for in this folder first. Raises `ConfigError`."""
    module_name, _, name = path.partition(":")
    # As Python does for a script: the folder comes first, and stays, as the module may import its neighbours.
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        # A module may raise anything while it is imported.
        raise ConfigError(f"{module_name} cannot be imported: {type(error).__name__}: {error}") from error
    found: Callable[..., Any] | None = getattr(module, name, None)
    if found is None or not callable(found):
        raise ConfigError(f"{module_name} has no {kind} {name}")
    return found
