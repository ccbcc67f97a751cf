"""The address of an answer: the hash of what decides it; and the ids of the calls that ask for it. No I/O."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Final

from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import InvokeRequest

#: What of a request a model is not told: who asks, about which case, and how often.
_OF_CASE: Final = {"target", "provider", "eval_case_id", "attempt", "grader", "turn"}

#: Each time that a run is graded again on purpose, the numbers of the askings of its judges begin here.
ASKINGS_OF_A_GENERATION: Final = 1_000_000


def request_id(*parts: object) -> str:
    """Return the id of a call that is made of these parts: the same after a crash, so that it is charged once.

    It is 43 of ``[A-Za-z0-9_-]``: batch APIs take no more than 64.
    """
    digest = hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def address_of(
    request: InvokeRequest | ApiRequest, fingerprint: str | None, number: str, *, sees_case: bool = True
) -> str:
    """Return the address of the answer to a request.

    ``fingerprint`` is that of the target, and ``number`` tells equal requests of a run from each other. Targets that
    are told the case of a request (``sees_case``) may answer by it, others cannot.
    """
    turn = None if not sees_case or isinstance(request, ApiRequest) else request.turn
    content = request.to_wire(without={"turn"} if sees_case else _OF_CASE).decode()
    place = None if turn is None else [turn.number, turn.last]
    return request_id("answer", fingerprint, content, place, number)
