"""``quintain dlq``: from a message that nobody can answer to an operator who looks, sends it again, or drops it."""

from __future__ import annotations

import base64
import contextlib
import time
import unicodedata
from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from quintain.contracts.credentials import SessionToken
from support.command_line import CommandLine, run_at_terminal
from support.process_fleet import fleet_shell
from support.quick import lease_variable

CONFIG = r"""
targets:
  sage: {provider: mock, response: "42"}
  broken: {provider: mock, fail_rate: 1, max_tries: 1}
"""
HOSTILE = b"\x1b[31mred\x1b[0m \x1b]0;title\x07 [bold]"
TOKEN = SessionToken.mint()


@pytest.fixture(scope="module")
def shell(broker_url: str) -> Iterator[CommandLine]:
    """A shell before a whole fleet, with the token of a session."""
    services, quick = ("metadata", "worker"), lease_variable()
    with fleet_shell(broker_url, CONFIG, targets=["sage", "broken"], services=services, variables=quick) as shell:
        words = ("session", "open", "--default-target", "sage", "--max-calls", "3", "--json")
        yield shell.with_environment({"QUINTAIN_SESSION_TOKEN": str(shell.run(*words).json["token"])})


@pytest.fixture
def empty_dlq_shell(shell: CommandLine) -> CommandLine:
    """The shell before an empty poison queue."""
    with raw_channel(shell) as channel:
        channel.queue_purge("quintain.poison")
    return shell


@contextlib.contextmanager
def raw_channel(shell: CommandLine) -> Iterator[BlockingChannel]:
    """A stranger's channel."""
    connection = pika.BlockingConnection(pika.URLParameters(shell.env["QUINTAIN_BROKER_URL"]))
    try:
        yield connection.channel()
    finally:
        connection.close()


def send(shell: CommandLine, *bodies: bytes, target: str = "sage") -> list[dict[str, object]]:
    """A stranger's messages to a target that say nothing of where the answer goes; they as they are then listed."""
    headers = {"x-quintain-session": TOKEN.text, "x-note": HOSTILE.decode()}
    properties = pika.BasicProperties(type="invoke", delivery_mode=2, headers=headers)
    with raw_channel(shell) as channel:
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("quintain.invoke", target, body, properties, mandatory=True)
        ends = time.monotonic() + 30
        while channel.queue_declare("quintain.poison", passive=True).method.message_count < len(bodies):
            assert time.monotonic() < ends, "a message that nobody could answer did not come to quintain.poison"
            time.sleep(0.05)
    return listed(shell)


def listed(shell: CommandLine) -> list[dict[str, object]]:
    messages = shell.run("dlq", "list", "--json").json["messages"]
    assert isinstance(messages, list)
    return messages


def control_characters(text: str) -> list[str]:
    return [one for one in text if unicodedata.category(one) in {"Cc", "Cf"} and one not in "\n\t"]


def test_an_empty_queue_is_said_to_be_empty(empty_dlq_shell: CommandLine) -> None:
    told = empty_dlq_shell.run("dlq", "list")
    assert told.stdout == ""
    assert "quintain.poison is empty" in told.stderr
    assert empty_dlq_shell.run("dlq", "list", "--json").json == {"messages": []}
    assert empty_dlq_shell.run("dlq", "drop", "--all", "--yes").stdout == "dropped  0 messages\n"


def test_what_nobody_can_read_is_listed_shown_and_dropped(empty_dlq_shell: CommandLine) -> None:
    (message,) = send(empty_dlq_shell, b"\xff\x00" + HOSTILE)
    poison_id = str(message["id"])
    assert (message["exchange"], message["routingKey"], message["type"]) == ("quintain.invoke", "sage", "invoke")
    assert (message["reason"], message["sizeBytes"]) == ("rejected: no reply_to or no correlation_id", 2 + len(HOSTILE))
    table = empty_dlq_shell.run("dlq", "list")
    assert poison_id in table.stdout
    assert f"quintain dlq show {poison_id}" in table.stderr
    shown = empty_dlq_shell.run("dlq", "show", poison_id)
    assert "not UTF-8: --json has it" in shown.stdout
    assert f"quintain dlq drop {poison_id}" in shown.stderr
    assert control_characters(table.stdout + table.stderr + shown.stdout + shown.stderr) == []
    told = empty_dlq_shell.run("dlq", "show", poison_id, "--json")
    assert base64.b64decode(str(told.json["base64"])) == b"\xff\x00" + HOSTILE
    assert control_characters(told.stdout) == []
    secret = TOKEN.text.split("_")[3]
    for said in (table, shown, told):
        assert secret not in said.stdout
    assert f"qtn_ses_{TOKEN.id}_…" in shown.stdout
    assert [one["id"] for one in listed(empty_dlq_shell)] == [poison_id], "looking takes nothing out"
    dropped = empty_dlq_shell.run("dlq", "drop", poison_id, "--yes")
    assert dropped.stdout == "dropped  1 message\n"
    assert "quintain dlq list" in dropped.stderr
    assert listed(empty_dlq_shell) == []


