"""Programs that speak JSON lines: what they are told, what is made of what they print, and how conversations end."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quintain.config.program_targets import CommandTarget
from quintain.contracts.invoke import InvokeRequest, OutputMessage, TokenUsage
from quintain.errors import BadRequest, ConversationLost, Fault, Overloaded, ProviderFailed, ReplyTooLarge, TimedOut
from quintain_worker.providers.agents import conversation_pool
from quintain_worker.providers.factory import build_provider
from quintain_worker.providers.provider import (
    Billing,
    Delta,
    Provider,
    ProviderAnswer,
    ProviderContext,
    ProviderFailure,
)
from support.waiting import wait_until

SECRET = "correct-horse-battery"
ENV = {"PATH": os.environ["PATH"], "TOLD": SECRET}

#: What a test's program begins with: it reads turns, and prints.
PRELUDE = """
import json, os, sys, time
def tell(**line): print(json.dumps(line), flush=True)
turns = map(json.loads, sys.stdin)
"""

#: Answers each turn with the number of turns that it had, and its own process id.
COUNTING = """
for count, turn in enumerate(turns, 1):
    tell(type="answer", text=f"{count} {os.getpid()} {turn['prompt']}")
"""


@asynccontextmanager
async def program(folder: Path, script: str, **options: object) -> AsyncIterator[Provider]:
    command = [sys.executable, "-u", "-c", PRELUDE + script]
    fields = {"provider": "command", "protocol": "jsonl", "command": command, "env_from": ["TOLD"], **options}
    provider = build_provider("it", CommandTarget.model_validate(fields), ProviderContext(folder, ENV))
    try:
        yield provider
    finally:
        await provider.close()


async def ask(
    provider: Provider, conversation: str | None = None, number: int = 1, seconds: float = 30, **fields: object
) -> tuple[ProviderAnswer, list[Delta]]:
    turn = None if conversation is None else {"conversationId": conversation, "number": number}
    pieces: list[Delta] = []
    request = InvokeRequest.model_validate({"turn": turn, **(fields or {"question": "Well?"})})
    return await provider.answer(request, timeout_seconds=seconds, on_text=pieces.append), pieces


async def failure(provider: Provider, conversation: str | None = None, number: int = 1, seconds: float = 30) -> Fault:
    with pytest.raises(ProviderFailure) as caught:
        await ask(provider, conversation, number, seconds)
    failed = caught.value
    assert failed.retryable == isinstance(failed.fault, Overloaded)
    doubtful = isinstance(failed.fault, TimedOut) or "in the middle of a turn" in failed.fault.message
    billed = Billing.UNKNOWN if doubtful else Billing.BILLED
    uncharged = isinstance(failed.fault, ConversationLost | Overloaded)
    assert failed.billing is (Billing.UNBILLED if uncharged else billed)
    return failed.fault


async def test_a_turn_is_told_with_the_whole_conversation(tmp_path: Path) -> None:
    echo = "tell(type='answer', text=json.dumps(next(turns)))"
    messages = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    last = {"role": "user", "content": [{"type": "text", "text": "three"}]}
    async with program(tmp_path, echo) as provider:
        answer, _ = await ask(provider, "c", messages=[*messages, last], systemPrompt="be kind")
    told = json.loads(answer.text)
    assert told == {
        "type": "turn",
        "conversation": "c",
        "number": 1,
        "prompt": "three",
        "messages": [{"role": "system", "content": "be kind"}, *messages, last],
    }


async def test_what_is_printed_becomes_pieces_steps_tokens_and_the_answer(tmp_path: Path) -> None:
    script = """
