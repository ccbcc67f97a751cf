"""The environment of programs that configurations name: what each program needs, and no secret. No I/O.

Variables are passed on by an allowlist, because nobody knows the names of all secrets of a machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from quintain.errors import ConfigError
from quintain.process_marks import MARK_VARIABLE

#: What a program needs to be found, to find its files and libraries, and to reach the network.
ALLOWED_VARIABLES: Final = frozenset(
    {
        "PATH", "HOME", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH", "NODE_PATH", "TRACEPARENT",
        "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
        MARK_VARIABLE, "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
    }
)  # fmt: skip

#: The beginnings of more names: the locale's categories.
ALLOWED_PREFIXES: Final = ("LC_",)

#: Quintain's own secrets: no program gets them, also where a configuration names them.
REFUSED_VARIABLES: Final = frozenset(
    {"QUINTAIN_ADMIN_TOKEN", "QUINTAIN_LEDGER_URL", "QUINTAIN_BROKER_URL", "QUINTAIN_SESSION_TOKEN"}
)


def program_environment(
    env: Mapping[str, str], *, env_from: Iterable[str] = (), own: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment of a program.

    It has the allowed variables of ``env``, those whose names ``env_from`` lists, and the program's ``own``. Raises
    `ConfigError` if a listed variable is not set, or is a secret of Quintain itself.
    """
    names = list(env_from)
    for name in names:
        if name.removesuffix("_FILE") in REFUSED_VARIABLES:
            raise ConfigError(f"env_from: {name} is a secret of Quintain itself, which no program gets")
        if name not in env:
            raise ConfigError(f"env_from: {name} is not set; export it, or leave it out")
    allowed = {
        name: value
        for name, value in env.items()
        if name in ALLOWED_VARIABLES or name.startswith(ALLOWED_PREFIXES) or name in names
    }
    return {**allowed, **(own or {})}
