"""Reads a provider's own words from an error that it sent: bounded, and with secrets masked.

Error bodies may repeat keys. The target's own key is masked in every form it is sent in, and so is everything that
looks like a secret. What a provider answers to a key that it does not accept is about the key: of that only the code is
kept.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

from quintain.config.references import redact_secrets
from quintain.contracts.strings import replace_surrogates
from quintain.errors import ProviderError

#: The longest message, and the longest code, type or parameter, in characters.
MAX_MESSAGE_LENGTH, MAX_NAME_LENGTH = 500, 100

MASK = "…"

#: What precedes a secret, and secrets that their providers have shortened already, such as ``sk-…abcd``.
_CREDENTIAL = re.compile(
    r"\b(?:bearer|basic)\s+[^\s'\",;]+|\bsk-[\w.*…-]{4,}|\beyJ[\w-]{8,}\.[\w.-]+|\bAKIA[0-9A-Z]{12,}"
    r"|\b(?:api[-_ ]?key|access[-_ ]?token|secret|password)['\"]?\s*[:=]\s*['\"]?[^\s'\",;]+",
    re.IGNORECASE,
)

_HTTP_UNAUTHORIZED = 401


def read_provider_error(status: int | None, body: object, secrets: Iterable[str]) -> ProviderError | None:
    """Return what the provider wrote about a failure; None if it wrote nothing that can be read.

    ``body`` is its JSON, or its text; ``status`` is None for an error inside an answer that had begun.
    """
    fields = _error_object(body)
    if fields is None:
        return None
    variants = tuple(_variants(secrets))

    def name(value: object) -> str | None:
        text = "" if value is None or isinstance(value, bool | dict | list) else _clean(str(value), variants)
        return text[:MAX_NAME_LENGTH] or None

    found = ProviderError(
        status=status,
        code=name(fields.get("code")),
        type=name(fields.get("type")),
        parameter=name(fields.get("param")),
        message=None if status == _HTTP_UNAUTHORIZED else _message(fields, variants),
    )
    return None if found == ProviderError(status=status) else found


def _error_object(body: object) -> dict[str, object] | None:
    """Return the object that describes the error, whichever way this provider wraps it."""
    if isinstance(body, str):
        # A proxy's error page says nothing in its first characters.
        return {"message": body} if body.strip() and not body.lstrip().startswith("<") else None
    if not isinstance(body, dict):
        return None
    return _error_object(body["error"]) if isinstance(body.get("error"), dict | str) else body


def _message(fields: dict[str, object], secrets: Iterable[str]) -> str | None:
    found = next((fields[key] for key in ("message", "detail") if isinstance(fields.get(key), str)), "")
    text = _clean(str(found), secrets)
    return (text if len(text) <= MAX_MESSAGE_LENGTH else f"{text[:MAX_MESSAGE_LENGTH]}…") or None


def _clean(text: str, secrets: Iterable[str]) -> str:
    """Return the text on one line, with everything masked that is a secret or looks like one."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return replace_surrogates(_CREDENTIAL.sub(MASK, redact_secrets(" ".join(text.replace("\0", " ").split()))))


def _variants(secrets: Iterable[str]) -> Iterator[str]:
    for secret in secrets:
        if secret:
            yield from {secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode()}
