"""Imports callables given as ``module:name``, and finds the files that a Python program imports from its own folders.

The files are found by the syntax tree, also through one another. Not seen: modules elsewhere, such as installed
packages; imports by names or folders that are made as it runs; and whatever it reads that is no module.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, cast

from quintain.config.file_errors import did_you_mean
from quintain.contracts.credentials import mask_secrets
from quintain.errors import ConfigError
from quintain.programs.program import script_of, secrets_of
from quintain.settings import environment

#: The secrets that this process was started with, if it is a program of a configuration; read before such code is
#: imported, which may take them out of the environment.
OWN_SECRETS: Final = secrets_of(environment())


def load_callable(reference: str, folder: Path, *, kind: str = "function") -> Callable[..., Any]:
    """Import the callable ``module:name``, as `load_object` does."""
    function = load_object(reference, folder, kind=kind)
    if not callable(function):
        module_name, _, name = reference.partition(":")
        raise ConfigError(f"{module_name} has no {kind} {name}")
    return cast("Callable[..., Any]", function)


def load_object(reference: str, folder: Path, *, kind: str) -> object:
    """Import ``module:name``, looking for the module in ``folder`` first; ``kind`` is for the text of `ConfigError`."""
    module_name, _, name = reference.partition(":")
    # As for a script: the folder comes first in sys.path and stays there, because the module may import others lazily.
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        # A module may raise anything while it is imported.
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        hint = f"; install it for {sys.executable}" if missing and missing != module_name else ""
        raise ConfigError(f"{module_name} cannot be imported: {describe_raised(error, folder)}{hint}") from error
    found: object = getattr(module, name, None)
    if found is None:
        raise ConfigError(f"{module_name} has no {kind} {name}{did_you_mean(name, vars(module))}")
    return found


def describe_raised(error: BaseException, folder: Path, *, max_characters: int = 2000) -> str:
    """An exception as one sentence: its class and message, and the last line of code below ``folder`` that it came by.

    Secrets of this process are masked.
    """
    frames = traceback.extract_tb(error.__traceback__)
    paths = [(Path(frame.filename), frame.lineno) for frame in frames]
    own = [each for each in paths if each[0].is_relative_to(folder) and _INSTALLED.isdisjoint(each[0].parts)]
    where = f" ({own[-1][0].name}, line {own[-1][1]})" if own else ""
    words = ": ".join(filter(None, (type(error).__name__, str(error))))
    return mask_secrets(words, OWN_SECRETS)[:max_characters] + where


#: The name of the module that a script is; it is in no package.
_SCRIPT = "__main__"

_PYTHONS = frozenset({"python", "pypy", "uv"})

#: Folders of installed packages; what is imported there changes with their versions, and is not followed.
_INSTALLED = frozenset({"site-packages", "dist-packages"})

#: The endings of modules that have no source.
_COMPILED = (*importlib.machinery.EXTENSION_SUFFIXES, *importlib.machinery.BYTECODE_SUFFIXES)

#: Functions that import the module of a name, and those that import a file or add a folder to look in.
_BY_NAME = frozenset({"__import__", "import_module", "run_module"})
_BY_PATH = frozenset({"spec_from_file_location", "SourceFileLoader", "run_path", "addsitedir"})

#: What of ``sys`` says where modules are looked for.
_SEARCHES = frozenset({"path", "meta_path", "path_hooks"})


@dataclass(slots=True)
class PythonImports:
    """Imported files by module name; ``unread`` says what was not followed."""

    files: dict[str, Path] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Source:
    """The modules that one file may import, and why others are not known.

    A relative name begins with its dots; one that ends with ``.*`` is of all that a package lists in ``__all__``.
    ``exports`` is that list of this file, None if it is made as it runs.
    """

    imports: tuple[str, ...] = ()
    unread: str | None = None
    exports: tuple[str, ...] | None = ()


def module_file(name: str, folders: Iterable[Path]) -> tuple[Path, Path] | None:
    """The file of a module and the folder in which its name was found; the first of the folders that has it counts."""
    *parents, last = name.split(".")
    for folder in folders:
        place = folder.joinpath(*parents)
        if not parents or place.is_dir():
            for suffix in importlib.machinery.all_suffixes():
                for file in (place / last / f"__init__{suffix}", place / f"{last}{suffix}"):
                    if file.is_file():
                        return file, folder
    return None


def module_imports(name: str, folder: Path, found: tuple[Path, Path] | None) -> PythonImports:
    """What a module imports from ``folder``, and from the folder in which it was found unless it is installed there.

    ``found`` is what `module_file` returned for it.
    """
    if found is None:
        return PythonImports(unread=[f"the module {name} has no file here"])
    file, base = found
    is_installed = any(part in _INSTALLED for part in base.parts)
    if is_installed:
        imports = _followed(_source_of(file), [folder], name, _package(name, file))
        imports.unread.append(f"{file} is an installed package's")
    else:
        # By its name, because its packages are imported before it.
        imports = _followed(_Source((name,)), [folder, base])
        imports.files.pop(name, None)
    return imports


def command_imports(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> PythonImports:
    """What a command imports that runs Python: a script, ``-m`` with a module, or ``-c``. It runs in ``folder``.

    The module of ``-m`` is among its files. The folders are the script's own, or else that in which it runs, and those
    of ``PYTHONPATH`` in which no packages are installed.
    """
    program, *arguments = command
    folders = [folder / entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    folders = [path for path in folders if path.is_dir() and _INSTALLED.isdisjoint(path.parts)]
    script = _python_script(program, arguments, folder)
    if script is not None:
        return _followed(_source_of(script), [script.resolve().parent, *folders])
    is_python = Path(program).name.rstrip(".0123456789") in _PYTHONS
    option, value = next((pair for pair in pairwise(arguments) if pair[0] in {"-c", "-m"}), ("", ""))
    if is_python and option == "-c":
        return _followed(_source_in(value), [folder, *folders])
    if is_python and option == "-m" and module_file(value, [folder, *folders]):
        return _followed(_Source((value, f"{value}.__main__")), [folder, *folders])
    return PythonImports(unread=[f"{' '.join(command[:3])} is no Python program of this folder"])


def _python_script(program: str, arguments: Sequence[str], folder: Path) -> Path | None:
    script = script_of(program, arguments)
    path = folder / (script or program)
    if path.suffix == ".py":
        return path
    if script is not None or os.sep not in program:
        return None
    try:
        with path.open("rb") as file:
            first_line = file.readline(256)
    except (OSError, ValueError):
        return None
    return path if first_line.startswith(b"#!") and b"python" in first_line else None


def _followed(source: _Source, folders: Sequence[Path], module: str = _SCRIPT, package: str = "") -> PythonImports:
    """What a module imports from these folders, and what that imports."""
    imports = PythonImports()
    here: set[str] = set()
    for folder in folders:
        try:
            here.update(file.name.partition(".")[0] for file in folder.iterdir())
        except OSError:
            imports.unread.append(f"{folder} cannot be read")
    find = functools.cache(lambda name: tuple(_files_of(name, folders, imports.unread)))
    waiting = list[tuple[str, Path]]()

    def follow(importer: str, package: str, source: _Source) -> None:
        if source.unread is not None:
            imports.unread.append(f"{importer}: {source.unread}" if importer != _SCRIPT else source.unread)
        for imported in source.imports:
            with contextlib.suppress(ImportError):
                name = importlib.util.resolve_name(imported, package)
                waiting.extend(find(name) if name.partition(".")[0] in here else ())

    follow(module, package, source)
    while waiting:
        name, file = waiting.pop()
        if name not in imports.files and name != module:
            imports.files[name] = file
            follow(name, _package(name, file), _source_of(file))
    return imports


def _files_of(imported: str, folders: Sequence[Path], unread: list[str]) -> Iterator[tuple[str, Path]]:
    """The files of a module and of its packages; of ``package.*``, also those that the package lists."""
    package = imported.removesuffix(".*")
    for name, file in _module_and_its_packages(package, folders):
        yield name, file
        if package == imported or name != package or _package(name, file) != package:
            continue
        exports = _source_of(file).exports
        if exports is None:
            unread.append(f"{package}: it makes its __all__ as it runs")
        for export in exports or ():
            yield from _module_and_its_packages(f"{package}.{export}", folders)


def _package(name: str, file: Path) -> str:
    """The package that relative names of a module begin at."""
    return name if file.name.startswith("__init__.") else name.rpartition(".")[0]


def _module_and_its_packages(name: str, folders: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Those of ``a``, ``a.b`` and ``a.b.c`` that are files in the folders: importing the last imports all."""
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        found = module_file(".".join(parts[:length]), folders)
        if found is not None:
            yield ".".join(parts[:length]), found[0]
        elif not any(folder.joinpath(*parts[:length]).is_dir() for folder in folders):
            return


