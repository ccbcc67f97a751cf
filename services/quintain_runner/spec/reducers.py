"""The names of reducers, which make one value of the repeats of a case. No I/O."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from quintain.contracts.message import Message

_AT_K: Final = re.compile(r"pass[@^](\d+)")

#: ``mean``, ``median``, ``majority``, ``pass@k`` or ``pass^k``, with a number in place of k.
Reducer = Annotated[str, StringConstraints(pattern=r"^(mean|median|majority|pass[@^][1-9][0-9]{0,3})$")]


class Reducers(Message):
    """The reducers of the rows and of each grader; None or absent where nothing is reduced."""

    row: Reducer | None = None
    graders: dict[str, Reducer] = Field(default_factory=dict)


def required_repeats(reducer: str) -> int:
    """The fewest repeats of a case that a reducer needs: its ``k``, or 1."""
    at_k = _AT_K.fullmatch(reducer)
    return int(at_k[1]) if at_k else 1
