"""One check of `quintain doctor`, and its verdict."""

from __future__ import annotations

from typing import Literal

from quintain.contracts.message import Message

CheckVerdict = Literal["ok", "note", "warn", "fail"]


class DoctorCheck(Message):
    """One check: what was checked (``what``), the verdict, what was found (``says``), and how to fix it (``mend``)."""

    what: str
    verdict: CheckVerdict
    says: str
    mend: str | None = None
