"""Escapes untrusted text in the files of a report: XML, Markdown and CSV. No I/O.

For text on a terminal see `quintain_runner.progress.terminal_text`.
"""

from __future__ import annotations

import re

from quintain_runner.progress.terminal_text import plain_line

#: What XML 1.0 cannot hold, not even escaped (https://www.w3.org/TR/xml/#charsets), and the second set of controls,
#: which steer the terminal of whoever prints the file.
_NOT_XML = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

#: Controls in a cell, but for the ends of lines and tabs.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")

#: A spreadsheet takes a cell that begins so for a formula, its wide forms too (OWASP, "CSV Injection").
_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")
_FORMULA_PREFIXES = ("\t", "\r", "\n")

_BACKTICKS = re.compile("`+")

#: What stands where something was taken out.
_REPLACEMENT = "\ufffd"


def xml_text(text: str) -> str:
    """The text with what XML cannot hold replaced; a writer of XML still has to escape it."""
    return _NOT_XML.sub(_REPLACEMENT, text)


def csv_cell(text: str) -> str:
    """The text as a cell that no spreadsheet calculates; a writer of CSV still has to quote it."""
    cell = _CONTROLS.sub(_REPLACEMENT, text)
    return f"'{cell}" if _FORMULA.match(cell) or cell.startswith(_FORMULA_PREFIXES) else cell


def markdown_code_span(text: str, *, max_length: int = 200) -> str:
    """One line of the text as code in Markdown, also in a table: no link, image, mention or HTML in it is alive.

    A bar is shown as its neighbour ``│``, because no way to escape it is the same everywhere.
    """
    line = plain_line(text, max_length=max_length).replace("|", "│")
    if not line:
        return ""
    fence = "`" * (1 + max((len(run) for run in _BACKTICKS.findall(line)), default=0))
    return f"{fence} {line} {fence}" if line.startswith("`") or line.endswith("`") else f"{fence}{line}{fence}"
