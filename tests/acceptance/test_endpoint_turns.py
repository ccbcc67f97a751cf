"""Cases with turns, asked of an HTTP endpoint that keeps its conversations: what a failure leaves, and what a loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import yaml

from support.command_line import CommandLine, CommandResult
from support.evaluations import Json, rows_of, write_evaluation
from support.model_server import ModelServer, ReceivedRequest, ScriptedResponse, model_server

CASES: list[Json] = [{"id": "talk", "turns": ["one", "two", "three", "four", "five"]}]
GRADERS: list[Json] = [{"name": "all", "builtin": "regex", "pattern": "^one two three four five$"}]


class DeskEndpoint:
    """Answers with all that was said in a session; ``failures`` are the statuses of the next answers to a text."""

    def __init__(self, server: ModelServer) -> None:
        self.sessions: list[list[str]] = []
        self.failures: dict[str, list[int]] = {}
        self.server = server
        server.response_for = self.respond

    def respond(self, request: ReceivedRequest) -> ScriptedResponse:
        said, session = str(request.body["said"]), request.body.get("session")
        if failures := self.failures.get(said):
            return ScriptedResponse(status=failures.pop(0), body={"detail": "no"})
        if not isinstance(session, int):
            session = len(self.sessions)
            self.sessions.append([])
        self.sessions[session].append(said)
        return ScriptedResponse(body={"text": " ".join(self.sessions[session]), "session": session})

    @property
    def asked(self) -> list[object]:
        return [request.body["said"] for request in self.server.requests]


@pytest.fixture
async def desk(shell: CommandLine) -> AsyncIterator[DeskEndpoint]:
    async with model_server() as server:
        single = {"provider": "http", "url": server.url, "body": {"said": "{{ prompt }}"}, "answer": "/text"}
        desk = {
            **single,
            "body": {"said": "{{ prompt }}", "session": "{{ session }}"},
            "session": "/session",
        }
        (shell.folder / "quintain.yaml").write_text(yaml.safe_dump({"targets": {"desk": desk, "single": single}}))
        write_evaluation(shell.folder, CASES, GRADERS)
        yield DeskEndpoint(server)


async def run(shell: CommandLine, *words: str, code: int = 0) -> CommandResult:
    return await asyncio.to_thread(shell.run, "run", "eval.yaml", *words, code=code)


async def test_after_a_failure_it_goes_on_at_the_turn_without_an_answer(desk: DeskEndpoint, shell: CommandLine) -> None:
    desk.failures = {"three": [500]}
    await run(shell, "--target", "desk", code=1)
    assert desk.asked == ["one", "two", "three"]
    # It may have acted: nobody asks again unless told to.
    await run(shell, "--target", "desk", "--in-doubt", "retry")
    assert desk.asked == ["one", "two", "three", "three", "four", "five"]
    assert len(desk.sessions) == 1
    assert [row["score"] for row in rows_of(shell.folder / "runs" / "eval")] == [1.0]


async def test_a_session_that_the_endpoint_has_forgotten_begins_again_and_is_counted(
    desk: DeskEndpoint, shell: CommandLine
) -> None:
    desk.failures = {"three": [404]}
    await run(shell, "--target", "desk")
    assert desk.asked == ["one", "two", "three", "one", "two", "three", "four", "five"]
    assert desk.sessions == [["one", "two"], ["one", "two", "three", "four", "five"]]
    (row,) = rows_of(shell.folder / "runs" / "eval")
    assert (row["score"], row["conversation"]["lostTurns"]) == (1.0, 2)  # type: ignore[index]


async def test_an_endpoint_that_keeps_no_conversation_is_refused_before_the_first_call(
    desk: DeskEndpoint, shell: CommandLine
) -> None:
    refused = await run(shell, "--target", "single", code=2)
    assert "single" in refused.stderr
    assert not desk.asked
