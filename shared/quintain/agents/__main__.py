"""``python -m quintain.agents MODULE:NAME``: the program that speaks for an agent, by the protocol ``jsonl``.

Once the agent is imported it prints ``{"type": "ready", "turns": true}``, or false if it keeps no history. Then each
line of standard input is a turn of a conversation, or its end; each line of standard output a step, a piece of the
answer, the answer or an error (docs/agents.md). What the agent itself prints goes to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quintain.agents.conversation import AgentError, Conversation, TurnInput, TurnReport
from quintain.agents.recognition import load_agent
from quintain.config.python_imports import describe_raised
from quintain.errors import ConfigError
from quintain.programs.line_wire import LineWire


class Wire:
    """The messages of the protocol: one line each."""

    def __init__(self) -> None:
        self._lines = LineWire()

    def receive(self) -> dict[str, Any] | None:
        """Return the next message; None at the end."""
        line = self._lines.input.readline()
        message: dict[str, Any] | None = json.loads(line) if line else None
        return message

    def send(self, **message: Any) -> None:
        """Send one message."""
        self._lines.write(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace"))


class AgentProgram:
    """Answers the turns of one conversation at a time, on one event loop."""

    def __init__(self, begin: Callable[[], Conversation], wire: Wire) -> None:
        self._begin, self._wire = begin, wire
        self._current: tuple[str, Conversation] | None = None

    def serve(self) -> None:
        """Answer until the input ends."""
        with asyncio.Runner() as runner:
            while (message := self._wire.receive()) is not None:
                if message["type"] == "turn":
                    self._answer(message, runner)
                else:
                    self._current = None

    def _answer(self, message: dict[str, Any], runner: asyncio.Runner) -> None:
        turn = TurnInput(message["number"], message["prompt"], message["messages"])
        report = TurnReport(
            lambda step: self._wire.send(type="step", **step.model_dump(mode="json", by_alias=True, exclude_none=True)),
            lambda piece: self._wire.send(type="text", text=piece),
        )
        try:
            answered = self._conversation(message["conversation"], turn.number).answer(turn, report)
            text = runner.run(_awaited(answered)) if inspect.isawaitable(answered) else answered
        except (Exception, SystemExit) as error:
            # What the conversation is after it, nobody knows.
            self._current = None
            if not isinstance(error, AgentError):
                traceback.print_exc()
            words = str(error) if isinstance(error, AgentError) else describe_raised(error, Path.cwd())
            self._wire.send(type="error", message=words)
            return
        usage = {"input": report.input_tokens, "output": report.output_tokens}
        told = {} if report.input_tokens is None else {"usage": usage}
        self._wire.send(type="answer", text=text, **told)

    def _conversation(self, conversation_id: str, number: int) -> Conversation:
        if self._current is not None and self._current[0] == conversation_id:
            return self._current[1]
        if number > 1:
            raise AgentError(f"this process does not hold the conversation, of which this is turn {number}")
        self._current = (conversation_id, self._begin())
        return self._current[1]


async def _awaited(answered: Any) -> str:
    text: str = await answered
    return text


def main() -> int:
    """Serve the agent that the command line names."""
    parser = argparse.ArgumentParser(
        "python -m quintain.agents", description="Speaks for an agent on stdin and stdout."
    )
    parser.add_argument("agent", metavar="MODULE:NAME")
    parser.add_argument("--check", action="store_true", help="only say what is wrong with it, and exit with 2")
    arguments = parser.parse_args()
    wire = Wire()
    try:
        begin = load_agent(arguments.agent, Path.cwd())
        keeps_history = begin().keeps_history
    except ConfigError as error:
        wire.send(type="error", message=error.message)
        return 2
    wire.send(type="ready", turns=keeps_history)
    if not arguments.check:
        AgentProgram(begin, wire).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
