"""The wheel in an environment of its own, outside the checkout, and what its user types there."""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.command_line import clean_environment
from support.pages import shell_blocks

REPOSITORY = Path(__file__).parents[2]

#: How long a page may take to be opened, in seconds: the machine may be busy with other tests.
_OPENED_SECONDS = 60.0


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout into a folder."""
    run([sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, "."], REPOSITORY)
    (wheel,) = folder.glob("*.whl")
    return wheel


def first_commands() -> list[list[str]]:
    """The commands of the README's first screen, after the one that installs."""
    blocks = shell_blocks(REPOSITORY / "README.md")
    return [shlex.split(line) for line in blocks[blocks.index(["make demo"]) + 1]]


def run(command: Sequence[str | Path], folder: Path, *, seconds: float = 600) -> str:
    """Run a program to its end, without what this machine's environment says of Quintain; its standard output."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False, timeout=seconds
    )
    assert done.returncode == 0, f"{words} exited with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


@dataclass(frozen=True, slots=True)
class InstalledWheel:
    """A virtual environment with the wheel."""

    environment: Path

    @classmethod
    def create(cls, python: str | Path, wheel: Path, environment: Path, *, with_dependencies: bool) -> InstalledWheel:
        """Make the environment of this interpreter; ``with_dependencies``: pip installs them from its index."""
        run([python, "-m", "venv", "--without-pip", environment], environment.parent)
        interpreter = environment / "bin" / "python"
        pip = [sys.executable, "-m", "pip", "--python", interpreter, "install", "-q"]
        # It compiles no module that is not imported.
        uv = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", interpreter, "--no-deps", "--offline"]
        run([*(pip if with_dependencies else uv), wheel], environment.parent)
        return cls(environment)

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    @property
    def packages(self) -> Path:
        """The folder of the environment's packages."""
        (folder,) = self.environment.glob("lib/python*/site-packages")
        return folder

    def quintain(self, *words: str, folder: Path) -> str:
        """Run the installed command to its end; its standard output."""
        return run([self.environment / "bin" / "quintain", *words], folder)

    @contextlib.contextmanager
    def opened_page(self, words: Sequence[str], folder: Path) -> Iterator[str]:
        """Run a command that opens a browser; yields the address that the browser is given. Ctrl-C ends it."""
        address, browser = folder.parent / "address", folder.parent / "browser"
        browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {address}.new\nmv {address}.new {address}\n')
        browser.chmod(0o755)
        process = subprocess.Popen(
            [str(self.environment / "bin" / "quintain"), *words],
            cwd=folder, env={**clean_environment(), "BROWSER": str(browser)}, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            ends = time.monotonic() + _OPENED_SECONDS
            while not address.exists():
                assert process.poll() is None, f"{words} ended with {process.returncode}"
                assert time.monotonic() < ends, f"{words} opened no page"
                time.sleep(0.05)
            yield address.read_text()
            process.send_signal(signal.SIGINT)
            assert process.wait(_OPENED_SECONDS) == 0
        finally:
            process.kill()
            process.wait()
