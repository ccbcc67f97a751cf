"""References to variables in a file, `${{ NAME }}`, and secrets: one that is written out is an error, and is redacted.

A value that replaces a reference is not scanned for further references. The message about a secret does not show it.
The place of a reference is written as ``targets.gpt4o.command[1]``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence


def format_path(parts: Sequence[str | int]) -> str:
    """Return the path as text: keys joined by dots, indexes in brackets."""
    name = ""
    for part in parts:
        if isinstance(part, int):
            name += f"[{part}]"
        else:
            name += f".{part}" if name else part
    return name


def iterate_strings(tree: object, parts: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield every string of a tree with its path, in the file's order."""
    if isinstance(tree, str):
        yield parts, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from iterate_strings(value, (*parts, str(key)))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from iterate_strings(value, (*parts, index))


def map_strings(tree: object, change: Callable[[str], str]) -> object:
    """Return the tree with ``change`` applied to every string value; keys stay unchanged."""
    if isinstance(tree, str):
        return change(tree)
    if isinstance(tree, dict):
        return {key: map_strings(value, change) for key, value in tree.items()}
    if isinstance(tree, list):
        return [map_strings(value, change) for value in tree]
    return tree


_REFERENCE_PATTERN = re.compile(r"\$\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*(?::-(.*?))?\s*\}\}", re.DOTALL)


#: The formats of well-known services' secret keys, anywhere in a text.
_SECRET_PATTERN = re.compile(
    r"(?<![A-Za-z0-9])(?:sk-[A-Za-z0-9_-]{17,}|AIza[A-Za-z0-9_-]{10,}|gh[opsu]_[A-Za-z0-9]{10,}"
    r"|github_pat_\w{10,}|xox[abp]-[A-Za-z0-9-]{6,}|qtn_[a-z]{2,8}_\w{20,})"
)


def holds_reference(value: object) -> bool:
    """Return whether a value is a string with a reference in it."""
    return isinstance(value, str) and _REFERENCE_PATTERN.search(value) is not None


def without_references(text: str) -> str:
    """Return the text with its references removed."""
    return _REFERENCE_PATTERN.sub("", text)


def find_variables(tree: object) -> tuple[str, ...]:
    """Return every variable referenced in the tree, without duplicates, in the file's order."""
    found = (match[1] for _, text in iterate_strings(tree) for match in _REFERENCE_PATTERN.finditer(text))
    return tuple(dict.fromkeys(found))


def substitute(tree: object, env: Mapping[str, str]) -> object:
    """Return the tree with every reference replaced by its value; check `missing_variable_errors` first."""

    def value_of(match: re.Match[str]) -> str:
        value, default = env.get(match[1], ""), match[2]
        return value if value.strip() or default is None else default

    return map_strings(tree, lambda text: _REFERENCE_PATTERN.sub(value_of, text))


def missing_variable_errors(tree: object, env: Mapping[str, str]) -> Iterator[str]:
    """Yield an error message for every reference that has neither a value nor a default."""
    for parts, text in iterate_strings(tree):
        for match in _REFERENCE_PATTERN.finditer(text):
            if match[2] is None and not env.get(match[1], "").strip():
                state = "empty" if match[1] in env else "not set"
                yield f"{format_path(parts)}: the environment variable {match[1]} is {state}"


def syntax_errors(tree: object) -> Iterator[str]:
    """Yield an error message for every ``${{`` that does not begin a reference."""
    for parts, text in iterate_strings(tree):
        if "${{" in without_references(text):
            yield f"{format_path(parts)}: not a reference; write ${{{{ NAME }}}} or ${{{{ NAME:-default }}}}"


def referenced_values(text: str, substituted: str) -> tuple[str, ...]:
    """Return the values that replaced the references of a text."""
    literals = _REFERENCE_PATTERN.split(text)[:: _REFERENCE_PATTERN.groups + 1]
    found = re.fullmatch("(.*?)".join(map(re.escape, literals)), substituted, re.DOTALL)
    return () if found is None else found.groups()


#: Words in the names of headers that hold credentials.
_SECRET_HEADER = re.compile(
    r"authori[sz]ation|(?:^|[-_])auth(?:[-_]|$)|cookie|credential|key$|passw|secret|signature|token(?!s)", re.IGNORECASE
)

#: What may stand beside the reference in such a header: the name of a scheme.
_SCHEME = re.compile(r"[A-Za-z-]{0,20}\s*")


def is_secret_header(name: str) -> bool:
    """Return whether a header of this name holds a credential."""
    return _SECRET_HEADER.search(name) is not None


def _is_literal_header(name: str, value: str) -> bool:
    references = list(_REFERENCE_PATTERN.finditer(value))
    is_referenced = bool(references) and not any(found[2] for found in references)
    return is_secret_header(name) and not (is_referenced and _SCHEME.fullmatch(without_references(value)))


def redact_secrets(text: str) -> str:
    """Return the text with everything removed that looks like a secret key of a well-known service."""
    return _SECRET_PATTERN.sub("…", text)


def literal_secret_errors(tree: object) -> Iterator[str]:
    """Yield an error message, without the value, for every secret written out in the tree."""
    for parts, text in iterate_strings(tree):
        is_key = parts[-1:] == ("api_key",)
        is_header = parts[-2:-1] == ("headers",) and _is_literal_header(str(parts[-1]), text)
        if _SECRET_PATTERN.search(text) or is_header or (is_key and not _REFERENCE_PATTERN.fullmatch(text.strip())):
            reference = f"${{{{ {'API_KEY' if is_key else 'NAME'} }}}}"
            yield (
                f"{format_path(parts)}: a secret is written out here; put it into an environment variable"
                f" and write {f'Bearer {reference}' if is_header and text[:7] == 'Bearer ' else reference}"
            )
