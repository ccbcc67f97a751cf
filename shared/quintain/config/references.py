"""``${{ NAME }}``: a value of the environment, named in the file and put in when a service starts.

``${{ NAME:-default }}`` does without. What is put in is never looked at again for further references. A secret
belongs into a reference; one written out in the file is refused, and never shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from quintain.config.tree import place, texts, with_texts

_REFERENCE = re.compile(r"\$\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*(?::-(.*?))?\s*\}\}", re.DOTALL)

#: What keys of well-known services look like, wherever in a text they stand.
_KEY_SHAPE = re.compile(
    r"(?<![A-Za-z0-9])(?:sk-[A-Za-z0-9_-]{17,}|AIza[A-Za-z0-9_-]{10,}|gh[opsu]_[A-Za-z0-9]{10,}"
    r"|github_pat_\w{10,}|xox[abp]-[A-Za-z0-9-]{6,}|qtn_[a-z]{2,8}_\w{20,})"
)


def holds_reference(value: object) -> bool:
    """Whether this is a text with a reference in it."""
    return isinstance(value, str) and _REFERENCE.search(value) is not None


def without_references(text: str) -> str:
    """The text with its references taken out."""
    return _REFERENCE.sub("", text)


def names_in(tree: object) -> tuple[str, ...]:
    """Every variable that the tree names, each once, in the file's order."""
    found = (match[1] for _, text in texts(tree) for match in _REFERENCE.finditer(text))
    return tuple(dict.fromkeys(found))


def substituted(tree: object, env: Mapping[str, str]) -> object:
    """The tree with every reference replaced by its value; ask `missing_in` first."""

    def value_of(match: re.Match[str]) -> str:
        value, default = env.get(match[1], ""), match[2]
        return value if value.strip() or default is None else default

    return with_texts(tree, lambda text: _REFERENCE.sub(value_of, text))


def missing_in(tree: object, env: Mapping[str, str]) -> Iterator[str]:
    """A sentence for every reference that has neither a value nor a default."""
    for parts, text in texts(tree):
        for match in _REFERENCE.finditer(text):
            if match[2] is None and not env.get(match[1], "").strip():
                state = "empty" if match[1] in env else "not set"
                yield f"{place(parts)}: the environment variable {match[1]} is {state}"


def misspelt_in(tree: object) -> Iterator[str]:
    """A sentence for every ``${{`` that begins no reference."""
    for parts, text in texts(tree):
        if "${{" in without_references(text):
            yield f"{place(parts)}: not a reference; write ${{{{ NAME }}}} or ${{{{ NAME:-default }}}}"


def without_secrets(text: str) -> str:
    """The text with what looks like a key of a well-known service taken out."""
    return _KEY_SHAPE.sub("…", text)


def secrets_in(tree: object) -> Iterator[str]:
    """A sentence for every secret written out in the tree, without its value."""
    for parts, text in texts(tree):
        is_key = parts[-1:] == ("api_key",)
        if _KEY_SHAPE.search(text) or (is_key and not _REFERENCE.fullmatch(text.strip())):
            yield (
                f"{place(parts)}: a secret is written out here; put it into an environment variable"
                f" and write ${{{{ {'API_KEY' if is_key else 'NAME'} }}}}"
            )
