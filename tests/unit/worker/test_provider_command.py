"""Programs as targets: what they are given, how they answer, how they fail, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path

import pytest

from quintain.config.program_targets import CommandTarget
from quintain.contracts.invoke import InvokeRequest, OutputMessage, TokenUsage
from quintain.errors import BadRequest, ProviderFailed, ReplyTooLarge, TargetUnavailable, TimedOut
from quintain_worker.providers.factory import build_provider
from quintain_worker.providers.provider import Billing, Provider, ProviderAnswer, ProviderContext, ProviderFailure

ENV = {"PATH": os.environ["PATH"], "GREETING": "hello"}


@pytest.fixture(autouse=True)
def calls_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the calls' folders are made; every test leaves it empty."""
    temp = tmp_path / "temp"
    temp.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temp))
    return temp


def make_provider(folder: Path, command: list[str], **options: object) -> Provider:
    target = CommandTarget.model_validate({"provider": "command", "command": command, **options})
    return build_provider("it", target, ProviderContext(folder, ENV))


def shell(script: str, *arguments: str) -> list[str]:
    return ["/bin/sh", "-c", script, "sh", *arguments]


async def answer_of(provider: Provider, **fields: object) -> ProviderAnswer:
    request = InvokeRequest.model_validate(fields or {"question": "How are you?"})
    return await provider.answer(request, timeout_seconds=30)


async def failure(provider: Provider, **fields: object) -> ProviderFailure:
    with pytest.raises(ProviderFailure) as caught:
        await answer_of(provider, **fields)
    return caught.value


async def test_the_question_is_on_stdin_and_the_answer_on_stdout(tmp_path: Path, calls_folder: Path) -> None:
    text = " Ünïcode \n'; $(reboot) {output_file}\n"
    assert await answer_of(make_provider(tmp_path, ["cat"]), question=text) == ProviderAnswer(text=text)
    assert list(calls_folder.iterdir()) == []


async def test_files_take_the_prompt_and_the_answer_where_they_are_asked_for(
    tmp_path: Path, calls_folder: Path
) -> None:
    command = shell('cat "$1" "$2" > "$3"; cat; echo ignored', "{prompt_file}", "{system_prompt_file}", "{output_file}")
    answer = await answer_of(make_provider(tmp_path, command), question="question ", systemPrompt="be kind")
    assert answer == ProviderAnswer(text="question be kind")
    assert list(calls_folder.iterdir()) == []


TURNS = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": [{"type": "text", "text": "two"}]},
    {"role": "user", "content": "three"},
]
SPOKEN = {"question": "q", "systemPrompt": "s"}
APART = shell('cat; echo; cat "$1"', "{system_prompt_file}")


@pytest.mark.parametrize(
    ("command", "fields", "text"),
    [
        (shell('cat "${1#--in=}"', "--in={prompt_file}"), {"question": "q"}, "q"),
        (["cat"], {"messages": TURNS}, "user: one\n\nassistant: two\n\nuser: three"),
        (["cat"], SPOKEN, "system: s\n\nuser: q"),
        (APART, SPOKEN, "q\ns"),
        (APART, {"question": "q"}, "q\n"),
        (shell(r"printf 'a\377b'"), {"question": "q"}, "a\ufffdb"),
        (["echo", "done"], {"question": "x" * 1_000_000}, "done\n"),
    ],
    ids=["part of an argument", "turns", "system prompt", "apart", "none", "no UTF-8", "unread input"],
)
async def test_what_is_asked_is_told_and_what_is_printed_is_read(
    tmp_path: Path, command: list[str], fields: dict[str, object], text: str
) -> None:
    assert (await answer_of(make_provider(tmp_path, command), **fields)).text == text


async def test_no_path_is_made_of_what_a_request_says(tmp_path: Path) -> None:
    listing = shell('echo "$1"; ls "$(dirname "$1")"', "{prompt_file}")
    answer = await answer_of(
        make_provider(tmp_path, listing),
        question="../../etc",
        evalCaseId="../evil",
        target="it",
        metadata={"x": "../evil"},
    )
    assert "evil" not in answer.text
    assert answer.text.splitlines()[1:] == ["prompt_file.txt", "system_prompt_file.txt"]


