"""An evaluator who pastes what ``quintain snippet`` prints; and the model that answers its tools."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quintain.settings import environment
from quintain_cli.commands.snippet import SNIPPETS, GatewayConnection, SnippetTool
from support.client_tools import ClientTool, search_path
from support.command_line import clean_environment
from support.memory_fleet import MemoryFleet
from support.model_server import ModelServer, ReceivedRequest, ScriptedResponse, StreamedResponse
from support.model_streams import chat_events
from support.model_wires import anthropic_answer, chat_answer

PROGRAMS = Path(__file__).parent / "programs"

#: What evaluation tools are told to send, besides a limit of 50 tokens.
PARAMETERS: dict[str, object] = {
    "temperature": 0.3,
    "top_p": 0.2,
    "seed": 7,
    "stop": ["END"],
    "frequency_penalty": 0.5,
    "presence_penalty": 0.25,
}

#: What a judge of deepeval answers; to all others it is text.
VERDICT = '{"score": 10, "reason": "it says so"}'

CONFIG = """
targets:
  judge:
    provider: openai
    model: served
    base_url: "{url}/v1"
    max_tries: 1
    price: {input_per_million: 1000, output_per_million: 2000}
  limited: {provider: openai, model: served, base_url: "{url}/limited/v1", max_tries: 1}
  claude: {provider: anthropic, model: served, base_url: "{url}", max_tries: 1}
  forbidden: {provider: mock}
