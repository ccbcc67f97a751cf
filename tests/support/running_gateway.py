"""`quintain up` as somebody else's programs meet it: a URL, tokens, and nothing of ours beside them."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.command_line import CommandLine, CommandResult, command_line

ADMIN_TOKEN = "an admin token for tests"

CONFIG = """
targets:
  echo: {provider: mock}
  judge:
    provider: mock
    response: "Paris"
    token_usage: {input: 7, output: 2}
    price: {input_per_million: 1000, output_per_million: 1000}
  slow: {provider: mock, delay_ms: 60000}
"""
TARGETS = ["echo", "judge", "slow"]


@dataclass(frozen=True)
class RunningGateway:
    """A gateway's address, and a shell whose environment knows it and no broker."""

    url: str
    shell: CommandLine

    def open_session_shell(self, default_target: str = "echo", max_calls: int = 50, *options: str) -> CommandLine:
        """The shell with a new session's token."""
        args = ("session", "open", "--default-target", default_target, "--max-calls", str(max_calls), "--json")
        opened = self.shell.run(*args, *options).json
        env = {"QUINTAIN_SESSION_TOKEN": str(opened["token"]), "QUINTAIN_ADMIN_TOKEN": ""}
        return self.shell.with_environment(env)


@contextlib.contextmanager
def run_gateway(folder: Path, config: str = CONFIG) -> Iterator[RunningGateway]:
    """Every service in one process, with no broker."""
    (folder / "quintain.yaml").write_text(config)
    with command_line(folder, {"QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}) as shell:
        up = shell.start("up", "--port", "0", "--json")
        up.wait_for(lambda one: "\n" in one.stdout)
        url = json.loads(up.stdout)["gatewayUrl"]
        yield RunningGateway(url, shell.with_environment({"QUINTAIN_GATEWAY_URL": url}))


def run_program(args: Sequence[str], env: Mapping[str, str], folder: Path, *, stdin: str = "") -> CommandResult:
    """Run a program that is not ours to its end."""
    done = subprocess.run(
        args, env=env, cwd=folder, input=stdin, capture_output=True, text=True, timeout=90, check=False
    )
    return CommandResult(tuple(args), done.returncode, done.stdout, done.stderr)
