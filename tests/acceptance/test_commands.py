"""Every command by the words a user types: what it prints where, and its exit code; before a real broker."""

from __future__ import annotations

import json
import tomllib
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import CommandLine
from support.process_fleet import fleet_shell
from support.quick import lease_variable

REPOSITORY = Path(__file__).parents[2]

CONFIG = r"""
targets:
  echo: {provider: mock}
  sage: {provider: mock, response: "42", token_usage: {input: 7, output: 2}}
  rogue: {provider: mock, response: "\e[31mred\e[0m \e]0;title\a \x9b31m \u202Eright to left [bold]plain[/bold]"}
"""
TARGETS = ["echo", "sage", "rogue"]


@pytest.fixture(scope="module")
def shell(broker_url: str) -> Iterator[CommandLine]:
    """A shell before a fleet whose worker was started before its metadata service."""
    services, quick = ("worker", "metadata"), lease_variable()
    with fleet_shell(broker_url, CONFIG, targets=TARGETS, services=services, variables=quick) as shell:
        yield shell


@pytest.fixture(scope="module")
def caller(shell: CommandLine) -> CommandLine:
    """A shell with the token of a session whose default target is sage."""
    return with_session(shell, "sage", 50)[1]


def with_session(shell: CommandLine, target: str, max_calls: int) -> tuple[str, CommandLine]:
    """A new session's id, and a shell with its token."""
    opened = shell.run("session", "open", "--default-target", target, "--max-calls", str(max_calls), "--json").json
    return str(opened["sessionId"]), shell.with_environment({"QUINTAIN_SESSION_TOKEN": str(opened["token"])})


def control_characters(text: str) -> list[str]:
    """The characters of a text that a terminal would obey, or that turn the line's direction."""
    return [one for one in text if unicodedata.category(one) in {"Cc", "Cf"} and one not in "\n\t"]


