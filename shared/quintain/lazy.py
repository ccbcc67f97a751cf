"""Packages that offer names of their modules without importing them (PEP 562).

A package writes, in its ``__init__``::

    if TYPE_CHECKING:  # for type checkers, editors and the import rules
        from package.module import Name
    else:
        __getattr__, __dir__ = lazy_exports(__name__, {"package.module": ("Name",)})

A module is imported when one of its names is first used, by ``package.Name`` or by ``from package import Name``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def lazy_exports(
    package: str, names: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package that offers ``names``, listed by their module.

    A module without names is offered itself. No name may equal that of another module directly in the package.
    """
    module_of = {name: module for module, offered in names.items() for name in offered or (module.rpartition(".")[2],)}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        module = importlib.import_module(module_of[name])
        value = getattr(module, name) if names[module_of[name]] else module
        setattr(sys.modules[package], name, value)
        return value

    def names_of() -> list[str]:
        # Without submodules and imports: completion in an editor or a notebook shows what users call.
        return sorted(module_of)

    return get, names_of
