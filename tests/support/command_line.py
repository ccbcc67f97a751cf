"""The command line as a user meets it: each command with a folder, an environment and outputs of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import pytest

import quintain_cli.__main__
from quintain.settings import environment, read_trace_settings
from support.command_server import CommandServer

#: What of this machine's environment would change what a command does or shows.
_REMOVED_PREFIXES = ("QUINTAIN_", "AGENTV_", "OPENAI_", "ANTHROPIC_", "PYTHONDONT")
_REMOVED_VARIABLES = frozenset({"CI", "COLUMNS", "FORCE_COLOR", "NO_COLOR", "TERM", "TTY_COMPATIBLE"})

#: How often a file or a process is looked at, in seconds.
_POLL_SECONDS = 0.05


def clean_environment() -> dict[str, str]:
    """This machine's environment, without what it says of Quintain, of keys, of terminals and of proxies."""
    return {
        name: value
        for name, value in environment().items()
        if not name.startswith(_REMOVED_PREFIXES)
        and name not in _REMOVED_VARIABLES
        and not name.lower().endswith("_proxy")
    }


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A command that ended: its exit code and its two outputs."""

    args: tuple[str, ...]
    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, object]:
        """The one JSON object on stdout, beside which there must be nothing."""
        parsed = json.loads(self.stdout)
        assert isinstance(parsed, dict), self
        assert self.stdout.count("\n") == 1, f"more than one line of JSON: {self}"
        return parsed


class RunningCommand:
    """A command that goes on, with its outputs in files, so that no pipe ever blocks it."""

    def __init__(
        self, args: tuple[str, ...], env: Mapping[str, str], folder: Path, number: int, program: str = "quintain_cli"
    ) -> None:
        self.args = args
        self._files = [folder / f".{number}-{stream}" for stream in ("stdout", "stderr")]
        with (
            Path(os.devnull).open("rb") as stdin,
            self._files[0].open("wb") as stdout,
            self._files[1].open("wb") as stderr,
        ):
            self._process = command_server().start(args, env, folder, (stdin, stdout, stderr), program=program)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stdout(self) -> str:
        return self._files[0].read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self._files[1].read_text(errors="replace")

    def wait_for(self, condition: Callable[[RunningCommand], bool], *, seconds: float = 30) -> None:
        """Wait until it has come this far; an end before that is a failure."""
        ends = time.monotonic() + seconds
        while not condition(self):
            assert self._process.poll() is None or condition(self), f"it ended with {self._process.returncode}: {self}"
            assert time.monotonic() < ends, f"not within {seconds} s: {self}"
            time.sleep(_POLL_SECONDS)

    def stop(self, signal_number: signal.Signals = signal.SIGTERM, *, seconds: float = 30) -> CommandResult:
        """Send the signal and wait for the end."""
        self._process.send_signal(signal_number)
        return self.wait(seconds=seconds)

    def wait(self, *, seconds: float = 60) -> CommandResult:
        """Wait for its end."""
        try:
            code = self._process.wait(seconds)
        except TimeoutError:
            raise AssertionError(f"it did not end within {seconds} s: {self}") from None
        return CommandResult(self.args, code, self.stdout, self.stderr)

    def kill(self) -> None:
        """SIGKILL: no last word."""
        self._process.kill()

    def __repr__(self) -> str:
        return f"Running({self.args}, stdout={self.stdout!r}, stderr={self.stderr!r})"


def ready(running: RunningCommand) -> bool:
    """Whether a service has said that it is ready."""
    return "ready  " in running.stderr


@dataclass
class CommandLine:
    """A shell in a folder: runs commands to their end, or starts them."""

    folder: Path
    env: dict[str, str]
    _started: list[RunningCommand] = field(default_factory=list)
    #: What its services have in their environment besides.
    service_env: Mapping[str, str] = field(default_factory=dict)

    def run(
        self, *args: str, code: int | None = 0, env: Mapping[str, str] | None = None, stdin: str = ""
    ) -> CommandResult:
        """Run a command to its end, with this exit code (None: any); an error is a sentence, never a traceback."""
        result = run_command(args, {**self.env, **(env or {})}, self.folder, stdin=stdin)
        assert not any(line.startswith("Traceback") for line in result.stderr.splitlines()), f"{args}:\n{result.stderr}"
        assert code in {None, result.code}, result
        return result

    def start(self, *args: str, env: Mapping[str, str] | None = None, program: str = "quintain_cli") -> RunningCommand:
        """Start a command, or a Python program by its file; it is ended with the test."""
        more = {**(self.service_env if args[:1] == ("serve",) else {}), **(env or {})}
        running = RunningCommand(args, {**self.env, **more}, self.folder, len(self._started), program)
        self._started.append(running)
        return running

    def serve(self, *services: str) -> list[RunningCommand]:
        """Start services together, and wait until each is ready."""
        started = [self.start("serve", service) for service in services]
        for service in started:
            service.wait_for(ready)
        return started

    def with_environment(self, env: Mapping[str, str]) -> CommandLine:
        """The same shell with more in its environment."""
        return replace(self, env={**self.env, **env})

    def in_folder(self, folder: Path) -> CommandLine:
        """The same shell in another folder."""
        return replace(self, folder=folder)

    def end_all(self) -> None:
        """End what was started and still runs."""
        for running in self._started:
            running.kill()


@functools.cache
def command_server() -> CommandServer:
    """The one server of commands of this process."""
    return CommandServer()


def run_command(args: tuple[str, ...], env: Mapping[str, str], folder: Path, *, stdin: str = "") -> CommandResult:
    """Run ``quintain`` with these arguments to its end, in this process; in one of its own where a loop runs, on a
    thread, or where it exports traces: a process keeps its first exporter.
    """
    is_busy = threading.current_thread() is not threading.main_thread() or asyncio._get_running_loop() is not None
    if is_busy or read_trace_settings(env).export:
        return run_command_process(args, env, folder, stdin=stdin)
    streams = {"stdin": _Stream(stdin.encode()), "stdout": _Stream(), "stderr": _Stream()}
    with _surroundings(args, {**env, "COLUMNS": env.get("COLUMNS", "80")}, folder, streams):
        try:
            quintain_cli.__main__.main()
            code: object = 0
        except SystemExit as end:
            code = end.code
        except BaseException as error:
            if isinstance(error, pytest.fail.Exception):  # the time limit of the test
                raise
            code = 1
            traceback.print_exc()
    texts = [streams[name].text for name in ("stdout", "stderr")]
    return CommandResult(args, code if isinstance(code, int) else 0 if code is None else 1, *texts)


class _Stream(io.TextIOWrapper):
    """A standard stream that is kept, and is no terminal."""

    def __init__(self, given: bytes = b"") -> None:
        self._kept = io.BytesIO(given)
        super().__init__(self._kept, encoding="utf-8", write_through=True)

    @property
    def text(self) -> str:
        return self._kept.getvalue().decode()

    def close(self) -> None:
        """Nothing: what was written is read after the command's end."""


