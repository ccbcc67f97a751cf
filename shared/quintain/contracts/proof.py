"""Proofs of calls: what a message carries in place of its session's token.

A proof is an HMAC-SHA256 whose key is the SHA-256 of the session's token, which the ledger stores. It is good for one
session, one request id, one body, one deadline and one routing key: who reads a message learns nothing that opens
another call.
"""

from __future__ import annotations

import hmac
import re
from typing import NamedTuple

from quintain.contracts.strings import sanitize_request_id
from quintain.errors import Unauthorized

#: The first line of what is proven: another meaning of the lines after it gets another one.
_PURPOSE = "quintain call 1"

_MAC = re.compile(r"[0-9a-f]{64}")


class CallProof(NamedTuple):
    """A proof, and what it has to prove. ``target`` is the routing key of the message; ``deadline`` is in milliseconds
    since the epoch, ``body_sha256`` in hexadecimal digits."""

    session_id: str
    request_id: str
    target: str
    body_sha256: str
    deadline: int
    mac: str

    @property
    def id(self) -> str:
        """The public id of the session."""
        return self.session_id

    @property
    def text(self) -> str:
        """The proof itself; it is in no log, as a token is not."""
        return self.mac

    def matches(self, token_sha256: bytes) -> bool:
        """Return whether it was made with the token that has this SHA-256, comparing in constant time."""
        expected = make_proof(
            token_sha256,
            session_id=self.session_id,
            request_id=self.request_id,
            target=self.target,
            body_sha256=self.body_sha256,
            deadline=self.deadline,
        )
        return hmac.compare_digest(self.mac, expected)

    def without_target(self) -> CallProof:
        """Return what it proves if its message was published without a routing key."""
        return self._replace(target="")

    def __repr__(self) -> str:
        return f"CallProof({self.session_id}, {self.request_id!r}, …)"


def make_proof(
    token_sha256: bytes, *, session_id: str, request_id: str, target: str, body_sha256: str, deadline: int
) -> str:
    """Return the proof of a call, 64 hexadecimal digits; ``target`` is the routing key of its message, maybe empty."""
    # The request id may hold any character, and is the last.
    lines = (_PURPOSE, session_id, target, body_sha256, str(deadline), sanitize_request_id(request_id))
    return hmac.digest(token_sha256, "\n".join(lines).encode(), "sha256").hex()


def parse_proof(
    session_id: object, mac: object, *, request_id: str, target: str, body_sha256: str, deadline: int | None
) -> CallProof:
    """Return the proof that a message carries, without I/O.

    Raises `Unauthorized` where its format is wrong, and where the message has no deadline.
    """
    if not isinstance(session_id, str) or not isinstance(mac, str) or _MAC.fullmatch(mac) is None:
        raise Unauthorized
    if deadline is None or "\n" in target or "\n" in session_id:
        raise Unauthorized
    return CallProof(session_id, request_id, target, body_sha256, deadline, mac)
