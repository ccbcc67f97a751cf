"""The headers that authorize a call: a proof of this call where its target's workers read proofs, else the token."""

from __future__ import annotations

import hashlib
from functools import cached_property

from quintain.bus.base import HeaderValue
from quintain.contracts.proof import digest, make_proof, public_id
from quintain.routes import PROOF_HEADER, TOKEN_HEADER


class Authorization:
    """A session's token, or the administrator's, and the proofs that are made with it."""

    def __init__(self, token: str) -> None:
        self.token = token
        #: The public id of the session; empty for what is no session's token.
        self.session_id = public_id(token) or ""

    @cached_property
    def _sha256(self) -> bytes:
        return digest(self.token)

    @property
    def of_operation(self) -> dict[str, HeaderValue]:
        """The headers of an operation, which only metadata services read."""
        return {TOKEN_HEADER: self.token}

    def of_call(self, request_id: str, target: str, body: bytes, deadline: int) -> dict[str, HeaderValue]:
        """Return the headers of a call with a proof: nobody who reads them can make another call.

        ``target`` is the routing key of the message.
        """
        proof = make_proof(
            self._sha256,
            session_id=self.session_id,
            request_id=request_id,
            target=target,
            body_sha256=hashlib.sha256(body).hexdigest(),
            deadline=deadline,
        )
        return {TOKEN_HEADER: self.session_id, PROOF_HEADER: proof}
