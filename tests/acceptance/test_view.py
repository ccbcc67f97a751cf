"""``quintain view`` as a process: its address, who may read, and its end."""

from __future__ import annotations

import html
import json
import re
import shlex
import signal
import time
from urllib.parse import urlsplit

import pytest

from support.command_line import CommandLine, RunningCommand
from support.results_folder import errored_row, graded_row, sample_trajectory, write_results
from support.view_client import ask, enter_cookie


def opened(shell: CommandLine, *words: str) -> tuple[RunningCommand, str, str]:
    """The running command, and the address and the token that it printed."""
    command = shell.start("view", "--no-open", "--json", *words)
    command.wait_for(lambda one: one.stdout.endswith("\n"))
    address, token = json.loads(command.stdout)["url"].split("#token=")
    return command, address.removesuffix("/"), token


def test_the_pages_open_with_the_token_and_only_with_it(shell: CommandLine) -> None:
    write_results(shell.folder / "runs" / "one", [graded_row("1", 1.0), graded_row("2", 0.0), errored_row("3")])
    command, origin, token = opened(shell)
    name, value = enter_cookie(origin, token)

    assert ask(origin, "GET", "/")[0] == 401
    assert ask(origin, "GET", "/run/one/case?id=1")[0] == 401
    assert ask(origin, "GET", "/", Cookie=f"{name}=other")[0] == 401
    assert ask(origin, "GET", "/", Cookie=f"{name}={value}", Host="evil.example")[0] == 421
    assert ask(origin, "POST", "/enter", {"token": "other"}, Origin=origin)[0] == 401
    assert ask(origin, "POST", "/enter", {"token": token}, Origin="http://evil.example")[0] == 403
    assert ask(origin, "POST", "/run/one/notes", {}, Cookie=f"{name}={value}")[0] == 403
    # A page does not wait until every row is indexed.
    deadline = time.monotonic() + 30
    while 'class="matrix"' not in ask(origin, "GET", "/run/one", Cookie=f"{name}={value}")[2]:
        assert time.monotonic() < deadline
    for path, part in {"/": "one", "/run/one": "matrix", "/run/one/case?id=2": "answer"}.items():
        status, headers, text = ask(origin, "GET", path, Cookie=f"{name}={value}")
        assert (status, part in text) == (200, True), path
        assert "default-src 'none'" in headers["content-security-policy"]
        assert token not in text
    assert command.stop(signal.SIGINT).code == 0


def test_a_report_of_trajectories_only_is_a_file(shell: CommandLine) -> None:
    with sample_trajectory(shell.folder / "runs" / "attack"):
        shell.run("report", "runs/attack", "--html", "attack.html")
    assert "support-bot" in (shell.folder / "attack.html").read_text()


def test_the_command_that_a_page_shows_opens_the_same_list(shell: CommandLine) -> None:
    write_results(shell.folder / "runs" / "it's", [graded_row("1", 1.0), graded_row("2", 0.0)])
    command, address, token = opened(shell, "runs/it's", "--at", "is=bot:failed")
    origin, path, query = re.fullmatch(r"(http://[^/]+)(/run/it%27s)\?(.+)", address).groups()
    name, value = enter_cookie(origin, token)
    status, _, text = ask(origin, "GET", f"{path}?{query}", Cookie=f"{name}={value}")
    (shown,) = re.findall(r'id="opening"[^>]*>([^<]*)<', text)
    assert status == 200
    assert shlex.split(html.unescape(shown)) == ["quintain", "view", "runs/it's", "--at", query]
    assert command.stop().code == 0


@pytest.mark.parametrize(
    "words",
    [("eval.yaml",), ("--port", "70000"), ("--unknown",), ("nowhere",), ("--at", "is=bot:failed"), ("--at", "nothing")],
)
def test_bad_words_are_a_usage_error(shell: CommandLine, words: tuple[str, ...]) -> None:
    (shell.folder / "eval.yaml").write_text("{}")
    shell.run("view", "--no-open", *words, code=2)


def test_a_port_in_use_is_named_and_ends_the_command(shell: CommandLine) -> None:
    command, origin, _ = opened(shell)
    port = urlsplit(origin).port
    refused = shell.run("view", "--no-open", "--json", "--port", str(port), code=2)
    assert str(port) in str(refused.json["error"])
    assert command.stop().code == 0
