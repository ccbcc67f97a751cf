"""Session tokens, and the proofs of calls: what a message carries in place of its session's token.

A token is ``qtn_<kind>_<id, 12>_<secret, 43>_<checksum, 6>``. The prefix lets secret scanners find tokens. The id may
be shown; the secret (43 base-62 digits, over 256 bits) must not. The checksum (CRC-32 of everything before it, in
base 62) rejects malformed tokens without I/O and authenticates nothing. Only the SHA-256 of the whole token is
stored: a random 256-bit secret needs no slow hash.

A proof is an HMAC-SHA256 whose key is the SHA-256 of the session's token, which the ledger stores. It is good for one
session, one request id, one body, one deadline and one routing key: who reads a message learns nothing that opens
another call.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
import re
import secrets
import string
import zlib
from collections.abc import Iterable
from typing import NamedTuple, Self
from urllib.parse import quote

from quintain.contracts.values import sanitize_request_id
from quintain.errors import Unauthorized

#: Size of the cache of verified tokens: all calls of a session carry the same one.
VERIFIED_CACHE_SIZE = 64

_BASE62_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_TOKEN_PATTERN = re.compile(r"(qtn_([a-z]{2,8})_([0-9A-Za-z]{12})_[0-9A-Za-z]{43}_)([0-9A-Za-z]{6})")
_PUBLIC_ID = re.compile(r"[0-9A-Za-z]{12}")


class SessionToken:
    """A session token: its text, its kind and its public id. Its repr shows only the id."""

    __slots__ = ("id", "kind", "text")

    def __init__(self, kind: str, token_id: str, text: str) -> None:
        self.kind, self.id, self.text = kind, token_id, text

    @classmethod
    def mint(cls, kind: str = "ses") -> Self:
        """Generate a new random token."""
        token_id = _random(12)
        head = f"qtn_{kind}_{token_id}_{_random(43)}_"
        return cls(kind, token_id, head + _checksum(head))

    @classmethod
    def of_request(cls, *secrets_of_request: str) -> Self:
        """Return the token that a request opens: the same one, however often the request is delivered.

        These texts reveal the token: they must have 128 random bits at least.
        """
        seed = hashlib.shake_256("\n".join(secrets_of_request).encode()).digest(12 + 43)
        text = "".join(_BASE62_DIGITS[byte % 62] for byte in seed)
        head = f"qtn_ses_{text[:12]}_{text[12:]}_"
        return cls("ses", text[:12], head + _checksum(head))

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Parse a token and verify its checksum, without I/O. Raises `Unauthorized`, without giving a reason."""
        return cls(*_verify(text or ""))

    @property
    def sha256(self) -> bytes:
        """The token's SHA-256 (32 bytes), which is what the ledger stores."""
        return digest(self.text)

    def matches(self, token_sha256: bytes) -> bool:
        """Return whether this is the token that has this SHA-256, comparing in constant time."""
        return hmac.compare_digest(self.sha256, token_sha256)

    def __repr__(self) -> str:
        return f"SessionToken(qtn_{self.kind}_{self.id}_…)"


@functools.lru_cache(maxsize=VERIFIED_CACHE_SIZE)
def _verify(text: str) -> tuple[str, str, str]:
    match = _TOKEN_PATTERN.fullmatch(text)
    if match is None or not hmac.compare_digest(_checksum(match[1]), match[4]):
        raise Unauthorized
    return match[2], match[3], match[0]


def public_id(text: object) -> str | None:
    """Return the public id of a well-formed token, or of a text that is such an id; None for anything else.

    Nothing is verified.
    """
    if not isinstance(text, str):
        return None
    if _PUBLIC_ID.fullmatch(text):
        return text
    match = _TOKEN_PATTERN.fullmatch(text)
    return None if match is None else match[3]


def digest(secret: str) -> bytes:
    """Return the SHA-256 of a secret, 32 bytes."""
    return hashlib.sha256(secret.encode()).digest()


def same_secret(secret: str, expected_digest: bytes) -> bool:
    """Return whether a secret has this digest, comparing in constant time."""
    return hmac.compare_digest(digest(secret), expected_digest)