"""
ALLOWED = ["judge", "limited", "claude"]

#: The words in what the model is asked that let it fail only then.
AFTER = re.compile(r"after (\d+) s")

#: How the model fails, by the word in what it is asked: status and error, in OpenAI's words and in Anthropic's.
FAILURES: Mapping[str, tuple[int, dict[str, object], dict[str, object]]] = {
    "OVERFLOW": (
        400,
        {
            "message": "This model's maximum context length is 10 tokens.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        },
        {"type": "invalid_request_error", "message": "prompt is too long: 11 tokens > 10 maximum"},
    ),
    "THROTTLE": (
        429,
        {"message": "Slow down.", "type": "requests", "code": "rate_limit_exceeded"},
        {"type": "rate_limit_error", "message": "Slow down."},
    ),
    "QUOTA": (
        429,
        {"message": "You exceeded your quota.", "type": "insufficient_quota", "code": "insufficient_quota"},
        {"type": "billing_error", "message": "You exceeded your quota."},
    ),
    "BROKEN": (
        500,
        {"message": "Something broke.", "type": "server_error"},
        {"type": "api_error", "message": "Something broke."},
    ),
}


def answer_scripted(request: ReceivedRequest) -> ScriptedResponse | StreamedResponse:
    """The model: fails as the question says, and speaks chat, completions with echo, and messages."""
    body = request.body
    text = json.dumps(body.get("messages", body.get("prompt")))
    is_anthropic = request.path.endswith("/messages")
    for word, (status, openai_error, anthropic_error) in FAILURES.items():
        if word in text:
            error = {"type": "error", "error": anthropic_error} if is_anthropic else {"error": openai_error}
            after = AFTER.search(text)
            return ScriptedResponse(status=status, body=error, delay_seconds=int(after[1]) if after else 0)
    if is_anthropic:
        return ScriptedResponse(body=anthropic_answer("Paris"))
    if request.path.endswith("/v1/completions"):
        return ScriptedResponse(body=completion_answer(body))
    if body.get("stream"):
        if "BREAKS" in text:
            return StreamedResponse(events=chat_events(["Par", "is"]), event_count=2, then="close")
        return StreamedResponse(events=chat_events(["Par", "is"]))
    answer = chat_answer(VERDICT if "JSON" in text else "Paris")
    if body.get("logprobs"):
        tokens = [{"token": "Paris", "logprob": -0.5, "bytes": None, "top_logprobs": []}]
        choices: Any = answer["choices"]
        choices[0]["logprobs"] = {"content": tokens, "refusal": None}
    return ScriptedResponse(body=answer)


def completion_answer(body: Mapping[str, Any]) -> dict[str, object]:
    """A completion that echoes: each token of the prompt with a logprob, the likelier the lower its number is."""
    prompt = body["prompt"]
    prompt = prompt[0] if prompt and isinstance(prompt[0], list) else prompt
    tokens = [str(token) for token in (prompt if isinstance(prompt, list) else prompt.split())]
    logprobs = [None if index == 0 else -float(len(token)) for index, token in enumerate(tokens)]
    content = {
        "tokens": [*tokens, "."],
        "token_logprobs": [*logprobs, -1.0],
        "top_logprobs": [*({token: value} for token, value in zip(tokens, logprobs, strict=True)), {".": -1.0}],
        "text_offset": list(range(len(tokens) + 1)),
    }
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "served",
        "choices": [{"index": 0, "text": "".join(tokens) + ".", "finish_reason": "length", "logprobs": content}],
        "usage": {"prompt_tokens": len(tokens), "completion_tokens": 1, "total_tokens": len(tokens) + 1},
    }


@dataclass(frozen=True, slots=True)
class PrintedSnippet:
    """The parts of a snippet, cut from the text that is printed."""

    exports: str
    file: str | None = None
    text: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """A program that ended."""

    code: int | None
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class ToolSession:
    """A folder and a session; ``provider`` is the model behind the targets."""

    fleet: MemoryFleet
    provider: ModelServer
    folder: Path

    async def session_token(self, default_target: str = "judge", max_calls: int = 500) -> str:
        """The token of a new session."""
        opened = await self.fleet.open_session(default_target, max_calls, allowed_targets=ALLOWED)
        return opened.token

    async def print_snippet(self, name: str, target: str = "judge") -> PrintedSnippet:
        """Cut what ``quintain snippet`` prints for a new session into its parts; from then on the model answers."""
        self.provider.response_for = answer_scripted
        connection = GatewayConnection(
            url=self.fleet.gateway_url, token=await self.session_token(target), target=target
        )
        printed = SNIPPETS[SnippetTool(name)](connection).to_text()
        parts: dict[str, list[str]] = {}
        file, lines = None, []
        for line in printed.splitlines():
            head = next((head for head in ("# in your shell", "# then", "# in ") if line.startswith(head)), None)
            if head is not None or line.startswith("# "):
                lines = parts[head or "note"] = []
                file = line.removeprefix(head) if head == "# in " else file
            else:
                lines.append(line)
        texts = {head: "\n".join(lines) for head, lines in parts.items()}
        return PrintedSnippet(texts["# in your shell"], file, texts.get("# in ", ""), texts.get("# then", ""))

    async def run(self, script: str, tool: ClientTool | None = None, *, seconds: float = 240, **env: str) -> Ended:
        """Run a script in a shell, with the tool's programs on its PATH, and a home of its own."""
        variables = {**clean_environment(), "HOME": str(self.folder), **env}
        if tool is not None:
            variables["PATH"] = search_path(tool, environment())
        process = await asyncio.create_subprocess_exec(
            *("sh", "-e", "-c", script),
            cwd=self.folder,
            env=variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        communicating = asyncio.ensure_future(process.communicate())
        try:
            async with asyncio.timeout(seconds):
                stdout, stderr = await asyncio.shield(communicating)
        except TimeoutError:
            # The shell's own end would leave the tool, which has its pipes.
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = await communicating
            raise AssertionError(f"{script}: it did not end\n{stdout.decode()}\n{stderr.decode()}") from None
        return Ended(process.returncode, stdout.decode(), stderr.decode())

    def write(self, name: str, text: str) -> None:
        """Write a file into the evaluator's folder."""
        (self.folder / name).write_text(text)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The requests that the model has received."""
        return [dict(request.body) for request in self.provider.requests]


def assert_sent(body: Mapping[str, object], expected: Mapping[str, object]) -> None:
    """Every parameter has arrived with its value."""
    assert {name: body.get(name) for name in expected} == dict(expected)