tell(type="text", text="High ")
tell(**{"type": "step", "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "tides", "of": "another version"})
tell(type="text", text="tide")
tell(type="answer", text="High tide.", usage={"input": 3, "output": 2})
"""
    async with program(tmp_path, script) as provider:
        answer, pieces = await ask(provider)
    assert pieces == ["High ", "tide", "."]
    assert (answer.text, answer.token_usage) == ("High tide.", TokenUsage(input=3, output=2))
    assert [(step.operation, step.tool) for step in answer.steps] == [("execute_tool", "tides")]


@pytest.mark.parametrize(
    ("printed", "text", "output"),
    [
        ("tell(type='text', text='a'); tell(type='text', text='b'); tell(type='answer')", "ab", None),
        ("tell(type='answer', text='')", "", None),
        (
            "tell(type='answer', output=[{'role': 'tool', 'content': 'x'}, {'role': 'assistant', 'content': 'y'}])",
            "y",
            [OutputMessage(content="y")],
        ),
        ("print(); sys.stdout.write(json.dumps({'type': 'answer', 'text': 'without an end'}))", "without an end", None),
    ],
)
async def test_an_answer_has_several_forms(
    tmp_path: Path, printed: str, text: str, output: list[OutputMessage] | None
) -> None:
    async with program(tmp_path, printed) as provider:
        answer, _ = await ask(provider)
    assert (answer.text, answer.output) == (text, output)


@pytest.mark.parametrize(
    "end", ["tell(type='error', message='no')", "sys.exit(3)", "print('no JSON')", "import time; time.sleep(9)"]
)
async def test_what_was_done_before_a_failure_is_told_with_it(tmp_path: Path, end: str) -> None:
    step = {"type": "step", "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "pay"}
    async with program(tmp_path, f"tell(**{step})\n{end}") as provider:
        fault = await failure(provider, seconds=1 if "sleep" in end else 30)
    assert [(one.operation, one.tool) for one in fault.steps] == [("execute_tool", "pay")]


async def test_a_conversation_has_one_process_until_it_ends(tmp_path: Path) -> None:
    async with program(tmp_path, COUNTING, conversation_idle_seconds=0.3) as provider:
        (first, _), (other, _) = await asyncio.gather(ask(provider, "a", 1), ask(provider, "b", 1))
        second, _ = await ask(provider, "a", 2)
        assert first.holds_conversation
        (_, pid, _), (count, same_pid, _), (_, other_pid, _) = (a.text.split() for a in (first, second, other))
        assert (count, pid) == ("2", same_pid)
        assert other_pid != pid
        await wait_until(lambda: not is_running(int(pid)))
        assert isinstance(await failure(provider, "a", 3), ConversationLost)


async def test_a_call_without_a_turn_is_a_conversation_of_its_own(tmp_path: Path) -> None:
    async with program(tmp_path, COUNTING) as provider:
        answers = [(await ask(provider))[0] for _ in range(2)]
        assert [answer.text[:2] for answer in answers] == ["1 ", "1 "]
        assert not any(answer.holds_conversation for answer in answers)
        pids = [int(answer.text.split()[1]) for answer in answers]
        await wait_until(lambda: not any(map(is_running, pids)))


async def test_a_conversation_that_is_not_here_is_lost(tmp_path: Path) -> None:
    script = (
        "for turn in turns:\n  tell(type='answer', text=str(os.getpid()))\n  if turn['prompt'] == 'end': sys.exit(3)"
    )
    async with program(tmp_path, script) as provider:
        assert isinstance(await failure(provider, "never begun", 2), ConversationLost)
        await ask(provider, "a", 1)
        assert isinstance(await failure(provider, "a", 3), ConversationLost)
        ended, _ = await ask(provider, "b", 1, question="end")
        await wait_until(lambda: not Path(f"/proc/{ended.text}").exists())
        await asyncio.sleep(0.05)  # the loop sees the end of its pipe
        assert isinstance(await failure(provider, "b", 2), ConversationLost)
        again, _ = await ask(provider, "b", 1)
        assert again.text != ended.text


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("print('Loading … ' + os.environ['TOLD'] + ' ' + 'x' * 300)", "all else to stderr: Loading … … xxx"),
        ("print([1])", "it is no JSON object; print one"),
        ("tell(type='thought', text='?')", "its type is none of"),
        ("tell(type='step')", "gen_ai.operation.name"),
        ("tell(type='answer')", "it has neither text nor output"),
        ("tell(type='text', text='high'); tell(type='answer', text='hint')", "at character 3 of 4"),
        ("tell(type='text', text='high'); tell(type='answer', text='h')", "at character 2 of 4"),
        ("tell(type='text', text='high'); tell(type='answer', output='no, high')", "at character 1 of 4"),
        ("tell(type='error', message='')", "with an error: {'type': 'error'"),
        ("sys.exit(3)", "exit code 3, and it wrote nothing on stderr"),
        ("tell(type='error', message='no tide of ' + os.environ['TOLD'])", "with an error: no tide of …"),
        ("print('gone', file=sys.stderr); sys.exit(7)", "exit code 7: gone"),
        ("tell(type='text', text='a'); os.kill(os.getpid(), 9)", "killed by signal 9, and it wrote nothing on stderr"),
    ],
)
async def test_what_cannot_be_used_is_quoted_and_ends_the_program(tmp_path: Path, script: str, message: str) -> None:
    async with program(tmp_path, script + "\ntime.sleep(60)") as provider:
        fault = await failure(provider, "a")
        assert type(fault) is ProviderFailed
        assert message in fault.message
        assert SECRET not in fault.message
        assert len(fault.message) < 400
        assert isinstance(await failure(provider, "a", 2), ConversationLost)


@pytest.mark.parametrize(
    "script",
    [
        "while True: sys.stdout.write('x' * 1_000_000)",
        "while True: tell(type='text', text='x' * 1_000_000)",
        "while True: print()\n",
    ],
)
async def test_a_program_that_prints_without_end_is_stopped(tmp_path: Path, script: str) -> None:
    seconds = 0.5 if "print()" in script else 30
    async with program(tmp_path, script) as provider:
        assert isinstance(await failure(provider, seconds=seconds), ReplyTooLarge | TimedOut)


async def test_what_a_process_holds_open_does_not_keep_the_turn(tmp_path: Path) -> None:
    script = "import subprocess\nsubprocess.Popen(['setsid', 'sleep', '300'])\nsys.exit(4)"
    async with program(tmp_path, script) as provider:
        assert "exit code 4" in (await failure(provider)).message


async def test_a_conversation_waits_for_a_free_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with program(tmp_path, COUNTING, worker_concurrency=1) as provider:
        await ask(provider, "a", 1)
        monkeypatch.setattr(conversation_pool, "FREE_SECONDS", 0.1)
        assert isinstance(await failure(provider, "b", 1), Overloaded)
        assert (await ask(provider, "a", 2))[0].text.startswith("2 ")
    async with program(tmp_path, COUNTING, worker_concurrency=1, conversation_idle_seconds=0.2) as provider:
        monkeypatch.setattr(conversation_pool, "FREE_SECONDS", 30)
        await ask(provider, "a", 1)
        assert (await ask(provider, "b", 1))[0].text.startswith("1 ")
    async with program(tmp_path, COUNTING, worker_concurrency=1) as provider:
        await ask(provider, "b", 1)
        monkeypatch.setattr(conversation_pool, "HELD_SECONDS", 0)
        assert (await ask(provider, "c", 1))[0].text.startswith("1 ")
        assert isinstance(await failure(provider, "b", 2), ConversationLost)


async def test_the_calls_own_tools_are_refused(tmp_path: Path) -> None:
    async with program(tmp_path, COUNTING) as provider:
        with pytest.raises(ProviderFailure) as caught:
            await ask(provider, messages=[{"role": "tool", "content": "x", "toolCallId": "1"}])
    assert isinstance(caught.value.fault, BadRequest)


def is_running(pid: int) -> bool:
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
