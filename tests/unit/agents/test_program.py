"""``python -m quintain.agents``: its lines, and that what the agent prints and reads does not disturb them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BOT = """
import os, sys

def shout(messages):
    print("printed")
    os.system("echo printed by a child")
    sys.stdout.write(sys.stdin.read())
    text = messages[-1]["content"]
    if text == "raise":
        raise ValueError("no")
    if text == "assert":
        assert messages is None
    if text == "exit":
        sys.exit(3)
    return f"{len(messages)} {text}\\ud800"

def two(a, b): ...
"""


def turn(conversation: str, number: int, *texts: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": text} for text in texts]
    return {
        "type": "turn",
        "conversation": conversation,
        "number": number,
        "prompt": texts[-1],
        "messages": messages,
    }


def run(folder: Path, agent: str, *lines: dict[str, Any]) -> tuple[int, list[dict[str, Any]], str]:
    (folder / "bot.py").write_text(BOT)
    done = subprocess.run(
        [sys.executable, "-m", "quintain.agents", agent],
        input="".join(json.dumps(line) + "\n" for line in lines),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_turns_of_conversations_one_after_the_other(tmp_path: Path) -> None:
    code, printed, stderr = run(
        tmp_path,
        "bot:shout",
        turn("a", 1, "one"),
        turn("a", 2, "one", "two"),
        {"type": "end", "conversation": "a"},
        turn("a", 3, "three"),
        turn("b", 1, "raise"),
        turn("b", 2, "after"),
        turn("c", 1, "exit"),
        turn("c", 1, "assert"),
        turn("d", 1, "last"),
    )
    assert code == 0
    assert [line["type"] for line in printed] == [
        *("ready", "answer", "answer"),
        *("error", "error", "error", "error", "error", "answer"),
    ]
    # Its own answer is in the conversation, and half a character is none.
    assert [line["text"] for line in printed if line["type"] == "answer"] == ["1 one?", "3 two?", "1 last?"]
    assert printed[4]["message"] == "ValueError: no (bot.py, line 10)"
    assert printed[7]["message"] == "AssertionError (bot.py, line 12)"
    assert stderr.count("printed by a child") == stderr.count("printed\n")
