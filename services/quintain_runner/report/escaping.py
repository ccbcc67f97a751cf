"""Escapes untrusted text in the files of a report: XML, Markdown and CSV. No I/O.

For text on a terminal see `quintain_runner.progress.terminal_text`.
"""

from __future__ import annotations

import re

from quintain_runner.progress.terminal_text import plain_line

#: Characters that XML 1.0 does not allow even escaped (https://www.w3.org/TR/xml/#charsets), and the C1 control
#: characters, which control the terminal when the file is printed.
_NOT_XML = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

#: Control characters, except tabs and line ends.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")

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
    cell = _CONTROLS.sub(_REPLACEMENT, text)
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
