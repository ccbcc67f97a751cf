"""Reads a task or a message of the A2A protocol, as versions 1.0 and 0.3 write them. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from quintain.apis.translation import Json, objects
from quintain.contracts.agents import AgentStep

#: The state of a task that waits for the next message.
INPUT_REQUIRED: Final = "input-required"


@dataclass(frozen=True, slots=True)
class A2AReply:
    """A task, or a message that an agent answered with at once. ``came`` is the response that it was in."""

    values: Json
    came: bytes
    is_task: bool

    @property
    def state(self) -> str:
        """The state of the task, as version 0.3 writes it; of a message ``completed``."""
        if not self.is_task:
            return "completed"
        state = str(self.values["status"].get("state"))
        return state.removeprefix("TASK_STATE_").lower().replace("_", "-")

    @property
    def text(self) -> str:
        """The text of the task's artifacts, or else of the message about its state, or else of its last message."""
        if not self.is_task:
            return _text_of(self.values)
        said = [_text_of(self.values["status"].get("message"))]
        said += [_text_of(message) for message in reversed(objects(self.values.get("history"))) if _is_agents(message)]
        made = [_text_of(artifact) for artifact in objects(self.values.get("artifacts"))]
        made = ["\n\n".join(filter(None, made))]
        # What asks for input is in its message, whatever the task has made so far.
        texts = [*said[:1], *made, *said[1:2]] if self.state == INPUT_REQUIRED else [*made, *said[:2]]
        return next(filter(None, texts), "")

    @property
    def conversation(self) -> Json:
        """What the next message names: the context, and where the task waits for it that task, and what it asked."""
        names = {"contextId": self.values.get("contextId")}
        if self.is_task and self.state == INPUT_REQUIRED:
            asked = self.values["status"].get("message")
            names |= {"taskId": self.values["id"], "asked": asked.get("messageId") if isinstance(asked, dict) else None}
        return {name: value for name, value in names.items() if isinstance(value, str) and value}

    def steps_since(self, message_id: str, asked: str | None) -> tuple[AgentStep, ...]:
        """Return what the agent has said in the task's history since the message of this id, each as a step.

        ``asked`` is the id of what it asked before, which servers put there once it is answered.
        """
        history = objects(self.values.get("history")) if self.is_task else []
        ours = [index for index, message in enumerate(history) if message.get("messageId") == message_id]
        since = history[ours[-1] + 1 :] if ours else history
        return tuple(
            AgentStep.model_validate({"operation": "invoke_agent", "messages": [_output_of(message)]})
            for message in since
            if _is_agents(message) and (asked is None or message.get("messageId") != asked)
        )


def read_reply(result: Json, came: bytes) -> A2AReply | None:
    """Return the task or the message in a result; None where there is neither."""
    task = result.get("task", result)
    if isinstance(task, dict) and isinstance(task.get("id"), str) and isinstance(task.get("status"), dict):
        return A2AReply(task, came, is_task=True)
    message = result.get("message", result)
    if isinstance(message, dict) and isinstance(message.get("parts"), list):
        return A2AReply(message, came, is_task=False)
    return None


def _output_of(message: Json) -> Json:
    return {"role": "assistant", "parts": [{"type": "text", "content": _text_of(message)}]}


def _is_agents(message: Json) -> bool:
    return message.get("role") in ("agent", "ROLE_AGENT")


def _text_of(holder: object) -> str:
    return "".join(_texts_of(holder.get("parts"))) if isinstance(holder, dict) else ""


def _texts_of(parts: object) -> Iterator[str]:
    for part in objects(parts):
        if isinstance(text := part.get("text"), str):
            yield text
        elif "data" in part:
            yield json.dumps(part["data"], ensure_ascii=False)
        else:
            inner = part.get("file")
            file = inner if isinstance(inner, dict) else part
            named = (file.get(name) for name in ("filename", "name", "url", "uri"))
            yield f"[file {next((name for name in named if isinstance(name, str) and name), 'without a name')}]"