#: A token of the ``Bearer`` scheme, in any case and after any spaces or tabs (RFC 9110, 11.1).
_BEARER = re.compile(r"bearer[ \t]+(\S.*)", re.IGNORECASE)


def bearer_token(headers: Iterable[str]) -> str:
    """Return the bearer token of ``Authorization`` headers; empty where there is none, or where two headers differ."""
    tokens = {match[1] if (match := _BEARER.fullmatch(header.strip(" \t"))) else "" for header in headers}
    return tokens.pop() if len(tokens) == 1 else ""


def mask_tokens(text: str) -> str:
    """Return the text with the secret part of every token removed."""
    return re.sub(r"(qtn_[a-z]{2,8}_[0-9A-Za-z]{12}_)[0-9A-Za-z_]+", r"\1…", text)


#: What stands in place of a secret.
MASK = "…"

#: Words of a secret, and what is left of it at the edge of a text that was cut, are masked from so many characters on.
_MIN_WORD_LENGTH, _MIN_EDGE_LENGTH = 8, 4


def mask_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return the text with tokens masked and with every secret, in each form in which it is sent or quoted.

    Also masked are a secret's words of 8 characters and more, and what of it stands at an edge where the text was cut.
    """
    for form in _forms(tuple(secrets)):
        text = text.replace(form, MASK)
        for length in range(len(form) - 1, _MIN_EDGE_LENGTH - 1, -1):
            if text.startswith(form[-length:]):
                text = MASK + text[length:]
            if text.endswith(form[:length]):
                text = text[:-length] + MASK
    return mask_tokens(text)


@functools.lru_cache(maxsize=64)
def _forms(secrets: tuple[str, ...]) -> tuple[str, ...]:
    """Every form of the secrets, the longest first."""
    forms: set[str] = set()
    for secret in filter(None, secrets):
        words = (word for word in secret.split() if len(word) >= _MIN_WORD_LENGTH)
        encoded = secret.encode(errors="surrogateescape")
        quotations = (quote(encoded, safe=""), base64.b64encode(encoded).decode().rstrip("="), repr(secret)[1:-1])
        forms.update((secret, *words, *quotations, json.dumps(secret)[1:-1]))
    return tuple(sorted(forms, key=len, reverse=True))


def _random(length: int) -> str:
    return "".join(secrets.choice(_BASE62_DIGITS) for _ in range(length))


def _checksum(head: str) -> str:
    number, digits = zlib.crc32(head.encode()), ""
    for _ in range(6):
        number, digit = divmod(number, 62)
        digits = _BASE62_DIGITS[digit] + digits
    return digits


#: The first line of what is proven: another meaning of the lines after it gets another one.
_PURPOSE = "quintain call 1"

_MAC = re.compile(r"[0-9a-f]{64}")


class CallProof(NamedTuple):
    """A proof, and what it has to prove. ``target`` is the routing key of the message; ``deadline`` is in milliseconds
    since the epoch, ``body_sha256`` in hexadecimal digits."""

    #: The public id of the session.
    id: str
    request_id: str
    target: str
    body_sha256: str
    deadline: int
    #: The proof itself; it is in no log, as a token is not.
    text: str

    def matches(self, token_sha256: bytes) -> bool:
        """Return whether it was made with the token that has this SHA-256, comparing in constant time."""
        expected = make_proof(
            token_sha256,
            session_id=self.id,
            request_id=self.request_id,
            target=self.target,
            body_sha256=self.body_sha256,
            deadline=self.deadline,
        )
        return hmac.compare_digest(self.text, expected)

    def without_target(self) -> CallProof:
        """Return what it proves if its message was published without a routing key."""
        return self._replace(target="")

    def __repr__(self) -> str:
        return f"CallProof({self.id}, {self.request_id!r}, …)"


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
    if not isinstance(session_id, str) or _PUBLIC_ID.fullmatch(session_id) is None:
        raise Unauthorized
    if not isinstance(mac, str) or _MAC.fullmatch(mac) is None or deadline is None or "\n" in target:
        raise Unauthorized
    return CallProof(session_id, request_id, target, body_sha256, deadline, mac)
