"""Templates of prompts: text in which ``{{ field }}`` stands for a field of the case. No I/O.

The syntax is a part of Jinja's and Nunjucks': field names with dots, and quoted text for what is no field, such as
``{{ "{{" }}``. Values are inserted as they are: nothing in them is a template.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from pydantic import JsonValue

from quintain.graders import Case
from quintain_runner.spec.case_fields import case_field

#: The name of a field in a template: words joined by dots.
_FIELD = re.compile(r"[^\W\d][\w-]*(?:\.[\w-]+)*")

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")

#: What stands between double braces (quoted braces included), and the tags and comments of Jinja and Nunjucks.
_MARKUP = re.compile(r"""\{\{\s*((?:'[^']*'|"[^"]*"|[^{}])*?)\s*\}\}|(\{\{|\{%.*?%\}|\{\#.*?\#\})""", re.DOTALL)

#: The most characters of invalid markup that an error quotes.
_MAX_QUOTED_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template: pieces of text, each with the field that follows it, or None after the last."""

    pieces: tuple[tuple[str, str | None], ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that it names, without duplicates."""
        return tuple(dict.fromkeys(field for _, field in self.pieces if field is not None))

    def render(self, case: Case) -> str:
        """The text with the fields of this case: text as it is, other values as JSON, absent ones as nothing."""
        return "".join(
            text + ("" if field is None else _as_text(case_field(case, field))) for text, field in self.pieces
        )


def parse_template(text: str) -> Template:
    """Parse a template. Raises `ValueError` for markup that is neither a field nor quoted text."""
    pieces: list[tuple[str, str | None]] = []
    literal, end = "", 0
    for markup in _MARKUP.finditer(text):
        literal += text[end : markup.start()]
        end = markup.end()
        content = markup[1]
        if content is not None and _FIELD.fullmatch(content):
            pieces.append((literal, content))
            literal = ""
        elif content is not None and _QUOTED.fullmatch(content):
            literal += content[1:-1]
        else:
            raise ValueError(_markup_error(text[markup.start() :]))
    return Template((*pieces, (literal + text[end:], None)))


def _markup_error(rest: str) -> str:
    shown = rest.splitlines()[0][:_MAX_QUOTED_CHARACTERS]
    return (
        f"{shown!r} is no field; a template holds {{{{ field }}}} only, without filters, expressions, {{% tags %}} or "
        f"{{# comments #}}. Write braces that are text as {{{{ {json.dumps(rest[:2])} }}}}"
    )


def _as_text(value: JsonValue) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