async def test_the_environment_is_what_was_passed_down_and_the_targets_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUINTAIN_CANARY", "canary")
    provider = make_provider(tmp_path, ["env"], env={"MINE": "1", "GREETING": "hi"})
    lines = (await answer_of(provider)).text.splitlines()
    assert {"MINE=1", "GREETING=hi"} <= set(lines)
    assert not [line for line in lines if "canary" in line]


async def test_it_runs_in_the_configurations_folder_or_where_it_says(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    assert (await answer_of(make_provider(tmp_path, ["pwd", "-P"]))).text.strip() == str(tmp_path.resolve())
    below = make_provider(tmp_path, ["pwd", "-P"], cwd="below")
    assert (await answer_of(below)).text.strip() == str((tmp_path / "below").resolve())


@pytest.mark.parametrize(
    ("printed", "answer"),
    [
        ({"text": "hi"}, ProviderAnswer(text="hi")),
        ({"output": "hi", "token_usage": {"input": 3, "output": 1}, "more": 1}, ("hi", 3, 1)),
        (
            {"output": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "hi"}]},
            ProviderAnswer(text="hi", output=[OutputMessage(content="hi")]),
        ),
        (
            {"output": [{"role": "assistant", "content": "hi", "toolCalls": [{"tool": "ls", "input": {"a": 1}}]}]},
            ProviderAnswer(text="hi", output=[OutputMessage(content="hi")]),
        ),
    ],
)
async def test_json_says_the_text_the_messages_and_the_tokens(
    tmp_path: Path, printed: dict[str, object], answer: ProviderAnswer | tuple[str, int, int]
) -> None:
    if isinstance(answer, tuple):
        text, taken, given = answer
        answer = ProviderAnswer(text=text, token_usage=TokenUsage(input=taken, output=given))
    provider = make_provider(tmp_path, ["cat"], output_format="json")
    assert await answer_of(provider, question=json.dumps(printed)) == answer


@pytest.mark.parametrize(
    "printed", ["canary", '{"canary": 1}', "[]", '{"output": []}', '{"text": 5}', '{"output": [{"role": "user"}]}']
)
async def test_json_that_says_nothing_is_charged_and_not_quoted(tmp_path: Path, printed: str) -> None:
    failed = await failure(make_provider(tmp_path, ["cat"], output_format="json"), question=printed)
    assert isinstance(failed.fault, ProviderFailed)
    assert failed.fault.message.startswith("it: exit code 0, and the answer cannot be used: ")
    assert "canary" not in failed.fault.message
    assert (failed.billing, failed.retryable, failed.fault.charged) == (Billing.BILLED, False, True)


async def test_an_exit_code_is_charged_and_told_with_the_end_of_stderr(tmp_path: Path, calls_folder: Path) -> None:
    script = "echo partial; i=0; while [ $i -lt 400 ]; do echo line $i >&2; i=$((i+1)); done; exit 7"
    failed = await failure(make_provider(tmp_path, shell(script)))
    assert isinstance(failed.fault, ProviderFailed)
    assert failed.fault.message.startswith("it: exit code 7: ")
    assert failed.fault.message.endswith("line 398\nline 399")
    assert len(failed.fault.message) == len("it: exit code 7: ") + 300
    assert (failed.billing, failed.retryable, failed.fault.charged) == (Billing.BILLED, False, True)
    assert list(calls_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (shell("kill -TERM $$"), "it: killed by signal 15, and it wrote nothing on stderr"),
        (["true", "{output_file}"], "it: exit code 0, and no {output_file} was written"),
    ],
)
async def test_a_program_without_an_answer_is_charged(tmp_path: Path, command: list[str], message: str) -> None:
    failed = await failure(make_provider(tmp_path, command))
    assert (failed.fault.message, failed.billing) == (message, Billing.BILLED)


