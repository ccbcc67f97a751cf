"""The names that `quintain` offers without importing them: the same for programs, for type checkers, in ``__all__``."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import quintain
from quintain import target

# The names that `quintain` offers without importing them: the same for programs, for type checkers, in ``__all__``.


STUB = ast.parse((Path(quintain.__file__).with_suffix(".pyi")).read_text())

#: Each name of the stub with the module that it is imported from.
OFFERED = {
    alias.name: node.module or "" for node in STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names
}


def test_programs_and_type_checkers_are_offered_the_same() -> None:
    assert sorted(OFFERED) == sorted(quintain.__all__)
    for name, module in OFFERED.items():
        assert getattr(quintain, name) is getattr(importlib.import_module(module), name)
    assert dir(quintain) == sorted(quintain.__all__)


def test_no_name_is_also_that_of_another_module_of_the_package() -> None:
    """Importing that module would put it in the name's place."""
    modules = {module.name for module in pkgutil.iter_modules(quintain.__path__)}
    assert {name for name in quintain.__all__ if name in modules and OFFERED[name] != "quintain"} == set()


def test_a_name_that_is_not_offered_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'quintain' has no attribute 'nothing'"):
        quintain.nothing  # noqa: B018


def test_importing_the_packages_imports_nothing_of_them() -> None:
    packages = ("quintain", "quintain_gateway", "quintain_metadata", "quintain_worker")
    words = f"import sys, {', '.join(packages)}; print(*sorted(name for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    assert {name for name in loaded if name.startswith("quintain")} == set(packages)
    assert loaded.isdisjoint({"pydantic", "aio_pika", "numpy", "typer"})


# The interface and its types are at the package's root, and they are the very same classes.


#: Names for the shape of a function, and of a slot: they say nothing of themselves, and stay where they are explained.
NO_TYPES = {"EventHandler", "EventResponseHandler", "SESSION_SLOT"}


@pytest.mark.parametrize("name", sorted(set(target.__all__) - NO_TYPES))
def test_a_type_of_the_interface_is_at_the_root(name: str) -> None:
    assert getattr(quintain, name) is getattr(target, name)
    assert name in quintain.__all__
