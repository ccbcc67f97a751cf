"""Whatever an agent behind HTTP answers: its readers find something in it, or say what is wrong."""

from __future__ import annotations

import contextlib
import re

from hypothesis import given
from hypothesis import strategies as st

from quintain.apis.reported_steps import read_steps
from quintain.config.http_targets import HttpTarget
from quintain_worker.providers.agents.a2a import read_reply
from quintain_worker.providers.agents.http_endpoint import HttpAnswer

NAMES = """
id status state message messages parts text data file role agent tool tool_calls tool_call_id function name arguments
content history artifacts contextId messageId task assistant gen_ai.operation.name TASK_STATE_INPUT_REQUIRED
"""
WORDS = st.sampled_from(re.findall(r"\S+", NAMES))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text() | WORDS,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(WORDS | st.text(), children, max_size=6),
    max_leaves=30,
)


@given(found=JSON | st.lists(st.dictionaries(WORDS, JSON | WORDS, max_size=6), max_size=4))
def test_steps(found: object) -> None:
    with contextlib.suppress(ValueError):
        assert all(step.to_wire() for step in read_steps(found))


@given(result=st.dictionaries(WORDS, JSON, max_size=8), status=st.dictionaries(WORDS, JSON | WORDS))
def test_tasks_and_messages(result: dict[str, object], status: dict[str, object]) -> None:
    for each in (result, {"task": {**result, "id": "t", "status": status}}, {"message": {**result, "parts": []}}):
        if (reply := read_reply(each, b"")) is not None:
            assert isinstance(reply.text, str)
            assert all(isinstance(value, str) for value in reply.conversation.values())
            assert isinstance(reply.state, str)
            assert all(step.to_wire() for step in reply.steps_since("m", "asked"))


@given(documents=st.lists(st.dictionaries(WORDS, JSON, max_size=8), max_size=4), streams=st.booleans())
def test_answers(documents: list[dict[str, object]], streams: bool) -> None:
    pointers = {"answer": "/text", "stream": {"end": "/state"}} if streams else {"answer": "/text"}
    target = HttpTarget.model_validate(
        {
            "provider": "http",
            "url": "http://h/",
            "body": ["{{ prompt }}", "{{ session }}"],
            "session": "/id",
            "steps": "/history",
            "usage": {"input": "/data", "output": "/file"},
            **pointers,
        }
    )
    answer = HttpAnswer(target, None)
    for document in documents:
        answer.feed(document)
    with contextlib.suppress(ValueError):
        found = answer.answer(None, is_turn=True)
        assert isinstance(found.text, str)
        assert found.continuation is not None
