"""Bad input gets a sentence that names the file, the place and the mend; and what was written so far stays."""

from __future__ import annotations

import re
import socket

import pytest

from quintain.contracts.credentials import SessionToken
from support.command_line import CommandLine
from support.evaluations import write_files

CONFIG = "targets: {bot: {provider: mock}, judge: {provider: mock}}\n"
EVALUATION = "dataset: cases.jsonl\ntargets: [bot]\ngraders: [{name: same, builtin: exact}]\n"


@pytest.fixture
def evaluation_shell(shell: CommandLine) -> CommandLine:
    """A shell in a folder with an evaluation in which nothing is wrong yet."""
    write_files(shell.folder, quintain_yaml=CONFIG, eval_yaml=EVALUATION)
    return shell


@pytest.fixture
def evaluator(evaluation_shell: CommandLine) -> CommandLine:
    """A shell with tokens of the right shape; which broker, the test says."""
    return evaluation_shell.with_environment(
        {"QUINTAIN_ADMIN_TOKEN": "an admin token for tests", "QUINTAIN_SESSION_TOKEN": SessionToken.mint().text}
    )


def test_a_broker_that_is_not_there_is_told_with_what_was_tried_and_for_how_long(evaluator: CommandLine) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"amqp://127.0.0.1:{closed.getsockname()[1]}/"
        names = (("metadata",), ("worker",), ("gateway", "--port", "0"))
        services = [evaluator.start("serve", *words, env={"QUINTAIN_BROKER_URL": url}) for words in names]
        commands = [
            evaluator.start(*words, env={"QUINTAIN_BROKER_URL": url})
            for words in (("run", "eval.yaml"), ("invoke", "hi"), ("info",), ("session", "list", "--json"))
        ]
        ended = [command.wait(seconds=45) for command in commands]
        for service in services:
            service.wait_for(lambda one: "waiting" in one.stderr, seconds=15)
    for command in ended:
        assert command.code == 1
        said = str(command.json["error"]) if "--json" in command.args else command.stderr.removeprefix("error  ")
        within = re.match(rf"No broker at {re.escape(url)} within ([\d.]+) s \(", said)
        assert within is not None, said
        assert 0 < float(within[1]) <= 10
        assert "refused" in said or "Connect call failed" in said
        assert "start one, or set QUINTAIN_BROKER_URL" in said
        assert len((command.stdout + command.stderr).splitlines()) == 1, "one sentence, and nothing of the library's"
    # A service waits on, and stops when it is told.
    for service in services:
        assert service.stop().code == 0


def test_what_the_broker_refuses_is_said_at_once_without_the_password(evaluator: CommandLine, broker_url: str) -> None:
    """A wrong password, of a run and a worker, and a virtual host that is not there."""
    config = evaluator.folder / "worker.yaml"
    config.write_text(
        "targets:\n  m: {provider: openai, model: m, settings: {cache_prompt: off, extra_body: {store: no}}}\n"
    )
    password = f"amqp://guest:not-the-password@{broker_url.rpartition('@')[2]}"
    vhost = f"{broker_url.rstrip('/').removesuffix('/%2F')}/nobody-made-this"
    refusals = (
        (("run", "eval.yaml"), password),
        (("serve", "worker", "--config", str(config)), password),
        (("info",), vhost),
    )
    said = []
    for words, url in refusals:
        said.append(evaluator.run(*words, code=1, env={"QUINTAIN_BROKER_URL": url, "OPENAI_API_KEY": "none"}).stderr)
        assert "No broker at" not in said[-1], "it was asked again until the wait was over"
        assert "not-the-password" not in said[-1]
    for refused in said[:2]:
        assert "the broker refused the user or password: check the URL" in refused
    assert "virtual host" in said[2]
    # A worker says once what YAML 1.1 reads otherwise.
    assert said[1].count("worker.yaml: line 2: ") == said[1].count("no is read as") == 1


@pytest.mark.parametrize("url", ["ftp://127.0.0.1:15672/", "memory://"])
def test_a_broker_url_that_cannot_be_used_is_refused(evaluator: CommandLine, url: str) -> None:
    refused = evaluator.run("info", code=2, env={"QUINTAIN_BROKER_URL": url})
    assert "QUINTAIN_BROKER_URL" in refused.stderr
    assert "amqp://" in refused.stderr
