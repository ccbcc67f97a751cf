"""What a run asks, and where its answers are looked up before a target is asked."""

from __future__ import annotations

from dataclasses import dataclass

from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import InvokeRequest, Result
from quintain.errors import Fault
from quintain_runner.plan.address import request_id


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
