"""Reads an evaluation of AgentV 4 as one of ours. AgentV 5 has promptfoo's shape, and is read as that.

What has no counterpart is noted with its line, never dropped in silence. Source of the format: AgentV 4.42.
"""

from __future__ import annotations

import json

from quintain.runtime.text_files import read_text
from quintain_cli.init.assertions import Judged, add_graders
from quintain_cli.init.carried import At, CarriedCase, CarriedEvaluation, Found, JsonDict, mapping
from quintain_cli.init.targets import add_providers

_KNOWN = ("$schema", "name", "description", "execution", "tests", "evalcases", "assertions", "target", "input")
_KNOWN_OF_TEST = (
    "id", "input", "input_messages", "expected_output", "expected_messages", "criteria", "expected_outcome",
    "assertions", "rubrics", "conversation_id", "metadata",
)  # fmt: skip


def read_agentv(carried: CarriedEvaluation, body: JsonDict, at: At) -> None:
    """Read an evaluation. Raises `ConfigError` for a file that it names and that cannot be read."""
    key = "tests" if "tests" in body else "evalcases"
    carried.leave_out_unknown(body, at, _KNOWN)
    execution = mapping(body.get("execution"))
    carried.leave_out_unknown(execution, at.under("execution"), ("target", "targets"))
    wanted = execution.get("targets") or execution.get("target") or body.get("target") or "default"
    add_providers(carried, wanted, at.under("execution"))
    before = _messages(carried, body["input"], at.under("input")) if "input" in body else []
    if before is None:
        carried.leave_out(at.under("input"), "an input of all tests that is not all text, and so each of them")
    shared = at.under("assertions").items(body.get("assertions"))
    for one, place in at.under(key).items(body[key]):
        for test, where in carried.items(one, place) if isinstance(one, str) else [(one, place)]:
            if isinstance(test, dict):
                _add_test(carried, test, where, shared, before)
            else:
                carried.leave_out(where, "a test that is no mapping")


def _add_test(
    carried: CarriedEvaluation, test: JsonDict, at: At, shared: list[Found], before: list[JsonDict] | None
) -> None:
    """Add a test. ``shared`` and ``before``: the assertions and the input's messages of all tests."""
    carried.leave_out_unknown(test, at, _KNOWN_OF_TEST)
    asked = test.get("input", test.get("input_messages"))
    wanted, place = test.get("expected_output", test.get("expected_messages")), at.under("expected_output")
    expected = _text(carried, wanted, place)
    outputs = wanted if isinstance(wanted, list) else []
    for number, message in enumerate(map(mapping, outputs), start=1):
        carried.leave_out_unknown(message, place.under(number - 1), ("role", "content"))
        if number < len(outputs):
            carried.leave_out(place.under(number - 1), "a message before the last one")
    if expected is None and {"expected_output", "expected_messages"} & test.keys():
        carried.leave_out(place, "an expected output that is no text")
    criteria = test.get("criteria", test.get("expected_outcome"))
    messages = _messages(carried, asked, at.under("input"))
    if messages is None or before is None:
        carried.leave_out(at, "a test whose input is not all text")
        return
    rubrics = [
        ({"type": "rubrics", "rubrics": [one]}, place) for one, place in at.under("rubrics").items(test.get("rubrics"))
    ]
    asserted = [*at.under("assertions").items(test.get("assertions")), *rubrics, *shared]
    if not asserted and criteria:
        # As AgentV does: without assertions a model judges by the criteria.
        asserted = [({"type": "llm-grader"}, at.under("criteria"))]
    fields: JsonDict = (
        {"question": asked} if isinstance(asked, str) and not before else {"messages": [*before, *messages]}
    )
    fields |= {} if expected is None else {"expected": expected}
    fields |= {} if criteria is None else {"criteria": criteria}
    case = CarriedCase(at=at, id=test.get("id"), metadata=mapping(test.get("metadata")), fields=fields)
    add_graders(carried, asserted, case, Judged(criteria=criteria))
    carried.cases.append(case)


def _messages(carried: CarriedEvaluation, asked: object, at: At) -> list[JsonDict] | None:
    """The messages of an input; None, with a note, if one of them has no text."""
    if not isinstance(asked, list):
        text = asked if isinstance(asked, str | None) else json.dumps(asked, ensure_ascii=False, indent=2, default=str)
        return [{"role": "user", "content": text}] if text else None
    messages = []
    for message, place in at.items(asked):
        content = _text(carried, [message], place) if isinstance(message, dict) else None
        if content is None:
            return None
        carried.leave_out_unknown(message, place, ("role", "content"))
        messages.append({"role": message.get("role"), "content": content})
    return messages or None


def _text(carried: CarriedEvaluation, value: object, at: At) -> str | None:
    """The text of an output or of the last message, with the files that it names; None if it has none."""
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1].get("content")
        if isinstance(value, list):
            parts = [_part(carried, part, at) for part in value]
            return None if None in parts else "\n\n".join(str(part) for part in parts)
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def _part(carried: CarriedEvaluation, part: object, at: At) -> str | None:
    """A part of a message as text; a file as AgentV writes it into the prompt."""
    kind, value = (mapping(part).get(key) for key in ("type", "value"))
    if kind == "file" and isinstance(value, str):
        paths = carried.files(f"file://{value.removeprefix('file://')}", at) or []
        return f'<file path="{value}">\n{read_text(paths[0]).strip()}\n</file>' if len(paths) == 1 else None
    text = part if isinstance(part, str) else value if isinstance(value, str) else mapping(part).get("text")
    if not isinstance(part, str) and (kind != "text" or not isinstance(text, str)):
        carried.leave_out(at, f"a part of a message of type {kind}")
        return None
    return text
