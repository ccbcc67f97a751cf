"""Secrets from files: ``NAME_FILE`` may hold the path of a file with the value of ``NAME``, as in containers.

One trailing newline is not part of the value. An empty variable counts as not set.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from quintain.errors import ConfigError

_SUFFIX = "_FILE"

#: Other variables that end so name files for everybody, such as ``SSL_CERT_FILE``.
_SECRET_FILE_VARIABLE = re.compile(r"(QUINTAIN_\w+|\w*(KEY|TOKEN|SECRET|PASSWORD))_FILE")


def read_secret(env: Mapping[str, str], name: str) -> str | None:
    """Return the value of a variable, or of the file that ``NAME_FILE`` names; None if neither is set.

    Raises `ConfigError` if both are set, or if the file cannot be read.
    """
    value, file = env.get(name) or None, env.get(name + _SUFFIX) or None
    if file is None:
        return value
    if value is not None:
        raise ConfigError(f"{name} and {name}{_SUFFIX} are both set: leave one of them out")
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "it is no text"
        raise ConfigError(
            f"{name}{_SUFFIX} names {file}, which cannot be read ({reason}): is it there, and may this user read it?"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")


def secret_file_paths(env: Mapping[str, str]) -> list[Path]:
    """Return the files that variables name in place of secrets: those of Quintain, and of keys, tokens, passwords."""
    return [Path(file) for name, file in env.items() if file and _SECRET_FILE_VARIABLE.fullmatch(name)]


def with_secrets(env: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the environment with the values of these variables read from their files. Raises as `read_secret` does."""
    secrets = {name: read_secret(env, name) for name in names}
    return {**env, **{name: value for name, value in secrets.items() if value is not None}}


def without_variables(env: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """Return the environment without these variables and their ``NAME_FILE`` counterparts."""
    return {name: value for name, value in env.items() if not {name, name.removesuffix(_SUFFIX)} & set(names)}
