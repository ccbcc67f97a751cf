"""Reads what authorizes a call from its message: the session's token, or a proof. No I/O."""

from __future__ import annotations

import hashlib
from typing import TypeAlias

from quintain.bus.base import Delivery
from quintain.contracts.proof import CallProof, SessionToken, parse_proof
from quintain.errors import BadRequest
from quintain.routes import DEADLINE_HEADER, PROOF_HEADER, TOKEN_HEADER
from quintain.rpc.server import integer_header, request_id_of

#: A session's token, or a proof of one call.
Credential: TypeAlias = SessionToken | CallProof


def call_credential(delivery: Delivery, target: str, body_sha256: str | None = None) -> Credential:
    """Return what authorizes a call of this target; ``body_sha256`` is computed where it is not given and needed.

    Raises `Unauthorized` where its format is wrong, which needs no ledger.
    """
    authorization, mac = delivery.headers.get(TOKEN_HEADER), delivery.headers.get(PROOF_HEADER)
    if mac is None:
        return SessionToken.parse(authorization if isinstance(authorization, str) else None)
    return parse_proof(
        authorization,
        mac,
        request_id=request_id_of(delivery),
        target=target,
        body_sha256=hashlib.sha256(delivery.body).hexdigest() if body_sha256 is None else body_sha256,
        deadline=_deadline(delivery),
    )


def admit_fields(credential: Credential) -> dict[str, str | None]:
    """Return the fields of `quintain.contracts.ledger.Admit` that authorize a call."""
    if isinstance(credential, SessionToken):
        return {"token": credential.text, "session_id": None, "proof": None}
    return {"token": None, "session_id": credential.session_id, "proof": credential.mac}


def _deadline(delivery: Delivery) -> int | None:
    try:
        return integer_header(delivery.headers, DEADLINE_HEADER)
    except BadRequest:
        return None
