"""Fingerprints of targets: hashes of everything in a target's configuration that can change an answer.

The configuration counts with its ``${{ }}`` resolved, programs and modules by their bytes, whatever their paths, and
secrets not at all. What a Python program or module imports from its own folders counts with it. A program counts as it
is when it is started; the module of a process that is kept as it was at first and as it is now. Not seen: what else a
program or module reads, unless ``depends_on`` names it, and what a model's provider changes behind an unchanged name. A
hosted target's factory has a fingerprint of its own.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, SecretStr

from quintain.config.http_targets import HttpTarget
from quintain.config.program_targets import AgentTarget, CommandTarget, ProgramTarget, PythonTarget
from quintain.config.python_imports import PythonImports, command_imports, module_file, module_imports
from quintain.config.targets import TargetConfig, TargetTarget
from quintain.errors import ConfigError
from quintain.programs.program import executable_of

#: The keys of a target that change no answer: who judges it, its limits, its price, and a mock's pace.
KEYS_WITHOUT_EFFECT = frozenset(
    {
        "judge_target",
        "max_concurrency",
        "worker_concurrency",
        "processes",
        "quota",
        "adaptive",
        "timeout_seconds",
        "idle_seconds",
        "conversation_idle_seconds",
        "max_tries",
        "price",
        "output_estimate",
        "delay_ms",
        "chunk_delay_ms",
        "cacheable",
        "replica_fields",
        "run_as",
        "sandbox",
    }
)

#: A fingerprint is this many hexadecimal characters of a SHA-256.
_LENGTH = 32

#: Gives a target's fingerprint as its files are now; None where one of them cannot be read any more.
ReadFingerprint = Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class TargetFingerprint:
    """The fingerprint of a target. ``read`` returns what it is now; None where no file of the target is part of it."""

    first: str
    read: ReadFingerprint | None

    def __call__(self) -> str | None:
        """Return the fingerprint as it is now; None where a file cannot be read."""
        return self.first if self.read is None else self.read()


def fingerprint_of(value: object) -> str:
    """The fingerprint of a value that JSON can hold. The order of an object's keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_LENGTH]


def hosted_fingerprint(configured: str | None, host: str | None) -> str | None:
    """The fingerprint of a hosted target, of its configuration's and its host's; None where one of them is unknown."""
    return None if configured is None or host is None else fingerprint_of([configured, host])


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal. Raises `ConfigError` where it cannot be read."""
    try:
        status = path.stat()
        return _cached_digest(str(path), (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    except OSError as error:
        raise ConfigError(f"{path}: it cannot be read ({error.strerror})") from None


def dependency_digests(paths: Iterable[str], folder: Path) -> dict[str, str]:
    """The digests of the files that ``depends_on`` names. Raises `ConfigError` where one cannot be read."""
    try:
        return {name: file_digest(folder / name) for name in paths}
    except ConfigError as error:
        raise ConfigError(f"depends_on: {error.message}") from None


def command_digests(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> list[str]:
    """A command as a fingerprint counts it: its program, and each argument that is a file's path, by the bytes of that
    file. ``folder`` is where it runs."""
    program, *arguments = command
    path = env.get("PATH", os.defpath)
    executable = executable_of(program, env)
    found = shutil.which(executable, path=path) if os.sep not in executable else str(folder / executable)
    return [_word(program, Path(found or program)), *(_word(argument, folder / argument) for argument in arguments)]


def module_digests(reference: str, folder: Path) -> tuple[str | None, PythonImports]:
    """The digest of the file of ``module:name``, looked for in this folder first, or None if it has none; and what it
    imports."""
    file, imports = _module_with_imports(reference, folder)
    return None if file is None else file_digest(file), imports


def _module_with_imports(reference: str, folder: Path) -> tuple[Path | None, PythonImports]:
    name = reference.partition(":")[0]
    found = module_file(name, [folder, *(Path(entry or ".") for entry in sys.path)])
    return None if found is None else found[0], module_imports(name, folder, found)


def import_digests(files: Mapping[str, Path]) -> list[dict[str, str]]:
    """The digests of imported files by module name, as one item; none where there are no files.

    Raises `ConfigError` where one cannot be read.
    """
    return [{name: file_digest(path) for name, path in files.items()}] if files else []


def unseen_warnings(
    place: str, imports: PythonImports, depends_on: Sequence[str], *, option: str = "depends_on"
) -> list[str]:
    """Say what of a program or module is not followed, unless ``depends_on`` names files; ``option`` is how it does."""
    if depends_on or not imports.unread:
        return []
    unread = "; ".join(imports.unread)
    return [f"{place}: {unread}: if a file that it imports or reads changes, nobody sees it; name it in {option}"]


def target_fingerprints(
    targets: Mapping[str, TargetConfig], folder: Path, env: Mapping[str, str]
) -> dict[str, TargetFingerprint]:
    """The fingerprint of each of these resolved targets, as a function: the program of a command, and what
    ``depends_on`` names, may change while it is served.

    ``folder`` is the configuration's. Raises `ConfigError` where a file that ``depends_on`` names cannot be read.
    """
    return {name: _reader(name, targets, folder, env) for name in targets}


def _reader(name: str, targets: Mapping[str, TargetConfig], folder: Path, env: Mapping[str, str]) -> TargetFingerprint:
    """The target's own fingerprint, and those of the targets that it may call as far as they are configured here."""
    try:
        read_values = [_values_reader(target, folder, env) for target in _with_callees(targets, name)]
        first = fingerprint_of([read() for read in read_values])
    except ConfigError as error:
        raise ConfigError(f"targets.{name}.{error.message}") from None

    def read_fingerprint() -> str | None:
        try:
            return fingerprint_of([read() for read in read_values])
        except ConfigError:
            return None

    has_files = any(
        isinstance(one, ProgramTarget | PythonTarget) or one.depends_on for one in _with_callees(targets, name)
    )
    return TargetFingerprint(first, read_fingerprint if has_files else None)


