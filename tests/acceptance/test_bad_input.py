"""Bad input gets a sentence that names the file, the place and the mend; and what was written so far stays."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

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
        services = [evaluator.start("serve", name, env={"QUINTAIN_BROKER_URL": url}) for name in ("metadata", "worker")]
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


@pytest.mark.parametrize("words", [("run", "eval.yaml"), ("serve", "worker")], ids=" ".join)
def test_a_wrong_password_is_refused_at_once_and_not_shown(
    evaluator: CommandLine, broker_url: str, words: tuple[str, ...]
) -> None:
    url = f"amqp://guest:not-the-password@{broker_url.rpartition('@')[2]}"
    began = time.monotonic()
    refused = evaluator.run(*words, code=1, env={"QUINTAIN_BROKER_URL": url})
    assert time.monotonic() - began < 8
    assert "the broker refused the user or password: check the URL" in refused.stderr
    assert "not-the-password" not in refused.stderr


def test_a_worker_says_once_what_yaml_1_1_reads_otherwise(
    evaluator: CommandLine, broker_url: str, tmp_path: Path
) -> None:
    config = tmp_path / "quintain.yaml"
    config.write_text(
        "targets:\n  m: {provider: openai, model: m, settings: {cache_prompt: off, extra_body: {store: no}}}\n"
    )
    url = f"amqp://guest:not-the-password@{broker_url.rpartition('@')[2]}"
    env = {"QUINTAIN_BROKER_URL": url, "OPENAI_API_KEY": "none"}
    said = evaluator.run("serve", "worker", "--config", str(config), code=1, env=env).stderr
    assert said.count(f"{config}: line 2: ") == said.count("no is read as") == 1


def test_a_virtual_host_that_is_not_there_is_refused_at_once(evaluator: CommandLine, broker_url: str) -> None:
    began = time.monotonic()
    url = f"{broker_url.rstrip('/').removesuffix('/%2F')}/nobody-made-this"
    refused = evaluator.run("info", code=1, env={"QUINTAIN_BROKER_URL": url})
    assert time.monotonic() - began < 8
    assert "virtual host" in refused.stderr


@pytest.mark.parametrize("url", ["ftp://127.0.0.1:15672/", "memory://"])
def test_a_broker_url_that_cannot_be_used_is_refused(evaluator: CommandLine, url: str) -> None:
    refused = evaluator.run("info", code=2, env={"QUINTAIN_BROKER_URL": url})
    assert "QUINTAIN_BROKER_URL" in refused.stderr
    assert "amqp://" in refused.stderr