def test_the_version_is_the_distributions(shell: CommandLine) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert shell.run("--version").stdout == f"{project['version']}\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("invoice",), "No such command 'invoice'"),
        (("invoke", "--targets", "sage", "hi"), "No such option: --targets"),
        (("invoke",), "Missing argument"),
        (("session", "open"), "name one of echo, sage, rogue"),
        (("session", "open", "--default-target", "two words"), "default_target"),
        (("run", "eval.yaml", "--concurrency", "0"), "--concurrency"),
        (("run", "eval.yaml", "--weight", "0"), "--weight"),
        (("run", "eval.yaml", "--priority", "urgent"), "--priority"),
        (("session", "open", "--default-target", "sage", "--weight", "nan"), "--weight"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_no_command_or_option_is_a_usage_error(shell: CommandLine, words: tuple[str, ...], says: str) -> None:
    refused = shell.run(*words, code=2)
    assert says in refused.stderr
    assert refused.stdout == ""


def test_session_open_shows_the_token_and_the_next_step_and_with_json_the_answer_alone(shell: CommandLine) -> None:
    opened = shell.run("session", "open", "--default-target", "sage", "--json")
    assert opened.json.keys() == {"sessionId", "token"}
    assert opened.stderr == ""
    opened = shell.run("session", "open", "--default-target", "not-registered-yet", "--expires-in", "60")
    facts = dict(line.split() for line in opened.stdout.splitlines())
    assert facts["token"].startswith(f"qtn_ses_{facts['session']}_")
    assert "QUINTAIN_SESSION_TOKEN" in opened.stderr


def test_where_one_target_is_configured_none_needs_a_name(shell: CommandLine) -> None:
    alone = shell.folder / "alone.yaml"
    alone.write_text("targets: {echo: {provider: mock}}\n")
    opened = shell.run("session", "open", "--json", env={"QUINTAIN_CONFIG": str(alone)}).json
    answer = shell.run("invoke", "hi", env={"QUINTAIN_SESSION_TOKEN": str(opened["token"])})
    assert answer.stdout == "hi\n"


def test_a_session_is_listed_and_shown_as_its_opener_wrote_it(shell: CommandLine) -> None:
    label, share = "[/no] :smile:", ("--weight", "42", "--priority", "batch")
    words = ("session", "open", "--default-target", "echo", "--max-calls", "7", "--label", label, *share, "--json")
    session_id = str(shell.run(*words).json["sessionId"])
    (row,) = [line for line in shell.run("session", "list").stdout.splitlines() if session_id in line]
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells == [session_id, "open", "echo", "0/7", "batch", label]
    listed = shell.run("session", "list", "--state", "open", "--json").json["sessions"]
    assert isinstance(listed, list)
    (told,) = [one for one in listed if one["sessionId"] == session_id]
    shown = shell.run("session", "show", session_id, "--json").json
    assert {**told, "usage": [], "now": 0} == {**shown, "now": 0}
    assert (told["targetName"], told["callCount"], told["maxCalls"], told["weight"]) == ("echo", 0, 7, 42)
    assert (told["label"], "token" in told) == (label, False)
    assert "weight 42, priority batch" in shell.run("session", "show", session_id).stdout


@pytest.mark.parametrize(("calls", "priority"), [(50, "interactive"), (51, "normal")])
def test_a_small_session_is_a_persons(shell: CommandLine, calls: int, priority: str) -> None:
    session_id, _ = with_session(shell, "sage", calls)
    assert shell.run("session", "show", session_id, "--json").json["priority"] == priority


def test_a_session_that_is_not_there_is_said_with_where_to_look(shell: CommandLine) -> None:
    refused = shell.run("session", "show", "nobody", code=1)
    assert "'nobody'" in refused.stderr
    assert "quintain session list" in refused.stderr
    assert shell.run("session", "show", "nobody", "--json", code=1).json["code"] == "bad_request"


def test_a_closed_session_opens_nothing_any_more(shell: CommandLine) -> None:
    session_id, evaluator = with_session(shell, "sage", 3)
    assert "closed" in shell.run("session", "close", session_id).stdout
    assert shell.run("session", "close", session_id, "--json").json["state"] == "closed"
    refused = evaluator.run("invoke", "hi", code=1)
    assert refused.stderr.startswith("error  Unauthorized\n")
    assert "QUINTAIN_SESSION_TOKEN" in refused.stderr
    assert evaluator.run("info", "--json", code=1).json["code"] == "unauthorized"


def test_invoke_prints_the_answer_alone_and_its_cost_beside_it(caller: CommandLine) -> None:
    answered = caller.run("invoke", "What is six times seven?")
    assert answered.stdout == "42\n"
    assert answered.stderr.startswith("sage  ")
    assert "7+2 tokens" in answered.stderr
    answered = caller.run("invoke", "hi", "--json")
    result = answered.json
    assert (result["rawText"], result["target"], result["attempts"], result["maxCalls"]) == ("42", "sage", 1, 50)
    assert result["output"] == [{"role": "assistant", "content": "42"}]
    assert result["tokenUsage"] == {"input": 7, "output": 2}
    assert answered.stderr == ""


def test_invoke_reads_the_question_from_standard_input(caller: CommandLine) -> None:
    question = "a question\nof two lines, and ümläüts"
    assert caller.run("invoke", "-", "--target", "echo", stdin=question).stdout == f"{question}\n"
    asked = caller.run("invoke", "-", "--target", "echo", "--json", stdin="\ufeffa\rb\u2028c\r\nd").json
    assert asked["rawText"] == "a\rb\u2028c\r\nd"


def test_info_tells_the_session_its_counters_and_its_targets(shell: CommandLine) -> None:
    session_id, evaluator = with_session(shell, "sage", 9)
    evaluator.run("invoke", "hi")
    told = evaluator.run("info", "--json").json
    assert (told["sessionId"], told["targetName"]) == (session_id, "sage")
    assert (told["callCount"], told["committed"], told["maxCalls"]) == (1, 1, 9)
    assert told["availableTargets"] == TARGETS
    assert "calls 1 of 9" in " ".join(evaluator.run("info").stdout.split())


def test_an_unknown_target_is_a_fault_with_the_list(caller: CommandLine) -> None:
    refused = caller.run("invoke", "--target", "nobody", "hi", code=1)
    missing, error = refused.stderr.splitlines()
    assert missing.startswith("waiting  no worker has registered nobody; ")
    assert error == "error  Unknown target 'nobody'. Available: echo, sage, rogue"
    assert refused.stdout == ""
    told = caller.run("invoke", "--target", "nobody", "hi", "--json", code=1)
    assert (told.json["code"], told.json["availableTargets"]) == ("unknown_target", TARGETS)
    assert told.stderr == f"{missing}\n"


def test_a_spent_budget_has_an_exit_code_of_its_own(shell: CommandLine) -> None:
    _, evaluator = with_session(shell, "sage", 1)
    evaluator.run("invoke", "hi")
    refused = evaluator.run("invoke", "hi", code=4)
    assert "Max calls exceeded (limit: 1)" in refused.stderr
    assert "quintain info" in refused.stderr
    assert evaluator.run("invoke", "hi", "--json", code=4).json["code"] == "budget_exhausted"
    assert evaluator.run("info", "--json").json["callCount"] == 1


@pytest.mark.parametrize(
    ("unset", "words", "mend"),
    [
        ("QUINTAIN_SESSION_TOKEN", ("invoke", "hi"), "quintain session open"),
        ("QUINTAIN_BROKER_URL", ("info",), "amqp://"),
        ("QUINTAIN_BROKER_URL", ("session", "list"), "amqp://"),
        ("QUINTAIN_ADMIN_TOKEN", ("session", "list"), "the metadata service"),
    ],
)
def test_a_variable_that_is_needed_and_not_set_is_named_with_the_mend(
    caller: CommandLine, unset: str, words: tuple[str, ...], mend: str
) -> None:
    refused = caller.run(*words, code=2, env={unset: ""})
    assert unset in refused.stderr
    assert mend in refused.stderr
    told = caller.run(*words, "--json", code=2, env={unset: ""})
    assert (told.json["code"], told.stderr) == ("config_error", "")


def test_what_a_model_wrote_never_steers_the_terminal(caller: CommandLine) -> None:
    answered = caller.run("invoke", "hi", "--target", "rogue")
    assert "red" in answered.stdout
    assert "[bold]plain[/bold]" in answered.stdout
    assert control_characters(answered.stdout + answered.stderr) == []
    told = caller.run("invoke", "hi", "--target", "rogue", "--json")
    assert control_characters(told.stdout) == []
    assert json.loads(told.stdout)["rawText"].startswith("\x1b[31mred")