def _with_callees(targets: Mapping[str, TargetConfig], name: str) -> Iterator[TargetConfig]:
    target = targets[name]
    yield target
    if isinstance(target, ProgramTarget | TargetTarget) and target.child_session is not None:
        yield from (targets[callee] for callee in target.child_session.targets if callee in targets)


def _values_reader(target: TargetConfig, folder: Path, env: Mapping[str, str]) -> Callable[[], dict[str, object]]:
    """What counts of one target, as a function that reads the files that each call reads again."""
    values = {
        key: _plain(getattr(target, key))
        for key in type(target).model_fields
        if key not in KEYS_WITHOUT_EFFECT and not isinstance(getattr(target, key), SecretStr)
    }
    if isinstance(target, HttpTarget):
        values["headers"] = target.public_headers
    modules: dict[str, Path] = {}
    if isinstance(target, PythonTarget) and "callable" not in target.replica_fields:
        file, imports = _module_with_imports(target.callable, folder)
        modules = {**imports.files, **({} if file is None else {target.callable: file})}

    def read_changing() -> object:
        digests = dependency_digests(target.depends_on, folder)
        if isinstance(target, AgentTarget):
            digest, imports = module_digests(target.agent, folder / (target.cwd or "."))
            return [digests, digest, *import_digests(imports.files)]
        # Others are imported only once one of these has changed.
        return [digests, *import_digests(modules)] if modules else digests

    # Its processes are started as they are needed, and kept.
    first = read_changing() if isinstance(target, AgentTarget | PythonTarget) else None

    def read() -> dict[str, object]:
        changing = read_changing()
        # A process may have read them when it was started, or read them at each call: both states count.
        both = changing if first is None or first == changing else [first, changing]
        current: dict[str, object] = {**values, "depends_on": both}
        if isinstance(target, CommandTarget):
            cwd, own_env = folder / (target.cwd or "."), {**env, **target.env}
            imported = import_digests(command_imports(target.command, cwd, own_env).files)
            current["command"] = [*command_digests(target.command, cwd, own_env), *imported]
        # Where it runs is a path; what it finds there is not seen.
        current.pop("cwd", None)
        return {key: value for key, value in current.items() if key not in target.replica_fields}

    return read


def _plain(value: object) -> object:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def _word(word: str, path: Path) -> str:
    try:
        return f"sha256:{file_digest(path)}" if path.is_file() else word
    except (ConfigError, OSError, ValueError):
        # What no file's path can be, or nobody may read, is a word.
        return word


@functools.lru_cache(maxsize=1024)
def _cached_digest(path: str, status: tuple[int, ...]) -> str:
    """The digest of a file in this state: a file of a program is read again only where it has changed."""
    del status
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
