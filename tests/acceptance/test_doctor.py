"""``quintain doctor``: a broker and a ledger as they should be, and what is said of those that are not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest

from support.command_line import CommandLine, CommandResult
from support.process_fleet import fleet_shell

CONFIG = "targets: {echo: {provider: mock}}\n"


@pytest.fixture(scope="module")
def shell(broker_url: str) -> Iterator[CommandLine]:
    """A shell before a broker with no service on it."""
    with fleet_shell(broker_url, CONFIG, targets=["echo"]) as shell:
        yield shell


def verdicts(ended: CommandResult) -> dict[str, Any]:
    lines: Any = ended.json["lines"]
    return {line["what"]: line["verdict"] for line in lines}


def test_it_sees_what_is_there_what_is_missing_and_what_is_different(shell: CommandLine, broker_url: str) -> None:
    before = verdicts(shell.run("doctor", "--json"))
    assert (before["broker"], before["version"], before["ledger"]) == ("ok", "ok", "note")
    assert before["quintain.ledger.settle"] == "warn"
    services = shell.serve("metadata", "worker")
    well = verdicts(shell.run("doctor", "--json"))
    # Of the consumer timeout it speaks where the broker has one for all queues.
    noted = {what for what, verdict in well.items() if verdict != "ok"} - {"consumer timeout"}
    assert noted == {"management API"}
    assert well["quintain.target.echo"] == well["ledger"] == "ok"
    for one in services:
        one.kill()
    with pika.BlockingConnection(pika.URLParameters(broker_url)) as connection:
        channel = connection.channel()
        channel.queue_delete("quintain.target.echo")
        channel.queue_declare("quintain.target.echo", durable=True, arguments={"x-queue-type": "quorum"})
    sick = shell.run("doctor", code=1)
    failed = [line for line in sick.stdout.splitlines() if line.startswith("fail ")]
    assert any(line.startswith("fail  quintain.target.echo ") for line in failed)
    assert sick.stdout.splitlines()[-len(failed) :] == failed, "what is to be mended is not below all else"
    assert "inequivalent" in "".join(sick.stdout.split())
    assert "then quintain doctor" in sick.stderr


def test_a_broker_that_is_not_there_is_said_beside_the_rest(shell: CommandLine) -> None:
    env = {"QUINTAIN_BROKER_URL": "amqp://guest:guest@127.0.0.1:1/", "QUINTAIN_LEDGER_URL": "sqlite:///nowhere/l"}
    ended = shell.run("doctor", "--timeout", "0.5", "--json", code=1, env=env)
    found = verdicts(ended)
    assert (found["broker"], found["ledger"]) == ("fail", "fail")
    assert "guest:guest" not in ended.stdout
