"""``quintain serve``: services start in any order, wait and say for what, refuse what cannot work, stop when told."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import CommandLine, quintain_command, ready
from support.process_fleet import fleet_shell
from support.quick import lease_variable

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIG = "targets: {echo: {provider: mock}}\n"


@pytest.fixture
def shell(broker_url: str) -> Iterator[CommandLine]:
    """A shell before a broker with no service on it."""
    with fleet_shell(broker_url, CONFIG, targets=["echo"], variables=lease_variable()) as shell:
        yield shell


def test_a_worker_started_first_waits_for_the_metadata_service_and_says_so(shell: CommandLine) -> None:
    worker = shell.start("serve", "worker")
    worker.wait_for(lambda one: "quintain serve metadata" in one.stderr)
    assert not ready(worker)
    metadata = shell.start("serve", "metadata")
    worker.wait_for(ready)
    opened = shell.run("session", "open", "--json").json
    evaluator = shell.with_environment({"QUINTAIN_SESSION_TOKEN": str(opened["token"])})
    assert evaluator.run("invoke", "hi").stdout == "hi\n"
    assert worker.stop().code == 0
    # The other way round: the service is there before its worker, and before the call's answer the worker is too.
    again = shell.start("serve", "worker")
    assert evaluator.run("invoke", "hi again").stdout == "hi again\n"
    assert again.stop().code == 0
    assert metadata.stop().code == 0


def test_a_call_before_any_worker_says_what_is_missing_and_waits(shell: CommandLine) -> None:
    (shell.folder / "cases.jsonl").write_text('{"id": "one", "question": "hi", "expected": "hi"}\n')
    graders = "graders: [{name: told, builtin: contains}]"
    (shell.folder / "eval.yaml").write_text(f"dataset: cases.jsonl\ntargets: [echo]\n{graders}\n")
    shell.serve("metadata")
    evaluator = shell.with_environment(
        {"QUINTAIN_SESSION_TOKEN": str(shell.run("session", "open", "--json").json["token"])}
    )
    for words, code in ((("invoke", "hi"), 1), (("run", "eval.yaml"), 2)):
        assert "quintain serve worker" in evaluator.run(*words, "--no-wait", code=code).stderr
    waiting = [
        evaluator.start(*words) for words in (("invoke", "hi"), ("invoke", "hi", "--json"), ("run", "eval.yaml"))
    ]
    for one in waiting:
        one.wait_for(lambda one: "waiting  no worker" in one.stderr)
    shell.serve("worker")
    assert [one.wait().code for one in waiting] == [0, 0, 0]
    named = evaluator.run("invoke", "--target", "other", "hi", "--no-wait", code=1)
    assert "registered are: echo" in named.stderr


@pytest.mark.parametrize(
    "words", [("serve", "host", "desk:Desk", "--name", "desk"), ("up", "--port", "0")], ids=["host", "all others"]
)
def test_every_service_is_a_program_that_imports_what_it_needs_itself(
    shell: CommandLine, words: tuple[str, ...]
) -> None:
    # The other tests fork their services from a process that has imported all packages.
    shutil.copy(EXAMPLES / "targets" / "desk.py", shell.folder)
    output = shell.folder / "output"
    with output.open("wb") as file:
        service = subprocess.Popen(
            quintain_command((*words, "--json")), cwd=shell.folder, env=shell.env, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        ends = time.monotonic() + 60
        while not (objects := [line for line in output.read_text().splitlines() if line.startswith("{")]):
            assert service.poll() is None, output.read_text()
            assert time.monotonic() < ends, output.read_text()
            time.sleep(0.05)
        said = json.loads(*objects)
        if words[0] == "serve":
            assert (said["service"], said["state"]) == (words[1], "ready")
        service.terminate()
        assert service.wait(30) == 0, output.read_text()
    finally:
        service.kill()
        service.wait()


def test_an_idle_metadata_service_stops_at_ctrl_c_too(shell: CommandLine) -> None:
    metadata = shell.start("serve", "metadata")
    metadata.wait_for(ready)
    ended = metadata.stop(signal.SIGINT, seconds=10)
    assert ended.code == 0
    assert ended.stdout == ""
    assert re.fullmatch(
        r".* is set: .*\n\S+ INFO \S+ This is a new ledger\b.*\nready  metadata  ledger sqlite://\S+\n", ended.stderr
    )


@pytest.mark.parametrize(
    ("words", "unset", "mend"),
    [
        (("serve", "worker"), "QUINTAIN_BROKER_URL", "amqp://"),
        (("serve", "metadata"), "QUINTAIN_ADMIN_TOKEN", "16 characters or more"),
    ],
)
def test_a_service_names_the_variable_it_needs(
    shell: CommandLine, words: tuple[str, ...], unset: str, mend: str
) -> None:
    refused = shell.run(*words, code=2, env={unset: ""})
    assert unset in refused.stderr
    assert mend in refused.stderr