@pytest.mark.parametrize(
    "command", [["no-such-program-at-all"], ["./not-here"], ["{folder}"]], ids=["by name", "by path", "a folder"]
)
async def test_a_missing_program_costs_nothing(tmp_path: Path, calls_folder: Path, command: list[str]) -> None:
    command = [part if part != "{folder}" else str(tmp_path) for part in command]
    failed = await failure(make_provider(tmp_path, command))
    assert isinstance(failed.fault, TargetUnavailable)
    assert (failed.billing, failed.retryable) == (Billing.UNBILLED, False)
    assert f"it: {command[0]} cannot be started: " in failed.fault.message
    assert list(calls_folder.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [shell("yes"), shell('head -c 9000000 /dev/zero > "$1"', "{output_file}")],
    ids=["on stdout", "in its file"],
)
async def test_an_answer_without_end_is_cut_off_and_charged(tmp_path: Path, command: list[str]) -> None:
    failed = await failure(make_provider(tmp_path, command))
    assert isinstance(failed.fault, ReplyTooLarge)
    assert failed.fault.message == "it: the answer is larger than 8 MiB"
    assert failed.billing is Billing.BILLED


@pytest.mark.parametrize(
    ("says", "field"),
    [
        ({"question": "q", "settings": {"temperature": 0}}, "settings.temperature"),
        ({"question": "q", "settings": {"maxTokens": 5}}, "settings.maxTokens"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        (
            {
                "messages": [
                    {"role": "assistant", "content": "", "toolCalls": [{"id": "1", "name": "f", "arguments": ""}]}
                ]
            },
            "messages[0].toolCalls",
        ),
        ({"question": "q", "settings": {"tools": [{"type": "function"}]}}, "settings.tools"),
    ],
)
async def test_what_a_program_cannot_be_told_is_refused_by_name(
    tmp_path: Path, says: dict[str, object], field: str
) -> None:
    failed = await failure(make_provider(tmp_path, ["cat"]), **says)
    assert isinstance(failed.fault, BadRequest)
    assert failed.fault.message.startswith(f"{field}: ")
    assert failed.billing is Billing.UNBILLED


async def test_a_program_is_not_heard_before_it_has_ended(tmp_path: Path) -> None:
    heard: list[str] = []
    provider = make_provider(tmp_path, shell("echo one; echo two"))
    answer = await provider.answer(InvokeRequest(question="q"), timeout_seconds=10, on_text=heard.append)
    assert (answer.text, heard) == ("one\ntwo\n", [])


async def test_many_calls_run_side_by_side_each_with_its_own_files(tmp_path: Path) -> None:
    provider = make_provider(tmp_path, shell('cat "$1" > "$2"', "{prompt_file}", "{output_file}"))
    answers = await asyncio.gather(*(answer_of(provider, question=f"question {number}") for number in range(20)))
    assert [answer.text for answer in answers] == [f"question {number}" for number in range(20)]


async def test_the_deadline_leaves_a_call_in_doubt_and_no_file(tmp_path: Path, calls_folder: Path) -> None:
    provider = make_provider(tmp_path, ["sleep", "600"])
    with pytest.raises(ProviderFailure) as caught:
        await provider.answer(InvokeRequest(question="q"), timeout_seconds=0.5)
    assert isinstance(caught.value.fault, TimedOut)
    assert (caught.value.billing, caught.value.retryable) == (Billing.UNKNOWN, False)
    assert list(calls_folder.iterdir()) == []


@pytest.mark.parametrize("stream", ["", " >&2"])
async def test_a_program_that_writes_goes_on_and_one_that_is_silent_for_too_long_is_ended(
    tmp_path: Path, calls_folder: Path, stream: str
) -> None:
    ticks = shell(f"for n in 1 2 3 4 5 6; do echo $n{stream}; sleep 0.1; done; echo done; $1", "true")
    assert (await answer_of(make_provider(tmp_path, ticks, idle_seconds=0.5))).text.endswith("done\n")
    stuck = make_provider(tmp_path, [*ticks[:-1], "sleep 600"], idle_seconds=0.5)
    async with asyncio.timeout(15):
        failed = await failure(stuck)
    assert isinstance(failed.fault, TimedOut)
    assert (failed.billing, failed.retryable) == (Billing.UNKNOWN, False)
