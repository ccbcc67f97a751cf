"""Messages of contents (``protocol.md`` §2): bodies larger than a message, stored in pieces, named by the request."""

from __future__ import annotations

import base64
from typing import Annotated

from pydantic import Field, StringConstraints

from quintain.contracts.ledger import Milliseconds
from quintain.contracts.limits import CONTENT_PIECE_BYTES, MAX_CONTENT_BYTES
from quintain.contracts.message import Message
from quintain.contracts.strings import Id, RequestId
from quintain.errors import BadRequest

#: The AMQP type of a request whose body is stored: its own body is a `ContentReference`.
INVOKE_CONTENT_TYPE = "invoke_content"

#: A SHA-256 in lower-case hexadecimal digits.
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

ContentSize = Annotated[int, Field(gt=0, le=MAX_CONTENT_BYTES)]

PieceNumber = Annotated[int, Field(ge=0, lt=MAX_CONTENT_BYTES // CONTENT_PIECE_BYTES)]

#: The bytes of a piece in base64.
PieceData = Annotated[str, Field(json_schema_extra={"contentEncoding": "base64"})]


class ContentReference(Message):
    """Names a request's body that is in the content store: its SHA-256 and its size in bytes."""

    sha256: Sha256
    size: ContentSize


class PutContent(ContentReference):
    """Store one piece of a request's body; without ``piece`` and ``data``, ask which pieces are missing.

    ``request_id`` is that of the request whose body it is; no other request can use it. It is kept until ``deadline``
    (milliseconds since the epoch), by default the session's, and until the request is answered. Pieces are numbered
    from 0; each has `CONTENT_PIECE_BYTES` bytes, the last one the rest.
    """

    request_id: RequestId
    deadline: Milliseconds | None = None
    piece: PieceNumber | None = None
    data: PieceData | None = None


class ContentStatus(Message):
    """Whether a content is complete; ``missing`` are the numbers of the missing pieces, if the request had no piece."""

    complete: bool
    missing: list[int] | None = None


class GetContent(Message):
    """Request one piece of the body of a call that this attempt of this worker runs."""

    session_id: Id
    request_id: RequestId
    attempt_id: Id
    incarnation: Id
    piece: PieceNumber


class ContentPiece(Message):
    """One piece of a content."""

    data: PieceData


def count_pieces(size: int) -> int:
    """Return how many pieces a content of this size in bytes has."""
    return -(-size // CONTENT_PIECE_BYTES)


def encode_piece(data: bytes | memoryview) -> str:
    """Return the bytes of a piece as a message carries them."""
    return base64.b64encode(data).decode("ascii")


def decode_piece(text: str) -> bytes:
    """Return the bytes of a piece. Raises `BadRequest`."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise BadRequest("data: it is not base64") from None