def _source_of(file: Path) -> _Source:
    if file.name.endswith(_COMPILED):
        return _Source(unread=f"{file.name} is compiled")
    try:
        status = file.stat()
        return _parsed(str(file), (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    except OSError as error:
        return _Source(unread=f"{file.name} cannot be read ({error.strerror})")


@functools.lru_cache(maxsize=1024)
def _parsed(path: str, status: tuple[int, ...]) -> _Source:
    """What a file in this state imports: it is parsed again only where it has changed."""
    del status
    return _source_in(Path(path).read_bytes())


def _source_in(text: str | bytes) -> _Source:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _Source(unread="it is no Python that this interpreter can parse")
    imports: list[str] = []
    exports: list[str] | None = []
    unread: str | None = None
    # Not by recursion: an expression may be nested more deeply than Python's stack allows.
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        names = _names_imported(node)
        if names is None:
            unread = "it imports by names or folders that are made as it runs"
        imports.extend(names or ())
        if (listed := _exports_in(node)) is not None:
            exports = None if exports is None or not listed else [*exports, *listed]
        # The function of a call that was read is not what is called by another name.
        read = node.func if isinstance(node, ast.Call) and names else None
        waiting.extend(child for child in ast.iter_child_nodes(node) if child is not read)
    return _Source(tuple(dict.fromkeys(imports)), unread, None if exports is None else tuple(exports))


def _names_imported(node: ast.AST) -> list[str] | None:
    """The modules that a node of a syntax tree may import; None if that is known only as it runs."""
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            return _names_from(node)
        case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)) if called in _BY_NAME:
            return _names_called(called, node)
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in _BY_NAME | _BY_PATH:
            return None
        case ast.Attribute(value=ast.Name(id="sys" | "_sys"), attr=name) if name in _SEARCHES:
            return None
    return []


