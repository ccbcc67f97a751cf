"""Quotes what a target wrote, for errors: bounded, on one line, without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable

from quintain.config.secrets import redact_secrets
from quintain.contracts.credentials import MASK, mask_secrets
from quintain.contracts.values import replace_surrogates

#: How much of what cannot be read as an answer is quoted, in characters.
MAX_QUOTED_LENGTH = 200

#: So many times of what is shown of a text is looked at for secrets.
_EXTRA = 8

#: What precedes a secret, and secrets that their providers have shortened already, such as ``sk-…abcd``.
_CREDENTIAL = re.compile(
    r"\b(?:bearer|basic)\s+[^\s'\",;]+|\bsk-[\w.*…-]{4,}|\beyJ[\w-]{8,}\.[\w.-]+|\bAKIA[0-9A-Z]{12,}"
    r"|\b(?:api[-_ ]?key|access[-_ ]?token|secret|password)['\"]?\s*[:=]\s*['\"]?[^\s'\",;]+",
    re.IGNORECASE,
)


def quoted(text: str, secrets: Iterable[str], *, length: int = MAX_QUOTED_LENGTH, is_end: bool = False) -> str:
    """Return the beginning of a text as `clean` shows it, or its end."""
    # More than is shown: a secret at the edge must be whole to be found.
    text = clean(text[-_EXTRA * length :] if is_end else text[: _EXTRA * length], secrets)
    if len(text) <= length:
        return text
    return f"…{text[-length:]}" if is_end else f"{text[:length]}…"


def clean(text: str, secrets: Iterable[str]) -> str:
    """Return the text on one line, with everything masked that is a secret or looks like one."""
    text = " ".join(mask_secrets(text.replace("\0", " "), secrets).split())
    return replace_surrogates(_CREDENTIAL.sub(MASK, redact_secrets(text)))