@contextlib.contextmanager
def _surroundings(
    args: tuple[str, ...], env: Mapping[str, str], folder: Path, streams: Mapping[str, _Stream]
) -> Iterator[None]:
    """What a process of its own would have; at the end this process has its own again, and no module of the folder."""
    root, environ, modules, path = logging.getLogger(), dict(os.environ), {*sys.modules}, list(sys.path)
    handlers, level = list(root.handlers), root.level
    loggers = [each for each in root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    levels = {each.name: each.level for each in loggers}
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in streams.items():
            patch.setattr(sys, name, stream)
        patch.setattr(sys, "argv", ["quintain", *args])
        patch.syspath_prepend(folder)
        patch.chdir(folder)
        os.environ.clear()
        os.environ.update(env)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(environ)
            root.handlers[:] = handlers
            root.setLevel(level)
            for each in [each for each in root.manager.loggerDict.values() if isinstance(each, logging.Logger)]:
                each.setLevel(levels.get(each.name, logging.NOTSET))
            for name in {*sys.modules} - modules:
                if not _is_installed(name.partition(".")[0], path):
                    del sys.modules[name]


def _is_installed(package: str, path: list[str]) -> bool:
    """Whether an imported package is found on this path; those of a command's own folders are not."""
    file = getattr(sys.modules.get(package), "__file__", None)
    return file is None or not {str(Path(file).parent), str(Path(file).parents[1])}.isdisjoint(path)


def run_command_process(
    args: tuple[str, ...], env: Mapping[str, str], folder: Path, *, stdin: str = "", program: str = "quintain_cli"
) -> CommandResult:
    """As `run_command`, in a process of its own that needs not import the packages; also another program, by its file.

    Raises `TimeoutError` after 90 s.
    """
    with tempfile.TemporaryFile() as given:
        given.write(stdin.encode())
        given.seek(0)
        return _run_process(args, env, folder, given, program)


def _run_process(
    args: tuple[str, ...], env: Mapping[str, str], folder: Path, given: IO[bytes], program: str
) -> CommandResult:
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = command_server().start(args, env, folder, (given, stdout, stderr), program=program)
        try:
            code = process.wait(90)
        finally:
            process.kill()
        texts = []
        for stream in (stdout, stderr):
            stream.seek(0)
            texts.append(stream.read().decode())
    return CommandResult(args, code, *texts)


def run_at_terminal(args: tuple[str, ...], env: Mapping[str, str], folder: Path, typed: str) -> CommandResult:
    """As `run_command_process`, with a terminal as standard input, at which this was typed."""
    ours, theirs = os.openpty()
    with os.fdopen(ours, "wb", buffering=0) as keyboard, os.fdopen(theirs, "rb", buffering=0) as terminal:
        keyboard.write(typed.encode())
        return _run_process(args, env, folder, terminal, "quintain_cli")


def run_python(script: Path, *args: str, env: Mapping[str, str], folder: Path) -> CommandResult:
    """Run a Python program that may import ours, as `run_command_process` does; with exit code 0."""
    result = run_command_process(args, env, folder, program=str(script))
    assert result.code == 0, result
    return result


def quintain_command(args: tuple[str, ...]) -> list[str]:
    """The command ``quintain`` with these words, as this interpreter runs it."""
    return [sys.executable, "-m", "quintain_cli", *args]


@contextlib.contextmanager
def command_line(folder: Path, env: Mapping[str, str] | None = None) -> Iterator[CommandLine]:
    """A shell in this folder; its state folder is beneath it. What it started ends with it."""
    shell = CommandLine(folder, {**clean_environment(), "QUINTAIN_STATE_DIR": str(folder / "state"), **(env or {})})
    try:
        yield shell
    finally:
        shell.end_all()