def _names_from(node: ast.ImportFrom) -> list[str] | None:
    """The modules that ``from … import …`` may import; None if it names a function that imports, or its folders."""
    if node.module == "sys" and any(alias.name in _SEARCHES for alias in node.names):
        return None
    # By another name, what is done with it is not seen.
    if any(alias.name in _BY_NAME | _BY_PATH and alias.asname for alias in node.names):
        return None
    base = "." * node.level + (node.module or "")
    joint = "" if base.endswith(".") else "."
    return [base, *(f"{base}{joint}{alias.name}" for alias in node.names)]


def _names_called(function: str, call: ast.Call) -> list[str] | None:
    """The modules that a call of this function imports; None if that is known only as it runs."""
    options = {option.arg: option.value for option in call.keywords}
    name, others = options.pop("name", None) or options.pop("mod_name", None), call.args
    if name is None and others:
        name, *others = others
    if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
        return None
    if function == "run_module":
        return [name.value, f"{name.value}.__main__"]
    # A second argument says what a relative name begins at, or which modules of a package are imported.
    return None if options or (others and (function == "__import__" or name.value.startswith("."))) else [name.value]


def _exports_in(node: ast.AST) -> list[str] | None:
    """What a statement adds to ``__all__``: nothing if that is known only as it runs; None if it is another one."""
    match node:
        case (
            ast.Assign(targets=[ast.Name(id="__all__")], value=value)
            | ast.AugAssign(target=ast.Name(id="__all__"), value=value)
            | ast.AnnAssign(target=ast.Name(id="__all__"), value=value)
        ):
            names = value.elts if isinstance(value, ast.List | ast.Tuple) else []
            literals = [name.value for name in names if isinstance(name, ast.Constant) and isinstance(name.value, str)]
            return literals if len(literals) == len(names) else []
    return None
