"""Untrusted text: escaped for terminals and files, and matched by patterns with a limit on backtracking. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.text import Text

from quintain.runtime.lazy_module import LazyModule

if TYPE_CHECKING:
    import jsonschema_rs
else:
    jsonschema_rs = LazyModule("jsonschema_rs")

#: Terminal control sequences, which are removed as a whole: CSI, OSC and similar ones, then any other escape sequence.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)

#: Characters that move the cursor or change the direction of the text.
_TERMINAL_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]")

#: The most characters shown of one untrusted text.
MAX_LENGTH = 400


def plain_line(text: str, *, max_length: int = MAX_LENGTH) -> str:
    """The text as one line without control sequences, control characters and direction marks, at most ``max_length``
    long.
    """
    line = " ".join(_TERMINAL_CONTROLS.sub(" ", _SEQUENCES.sub("", text)).split())
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"


def plain_text(text: str, style: str = "") -> Text:
    """The text as a rich `Text`, in which markup, emoji names and links are not interpreted."""
    return Text(plain_line(text), style=style)


#: Characters that XML 1.0 does not allow even escaped (https://www.w3.org/TR/xml/#charsets), and the C1 control
#: characters, which control the terminal when the file is printed.
_NOT_XML = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

#: Control characters, except tabs and line ends.
_TEXT_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")

#: Beginnings of cells that a spreadsheet evaluates as formulas, with full-width forms (OWASP, "CSV Injection").
_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")
_FORMULA_PREFIXES = ("\t", "\r", "\n")

_BACKTICKS = re.compile("`+")

#: The replacement of a removed character.
_REPLACEMENT = "\ufffd"


def xml_text(text: str) -> str:
    """The text with characters that XML cannot hold replaced; the XML writer still has to escape it."""
    return _NOT_XML.sub(_REPLACEMENT, text)


def csv_cell(text: str) -> str:
    """The text as a cell that no spreadsheet evaluates as a formula; the CSV writer still has to quote it."""
    cell = _TEXT_CONTROLS.sub(_REPLACEMENT, text)
    return f"'{cell}" if _FORMULA.match(cell) or cell.startswith(_FORMULA_PREFIXES) else cell


def markdown_code_span(text: str, *, max_length: int = 200) -> str:
    """One line of the text as a Markdown code span, in which links, images, mentions and HTML have no effect.

    It may stand in a table: ``|`` is replaced by ``│``, because Markdown dialects escape it differently. ``max_length``
    is the most characters of the text.
    """
    line = plain_line(text, max_length=max_length).replace("|", "│")
    if not line:
        return ""
    fence = "`" * (1 + max((len(run) for run in _BACKTICKS.findall(line)), default=0))
    return f"{fence} {line} {fence}" if line.startswith("`") or line.endswith("`") else f"{fence}{line}{fence}"


#: The most backtracking steps of one match before it is aborted.
BACKTRACK_LIMIT = 1_000_000


class BacktrackLimitExceeded(Exception):
    """The match was aborted at `BACKTRACK_LIMIT`; whether the pattern matches is unknown."""


def compile_pattern(pattern: str, *, ignore_case: bool = False) -> Callable[[str], bool]:
    """Compile an ECMA 262 pattern to a function that says whether it matches somewhere in a text.

    Raises `ValueError` if the pattern is not valid. The returned function raises `BacktrackLimitExceeded`.
    """
    schema = {"pattern": f"(?i){pattern}" if ignore_case else pattern}
    try:
        validator = jsonschema_rs.validator_for(schema, pattern_options=pattern_options(), offline=True)
    except jsonschema_rs.ValidationError:
        raise ValueError(pattern_problem(pattern)) from None
    return lambda text: _matches(text, validator)


def pattern_problem(pattern: str) -> str:
    """The error message of an invalid pattern, with the position after its longest prefix that is a valid pattern."""
    reason = f"{_shorten(pattern)!r} is not a valid regular expression of JSON Schema (ECMA 262)"
    if len(pattern) > _MAX_LOCATED_LENGTH:
        return reason
    position = next((length for length in range(len(pattern) - 1, 0, -1) if _is_pattern(pattern[:length])), 0)
    return f"{reason}: it cannot be read from character {position + 1} on ({_shorten(pattern[position:])!r})"


def _is_pattern(pattern: str) -> bool:
    try:
        jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=pattern_options(), offline=True)
    except jsonschema_rs.ValidationError:
        return False
    return True


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_LENGTH else f"{text[:_MAX_SHOWN_LENGTH]}…"


#: The position is not looked for in longer patterns, because every prefix is compiled.
_MAX_LOCATED_LENGTH = 1000

#: How much of a pattern an error message quotes, in characters.
_MAX_SHOWN_LENGTH = 60


def pattern_options() -> jsonschema_rs.FancyRegexOptions:
    """How patterns are matched: with a limit on backtracking."""
    return jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT)


def _matches(text: str, validator: jsonschema_rs.Validator) -> bool:
    """Whether the validator's pattern matches somewhere in the text. Raises `BacktrackLimitExceeded`."""
    try:
        validator.validate(text)
    except jsonschema_rs.ValidationError as error:
        if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Pattern):
            return False
        raise BacktrackLimitExceeded from None
    return True
