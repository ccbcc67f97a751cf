"""Answers for judges, and what a judge's request shows outside and inside its marks."""

from __future__ import annotations

import re

from quintain.contracts.invoke import InvokeRequest, OutputMessage, Result


def result_of(text: str, **fields: object) -> Result:
    """An answer of this text, with other fields of a result."""
    answer = Result(output=[OutputMessage(content=text)], target="bot", call_count=1, max_calls=9)
    return answer.with_fields(**fields)


def message_of(request: InvokeRequest) -> str:
    """The text of a judge's message, also of one with attachments."""
    if request.question is not None:
        return request.question
    parts = request.messages[-1].content
    assert isinstance(parts, list)
    return "".join(str(part.get("text", "")) for part in parts)


def shown_in(request: InvokeRequest) -> dict[str, str]:
    """The sections of a judge's request, by name."""
    mark, _, text = message_of(request).partition("\n")
    found = re.findall(rf"^<{mark} ([^\n>]+)>\n(.*?)\n</{mark} \1>$", text, re.DOTALL | re.MULTILINE)
    return dict(found)


def outside_of(request: InvokeRequest) -> str:
    """What stands outside the marks of a judge's request: its instructions, and what is in no section."""
    mark, _, text = message_of(request).partition("\n")
    lines, section = list[str](), ""
    for line in text.split("\n"):
        if not section and (opened := re.fullmatch(rf"<{mark} ([^\n>]+)>", line)):
            section = opened[1]
        elif section and line == f"</{mark} {section}>":
            section = ""
        elif not section:
            lines.append(line)
    return "\n".join([request.system_prompt or "", *lines])
