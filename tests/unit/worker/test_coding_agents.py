"""What the command lines of coding agents print, as recorded, and what is made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from quintain.config.program_targets import CommandTarget
from quintain.contracts.invoke import InvokeRequest, TokenUsage
from quintain_worker.providers.agents.coding_agents import PRESET_READERS
from quintain_worker.providers.agents.lines import TurnReading
from quintain_worker.providers.factory import build_provider
from quintain_worker.providers.provider import ProviderContext

#: Claude Code 2.1.332, Codex 0.171.0 and opencode 1.18.33, with a stub for their model, shortened; and what the page of
#: Gemini CLI's headless mode documents.
RECORDED = Path(__file__).parent / "recorded_agents"

SHELL = ("execute_tool", {"command": "echo tide"})
ANSWER = ("chat", "High tide is at 12:40.")


@pytest.mark.parametrize(
    ("preset", "usage", "did"),
    [
        ("claude-code", (42, 18, 8, 4), [("chat", "Look."), (*SHELL, "tide", None), ANSWER]),
        (
            "codex",
            (42, 18, 8, None),
            [
                ("log", "Model metadata for `model` not found."),
                ("chat", "Look."),
                (*SHELL, {"output": "tide\n", "exit_code": 1}, "error"),
                ("execute_tool", {"day": 1}, {"content": []}, None),
                ANSWER,
            ],
        ),
        (
            "gemini",
            (42, 18, 8, None),
            [
                ("chat", "Let me look."),
                (*SHELL, {"type": "E", "message": "no shell"}, "error"),
                ("log", "Loop detected"),
                ANSWER,
            ],
        ),
        (
            "opencode",
            (42, 18, 8, 4),
            [
                ("chat", "Look."),
                (*SHELL, "tide\n", None),
                ("execute_tool", {"filePath": "/tides"}, "File not found: /tides", "error"),
                ANSWER,
            ],
        ),
    ],
)
def test_lines_become_the_answer_its_tokens_and_steps(
    preset: str, usage: tuple[int | None, ...], did: list[tuple[object, ...]]
) -> None:
    reading = TurnReading(None)
    for line in (RECORDED / f"{preset}.jsonl").read_text().splitlines():
        assert not reading.is_over
        PRESET_READERS[preset](json.loads(line), reading)  # type: ignore[index]
    answer = reading.answer
    assert answer is not None
    taken, given, cached, written = usage
    assert answer.text == "High tide is at 12:40."
    assert answer.token_usage == TokenUsage(input=taken, output=given, cached=cached, cache_write=written)
    assert answer.estimated_cost_usd == (0.0005 if preset == "claude-code" else None)
    said: list[tuple[object, ...]] = []
    for step in answer.steps:
        if step.operation == "execute_tool":
            said.append((step.operation, step.arguments, step.result, step.error_type))
        elif step.messages is not None:
            said.append((step.operation, step.messages[0]["parts"][0]["content"]))
        else:
            said.append((step.operation, step.result))
    assert said == did


@pytest.mark.parametrize(
    ("preset", "line", "message"),
    [
        ("claude-code", {"type": "result", "subtype": "error_max_turns", "is_error": True}, "error_max_turns"),
        ("claude-code", {"type": "result", "is_error": True, "result": "API Error: 402"}, "API Error: 402"),
        ("codex", {"type": "turn.failed", "error": {"message": "no quota"}}, "no quota"),
        ("gemini", {"type": "result", "status": "error", "error": {"message": "no quota"}}, "no quota"),
        ("opencode", {"type": "error", "error": {"name": "APIError", "data": {"message": "no quota"}}}, "no quota"),
        ("opencode", {"type": "error", "error": {"name": "UnknownError"}}, "UnknownError"),
        ("claude-code", {"type": "result", "is_error": True}, "{'type': 'result', 'is_error': True}"),
        ("codex", {"type": "turn.failed"}, "{'type': 'turn.failed'}"),
        ("gemini", {"type": "result", "status": "error"}, "{'type': 'result', 'status': 'error'}"),
        ("opencode", {"type": "error", "error": "gone"}, "{'type': 'error', 'error': 'gone'}"),
    ],
)
def test_a_turn_that_failed_is_an_error(preset: str, line: dict[str, object], message: str) -> None:
    reading = TurnReading(None)
    for printed in ({"type": "a later version's"}, {}, line):
        PRESET_READERS[preset](printed, reading)  # type: ignore[index]
    assert reading.error == message


#: Answers with its arguments and its prompt.
STAND_IN = r"""#!/bin/sh
prompt=$(tr '\n' '|')
printf '{"type":"result","is_error":false,"result":"%s %s"}' "$*" "$prompt"
"""


async def test_a_preset_starts_its_program_with_the_prompt_and_the_arguments_of_both(tmp_path: Path) -> None:
    stand_in = tmp_path / "claude"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    fields = {"provider": "command", "preset": "claude-code", "command": [str(stand_in), "--model", "opus"]}
    target = CommandTarget.model_validate(fields)
    provider = build_provider("it", target, ProviderContext(tmp_path, {"PATH": "/usr/bin:/bin"}))
    messages = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    request = InvokeRequest.model_validate({"messages": messages, "turn": {"conversationId": "c", "number": 2}})
    answer = await provider.answer(request, timeout_seconds=30)
    assert answer.text == "-p --output-format stream-json --verbose --model opus user: one||user: two"
    assert not answer.holds_conversation
    await provider.close()


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, "command"),
        ({"preset": "copilot"}, "preset"),
        ({"preset": "codex", "protocol": "jsonl"}, "protocol"),
        ({"preset": "codex", "output_format": "json"}, "output_format"),
        ({"protocol": "jsonl", "command": ["x", "{prompt_file}"]}, "{prompt_file}"),
        ({"command": ["x"], "child_session": {"targets": ["m"]}}, "child_session"),
        ({"preset": "codex", "child_session": {"targets": ["m"]}, "env": {"OPENAI_API_KEY": "k"}}, "OPENAI_API_KEY"),
        ({"preset": "codex", "child_session": {"targets": ["m"]}, "env_from": ["OPENAI_BASE_URL"]}, "OPENAI_BASE_URL"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(fields: dict[str, object], names: str) -> None:
    with pytest.raises(ValidationError, match=names):
        CommandTarget.model_validate({"provider": "command", **fields})


def test_with_a_child_session_the_agent_is_pointed_to_its_model() -> None:
    fields = {"provider": "command", "preset": "codex", "child_session": {"targets": ["gpt", "other"]}}
    codex = CommandTarget.model_validate(fields)
    assert codex.command_line[:4] == ["codex", "exec", "--json", "--skip-git-repo-check"]
    assert codex.command_line[-3:] == ["-m", "gpt", "-"]
    claude = CommandTarget.model_validate({**fields, "preset": "claude-code"})
    assert set(claude.session_variables.values()) == {"gpt"}
    assert CommandTarget.model_validate({**fields, "child_session": None}).command_line[-1] == "-"
