"""A shell that runs the lines of a page's blocks as they are written, and the chapters of docs/tutorial.md in it."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml

from support.browser import start_view
from support.command_line import CommandLine, CommandResult, RunningCommand
from support.running_gateway import run_program
from support.servers.ports import free_port, is_open
from support.waiting import block_until

REPOSITORY = Path(__file__).parents[2]
TUTORIAL = REPOSITORY / "docs" / "tutorial.md"

#: The checkout, as the tutorial names it, and the line that starts its stand-in for OpenAI's API.
CHECKOUT = "~/quintain"
SCRIPT = "~/quintain/examples/triage/stand_in.py"
STAND_IN = f"python {SCRIPT} 8123"

#: A run that its reader interrupts, the services of the last chapter, and the pages of all runs.
INTERRUPTED = "quintain run triage.yaml --concurrency 2"
SERVICES = ("quintain serve metadata", "quintain serve worker")
VIEW = "quintain view"
WORKFLOW = ".github/workflows/evaluate.yml"

#: Runs a Python program by its file, which sleeps a fifth of what it says.
_HASTENED = """
import runpy, sys, time
sleep = time.sleep
time.sleep = lambda seconds: sleep(seconds / 5)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

#: A block, after the name of the file that it is, if it is one.
_BLOCK = re.compile(
    r"(?:`(?P<file>[\w./-]+)`:\n\n)?(?:<!--[^\n]*-->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


class PageShell:
    """Runs lines in a folder; ``replaced`` are texts for others in every line."""

    def __init__(self, shell: CommandLine, replaced: Mapping[str, str] | None = None) -> None:
        programs = f"{Path(sys.executable).parent}:{shell.env.get('PATH', '')}"
        self.shell = shell.with_environment({"PATH": programs})
        self.replaced = dict(replaced or {})

    @property
    def folder(self) -> Path:
        """The folder that it is in."""
        return self.shell.folder

    def run(self, line: str, *, replaced: Mapping[str, str] | None = None, code: int = 0) -> CommandResult | None:
        """Run one line; ``export``, ``unset`` and ``cd`` are for later ones. ``replaced``: more texts for others."""
        words = self._words(line, replaced or {})
        if words[0] == "export":
            self.shell = self.shell.with_environment(dict(word.split("=", 1) for word in words[1:]))
            return None
        if words[0] == "unset":
            for name in words[1:]:
                del self.shell.env[name]
            return None
        if words[0] == "cd":
            self.shell = self.shell.in_folder(self.folder / words[1])
            return None
        if words[0] == "quintain":
            return self.shell.run(*words[1:], code=code)
        program = shutil.which(words[0], path=f"{self.folder}:{self.shell.env['PATH']}") or words[0]
        result = run_program([program, *words[1:]], self.shell.env, self.folder)
        assert result.code == code, result
        return result

    def start(self, line: str, ready: str) -> RunningCommand:
        """Start a service, and wait until it has said this."""
        running = self.shell.start(*self._words(line, {})[1:])
        running.wait_for(lambda one: ready in one.stdout + one.stderr)
        return running

    def run_workflow(self, text: str, *, last_code: int = 0) -> None:
        """Run the commands of a workflow's one job, without those that install."""
        (job,) = yaml.safe_load(text)["jobs"].values()
        lines = [step["run"] for step in job["steps"] if "run" in step]
        assert lines.pop(0).startswith("pip install")  # tests/acceptance/test_wheel.py installs
        for line in lines[:-1]:
            self.run(line)
        self.run(lines[-1], code=last_code)

    def _words(self, line: str, replaced: Mapping[str, str]) -> list[str]:
        for text, other in {**self.replaced, **replaced}.items():
            line = line.replace(text, other)
        return shlex.split(re.sub(r"\$(\w+)", lambda match: self.shell.env[match[1]], line))


class Tutorial(PageShell):
    """A reader of docs/tutorial.md who needs no key: its blocks in their order, in one folder."""

    def __init__(self, shell: CommandLine, port: int) -> None:
        super().__init__(shell, {CHECKOUT: str(REPOSITORY), "8123": str(port)})
        self.address = ""
        chapters = re.split(r"^## \d+\. ", TUTORIAL.read_text(), flags=re.MULTILINE)
        self.chapters = [list(_BLOCK.finditer(chapter)) for chapter in chapters]

    def follow(self, number: int) -> None:
        """Do what a chapter says: write its files, run its lines, and compare what they print with what it shows."""
        blocks, ended = self.chapters[number], CommandResult((), 0, "", "")
        for block, after in zip(blocks, [*blocks[1:], None], strict=True):
            if block["file"]:
                self.write(block["file"], block["text"])
            elif block["language"] == "text":
                assert_printed(block["text"], ended)
            else:
                assert block["language"] == "sh", block
                *lines, last = block["text"].splitlines()
                for line in lines:
                    self.run(line)
                shown = re.search(r"^exit (\d+):", "" if after is None else after["text"], re.MULTILINE)
                ended = self.run(last, code=int(shown[1]) if shown else 0) or ended

    def file(self, number: int, name: str) -> str:
        """The text of a file that a chapter shows; of several with this name the last one."""
        return [block["text"] for block in self.chapters[number] if block["file"] == name][-1]

    def write(self, name: str, text: str) -> None:
        """Write a file of the page."""
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def run(self, line: str, *, replaced: Mapping[str, str] | None = None, code: int = 0) -> CommandResult | None:
        """As a page's shell does; the stand-in runs already, services and pages go on, and one run is interrupted."""
        if line == STAND_IN:
            return None
        if line in SERVICES:
            self.start(line, "ready")
            return None
        if line == VIEW:
            self.address = start_view(self.shell)
            return None
        if line == INTERRUPTED:
            running = self.shell.start(*self._words(line, {})[1:])
            rows = self.folder / "runs" / "triage" / "results.jsonl"
            before = rows.read_bytes().count(b"\n")
            running.wait_for(lambda _: rows.read_bytes().count(b"\n") > before)
            ended = running.stop(signal.SIGINT)
            assert ended.code == 130, ended
            return ended
        return super().run(line, replaced=replaced, code=code)


@contextmanager
def running_stand_in() -> Iterator[int]:
    """The tutorial's stand-in for OpenAI's API, which takes a fifth of the time of a model; gives its port."""
    port = free_port()
    command = [sys.executable, "-c", _HASTENED, SCRIPT.replace(CHECKOUT, str(REPOSITORY)), str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            block_until(lambda: is_open(port))
            yield port
        finally:
            process.kill()


def assert_printed(shown: str, ended: CommandResult) -> None:
    """Compare what a page shows of a command's output: a part of it, where … stands for any lines."""
    printed, rest = ended.stderr + ended.stdout, 0
    text = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    for part in shown.split("…\n"):
        found = text.find(part, rest)
        assert found >= 0, f"this is not there, or not in this place:\n{part}\nin\n{text}"
        rest = found + len(part)
