"""The names that packages offer without importing them: the same for programs, for type checkers and in ``__all__``."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

#: The packages whose names are imported when they are asked for.
PACKAGES = (
    "quintain",
    "quintain.observe",
    "quintain_gateway",
    "quintain_metadata",
    "quintain_worker",
)


def offered_to_type_checkers(package: ModuleType) -> dict[str, str]:
    """Each name of the stub, or of the block, that type checkers see, with the module that it is imported from."""
    stub = Path(inspect.getfile(package)).with_suffix(".pyi")
    body = ast.parse(stub.read_text() if stub.exists() else inspect.getsource(package)).body
    if not stub.exists():
        (block,) = (node for node in body if isinstance(node, ast.If))
        body = block.body
    return {alias.name: node.module or "" for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}


@pytest.mark.parametrize("name", PACKAGES)
def test_programs_and_type_checkers_are_offered_the_same(name: str) -> None:
    package = importlib.import_module(name)
    offered = offered_to_type_checkers(package)
    assert sorted(offered) == sorted(package.__all__)
    for each, module in offered.items():
        assert getattr(package, each) is getattr(importlib.import_module(module), each)
    assert dir(package) == sorted(package.__all__)


@pytest.mark.parametrize("name", PACKAGES)
def test_no_name_is_also_that_of_another_module_of_the_package(name: str) -> None:
    """Importing that module would put it in the name's place."""
    package = importlib.import_module(name)
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    offered = offered_to_type_checkers(package)
    assert {each for each in package.__all__ if each in modules and offered[each] != name} == set()


@pytest.mark.parametrize("name", PACKAGES)
def test_a_name_that_is_not_offered_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        importlib.import_module(name).nothing  # noqa: B018


def test_importing_the_packages_imports_nothing_of_them() -> None:
    words = f"import sys, {', '.join(PACKAGES)}; print(*sorted(name for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    assert {name for name in loaded if name.startswith("quintain")} == {*PACKAGES, "quintain.lazy"}
    assert loaded.isdisjoint({"pydantic", "aio_pika", "numpy", "typer"})
