"""``quintain status``: who is there over a real broker, who is missing, and what it says where it cannot ask."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from support.command_line import CommandLine, CommandResult, command_line, quintain_command
from support.process_fleet import ADMIN_TOKEN, fleet_shell
from support.quick import lease_variable

CONFIG = "targets: {echo: {provider: mock, max_concurrency: 3}}\n"


@pytest.fixture
def shell(broker_url: str) -> Iterator[CommandLine]:
    """A shell before a broker with no service on it."""
    with fleet_shell(broker_url, CONFIG, targets=["echo"], variables=lease_variable()) as shell:
        yield shell


def status_once(shell: CommandLine, words: str, *, seconds: float = 40) -> CommandResult:
    """What `status` says once it says these words."""
    ends = time.monotonic() + seconds
    while not re.search(words, (told := shell.run("status", "--wait", "0.2", code=None)).stdout + told.stderr):
        assert time.monotonic() < ends, told
        time.sleep(0.2)
    return told


def test_it_shows_who_is_there_and_exits_1_where_somebody_is_missing(shell: CommandLine) -> None:
    nobody = shell.run("status", "--wait", "0.2", "--timeout", "1", code=1)
    assert "quintain serve metadata" in nobody.stderr
    _, worker = shell.serve("metadata", "worker")
    well = shell.run("status")
    assert re.search(r"^echo \(mock\) +ready .* 0 of 3 +1 ", well.stdout, re.MULTILINE)
    assert "2 services answer" in well.stderr
    told: Any = shell.run("status", "--json", "--wait", "0.3").json
    assert told["exitCode"] == 0
    assert [one["service"] for one in told["services"]] == ["metadata"]
    assert [(one["condition"], one["slots"]) for one in told["workers"]] == [("live", 3)]
    assert [(one["name"], one["condition"], one["workers"]) for one in told["targets"]] == [("echo", "ready", 1)]
    assert ADMIN_TOKEN not in str(told)
    # Where standard output is no terminal, --watch prints once and ends.
    assert "echo" in shell.run("status", "--watch", "--wait", "0.3").stdout
    assert shell.run("status", "--watch", "--json", "--wait", "0.3").json["exitCode"] == 0
    # A worker that is gone leaves a target that is known, and served by nobody.
    worker.kill()
    gone = status_once(shell, "does not answer|lost")
    assert gone.code == 1
    assert re.search(r"^echo \(mock\) +no worker ", gone.stdout, re.MULTILINE)
    assert "No worker that answers serves echo" in gone.stderr
    assert "quintain serve worker" in gone.stderr
    # Only the administrator may ask.
    blind = shell.run("status", code=2, env={"QUINTAIN_ADMIN_TOKEN": ""})
    assert "QUINTAIN_ADMIN_TOKEN" in blind.stderr
    wrong = shell.run("status", code=1, env={"QUINTAIN_ADMIN_TOKEN": "another admin token"})
    assert "refuses QUINTAIN_ADMIN_TOKEN" in wrong.stderr


def test_a_consumer_that_does_not_answer_is_a_problem(shell: CommandLine, broker_url: str) -> None:
    _, *workers = shell.serve("metadata", "worker", "worker")
    assert "3 services answer" in status_once(shell, "3 services answer").stderr
    os.kill(workers[0].pid, signal.SIGSTOP)
    try:
        stopped = status_once(shell, "has 2 consumers").stderr
    finally:
        os.kill(workers[0].pid, signal.SIGCONT)
    assert "target echo has 2 consumers, and 1 of its workers answer" in stopped
    status_once(shell, "3 services answer")
    with pika.BlockingConnection(pika.URLParameters(broker_url)) as connection:
        connection.channel().basic_consume("quintain.target.echo", lambda *_: None)
        status_once(shell, "has 3 consumers")
        foreign: Any = shell.run("doctor", "--json", code=1).json["lines"]
        assert ["has 3 consumers" in line["says"] for line in foreign if line["verdict"] == "fail"] == [True]
    wrong: Any = shell.run("doctor", "--json", code=1, env={"QUINTAIN_ADMIN_TOKEN": "another admin token"}).json
    (refused,) = [line for line in wrong["lines"] if line["verdict"] == "fail"]
    assert refused["what"] == "services"


def test_on_a_terminal_the_tables_are_drawn_again_until_ctrl_c(shell: CommandLine) -> None:
    shell.serve("metadata")
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    words = quintain_command(("status", "--watch"))
    env = {**shell.env, "TERM": "xterm"}
    with subprocess.Popen(words, env=env, cwd=shell.folder, stdout=theirs, stderr=theirs) as watching:
        os.close(theirs)
        seen, is_served = b"", False
        with contextlib.suppress(OSError):  # the end of a terminal
            while part := os.read(ours, 65_536):
                if b"echo (mock)" not in seen:
                    seen += part
                    if b"No worker answers" in seen and not is_served:
                        is_served = bool(shell.start("serve", "worker"))
                    if b"echo (mock)" in seen:
                        watching.send_signal(signal.SIGINT)
        os.close(ours)
    assert (watching.returncode, b"echo (mock)" in seen) == (0, True)


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"QUINTAIN_BROKER_URL": "", "QUINTAIN_GATEWAY_URL": "http://127.0.0.1:8787"}, "http://127.0.0.1:8787/health"),
        ({"QUINTAIN_BROKER_URL": "memory://"}, "runs in one process"),
        ({"QUINTAIN_BROKER_URL": ""}, "QUINTAIN_BROKER_URL is not set"),
    ],
    ids=["over HTTP", "memory", "nothing"],
)
def test_it_says_where_it_cannot_ask(tmp_path_factory: pytest.TempPathFactory, env: dict[str, str], says: str) -> None:
    with command_line(tmp_path_factory.mktemp("shell"), {}) as shell:
        assert says in shell.run("status", code=2, env=env).stderr
