"""What a run asks: the address of an answer, the hash of what decides it; and where it is looked up first. No I/O."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import Final

from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import InvokeRequest, Result
from quintain.errors import Fault

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


@dataclass(frozen=True, slots=True)
class NumberedRequest:
    """A request, with the number that tells it from equal ones of the run, and how often it was asked, from 1."""

    request: InvokeRequest | ApiRequest
    number: str
    times: int = 1

    @property
    def target(self) -> str:
        """The name of who is asked."""
        return self.request.requested_target or ""


@dataclass(slots=True)
class Saved:
    """The answers of a trial that the cache had, and what they cost when they were given, in US dollars.

    ``has_row``: the calls of answers that the run's own store has are in the trial's row of before.
    """

    answers: int = 0
    usd: float = 0.0
    has_row: bool = False


@dataclass(frozen=True, slots=True)
class NumberedVerdict:
    """What a program or function is to give a verdict of: ``content`` is all that it is told, as JSON.

    Others may use its verdict if it ``is_cacheable``; ``number`` and ``times`` are as of a request.
    """

    grader: str
    fingerprint: str | None
    content: bytes
    number: str
    times: int
    is_cacheable: bool

    @property
    def address(self) -> str:
        """The address of its verdict."""
        return request_id("verdict", self.fingerprint, self.content.decode(), self.number)


class Answers:
    """Where answers are looked up and kept; here nowhere."""

    #: Whether answers may be found at all.
    has_some: bool = False

    def find(self, asked: NumberedRequest) -> Result | None:
        """Return the answer; None where the target is to be asked. Raises a `Fault` in place of a call."""
        del asked
        return None

    def keep(self, asked: NumberedRequest, outcome: Result | Fault, *, is_usable: bool) -> None:
        """Keep how a call ended; an answer that is not usable is no other run's."""

    def find_verdict(self, asked: NumberedVerdict) -> tuple[bytes, bool] | None:
        """Return the verdict of a program, and whether it is another run's; None where it is to be run.

        Raises a `Fault` in place of running it.
        """
        del asked
        return None

    def keep_verdict(self, asked: NumberedVerdict, verdict: bytes, *, is_whole: bool) -> None:
        """Keep what a program said; a verdict that is not whole is no other run's."""


class AnswerMissing(Exception):
    """A trial that was to be made of stored answers alone lacks one."""