def test_a_message_is_sent_again_under_the_operators_session(empty_dlq_shell: CommandLine) -> None:
    (message,) = send(empty_dlq_shell, b'{"question": "six times seven?"}')
    poison_id = str(message["id"])
    refused = empty_dlq_shell.run("dlq", "replay", poison_id, code=2, env={"QUINTAIN_SESSION_TOKEN": ""})
    assert "QUINTAIN_SESSION_TOKEN" in refused.stderr
    assert "masked" in refused.stderr
    charged = empty_dlq_shell.run("info", "--json").json["callCount"]
    unknown = empty_dlq_shell.run("dlq", "replay", poison_id, "--target", "nobody", code=1)
    assert "Unknown target 'nobody'" in unknown.stderr
    assert [one["id"] for one in listed(empty_dlq_shell)] == [poison_id], (
        "a call that was not charged leaves the message"
    )
    answered = empty_dlq_shell.run("dlq", "replay", poison_id)
    assert answered.stdout == "42\n"
    assert f"dropped  {poison_id}" in answered.stderr
    assert listed(empty_dlq_shell) == []
    assert empty_dlq_shell.run("info", "--json").json["callCount"] == int(str(charged)) + 1
    (again,) = send(empty_dlq_shell, b'{"question": "and again?"}')
    told = empty_dlq_shell.run("dlq", "replay", str(again["id"]), "--json")
    assert (told.json["rawText"], told.json["target"], told.stderr) == ("42", "sage", "")
    assert listed(empty_dlq_shell) == []


def test_a_call_that_failed_and_was_charged_is_an_answer_too(empty_dlq_shell: CommandLine) -> None:
    (message,) = send(empty_dlq_shell, b'{"question": "x"}', target="broken")
    failed = empty_dlq_shell.run("dlq", "replay", str(message["id"]), "--json", code=1)
    assert (failed.json["code"], failed.json["charged"]) == ("provider_error", True)
    assert listed(empty_dlq_shell) == []


def test_an_id_that_is_not_there_is_said_with_where_to_look(empty_dlq_shell: CommandLine) -> None:
    (message,) = send(empty_dlq_shell, b"\xff")
    for words in (("show", "nothing"), ("replay", "nothing"), ("drop", "nothing", "--yes")):
        refused = empty_dlq_shell.run("dlq", *words, code=1)
        assert "'nothing'" in refused.stderr
        assert "quintain dlq list" in refused.stderr
    told = empty_dlq_shell.run("dlq", "drop", "nothing", str(message["id"]), "--yes", "--json", code=1)
    assert told.json == {"dropped": [message["id"]], "unknown": ["nothing"]}


@pytest.mark.parametrize(
    ("words", "says"),
    [(("--yes",), "--all"), (("--all", "an-id", "--yes"), "--all"), (("--all",), "--yes"), (("an-id",), "--yes")],
    ids=" ".join,
)
def test_what_is_dropped_is_named_and_wished_for(shell: CommandLine, words: tuple[str, ...], says: str) -> None:
    refused = shell.run("dlq", "drop", *words, code=2)
    assert says in refused.stderr
    assert refused.stdout == ""


def test_on_a_terminal_somebody_is_asked_first(empty_dlq_shell: CommandLine) -> None:
    send(empty_dlq_shell, b"one", b"two")
    for typed, ended, left in (("n\n", (1, ""), 2), ("y\n", (0, "dropped  2 messages\n"), 0)):
        done = run_at_terminal(("dlq", "drop", "--all"), empty_dlq_shell.env, empty_dlq_shell.folder, typed)
        assert "permanently?" in done.stderr
        assert (done.code, done.stdout) == ended
        assert len(listed(empty_dlq_shell)) == left
