"""Settings from environment variables (``docs/protocol/programs.md``), and what a broker's URL says.

This is the only module that reads the environment. A secret may be in a file: ``NAME_FILE`` holds the path of a file
with the value of ``NAME``, as in containers. One trailing newline is not part of the value. An empty variable counts as
not set.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from quintain.errors import ConfigError
from quintain.runtime.text_files import text_lines
from quintain.timings import DEFAULT_TIMINGS, Timings

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
        with Path(file).open("rb") as opened:
            text = "".join(line for _, line in text_lines(opened))
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


MEMORY_URL = "memory://"

#: For Quintain's own tests: the length of a worker's lease in seconds, the same for every process of a fleet. All
#: timings are scaled by the same factor, except ledger_silence_seconds: a test that restarts a metadata service waits
#: for a process, which does not start faster. A value out of bounds is refused.
TEST_LEASE_VARIABLE = "QUINTAIN_TEST_LEASE_SECONDS"
SHORTEST_TEST_LEASE_SECONDS, LONGEST_TEST_LEASE_SECONDS = 1.0, DEFAULT_TIMINGS.lease_seconds

log = logging.getLogger(__name__)

#: The log levels by name.
LOG_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings read from the environment; None for variables that are not set."""

    broker_url: str | None
    ledger_url: str | None
    config_path: Path | None
    admin_token: str | None
    session_token: str | None
    gateway_url: str | None
    traceparent: str | None = None
    state_dir: Path
    ops_port: int | None
    ops_host: str
    timings: Timings = DEFAULT_TIMINGS
    #: For how many days sessions that have ended are kept; None is for ever.
    retention_days: int | None = None

    def require_broker_url(self) -> str:
        """Return the broker's URL. Raises `ConfigError` if it is not set."""
        if self.broker_url is None:
            raise ConfigError(
                "QUINTAIN_BROKER_URL is not set: name a broker, such as amqp://guest:guest@127.0.0.1:5672/"
            )
        return self.broker_url

    def require_fleet_url(self) -> str:
        """Return the broker's URL, else the gateway's. Raises `ConfigError` if neither is set."""
        if self.broker_url is None and self.gateway_url is not None:
            return self.gateway_url
        try:
            return self.require_broker_url()
        except ConfigError as error:
            raise ConfigError(
                f"{error.message}; or set QUINTAIN_GATEWAY_URL to a gateway, such as http://127.0.0.1:8787"
            ) from None

    def require_session_token(self) -> str:
        """Return the session's token. Raises `ConfigError` if it is not set."""
        if self.session_token is None:
            raise ConfigError(
                "QUINTAIN_SESSION_TOKEN is not set: open a session with `quintain session open --default-target NAME`"
            )
        return self.session_token


#: Replies are stored for a day, and sessions at least as long.
MIN_RETENTION_DAYS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The log format and level of this process; ``level`` is None if not set."""

    as_json: bool = False
    level: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """Whether to export spans, and whether to include questions and answers in them.

    ``has_service_name``: the operator set the service name, so it must not be overridden.
    """

    export: bool = False
    include_content: bool = False
    has_service_name: bool = False


def environment() -> dict[str, str]:
    """Return a copy of the process's environment, to be passed down."""
    return dict(os.environ)


def add_variables(variables: Mapping[str, str]) -> None:
    """Set variables of this process, for the code that it imports and the programs that this starts."""
    os.environ.update(variables)


def read_settings(env: Mapping[str, str]) -> Settings:
    """Read the settings; secrets may be in files (`read_secret`). Raises `ConfigError` for an invalid value."""
    admin_token = read_secret(env, "QUINTAIN_ADMIN_TOKEN")
    if admin_token is not None and len(admin_token) < 16:
        raise ConfigError("QUINTAIN_ADMIN_TOKEN is too short: any string of 16 characters or more")
    config = env.get("QUINTAIN_CONFIG")
    return Settings(
        broker_url=read_secret(env, "QUINTAIN_BROKER_URL"),
        ledger_url=read_secret(env, "QUINTAIN_LEDGER_URL"),
        config_path=Path(config) if config else None,
        admin_token=admin_token,
        session_token=read_secret(env, "QUINTAIN_SESSION_TOKEN"),
        gateway_url=env.get("QUINTAIN_GATEWAY_URL") or None,
        traceparent=env.get("TRACEPARENT"),
        state_dir=_state_dir(env),
        ops_port=_port(env, "QUINTAIN_OPS_PORT"),
        ops_host=env.get("QUINTAIN_OPS_HOST") or "127.0.0.1",
        timings=_timings(env),
        retention_days=_retention_days(env),
    )


def _retention_days(env: Mapping[str, str]) -> int | None:
    text = env.get("QUINTAIN_RETENTION_DAYS")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) >= MIN_RETENTION_DAYS):
        raise ConfigError(f"QUINTAIN_RETENTION_DAYS is {text!r}: a whole number of days from {MIN_RETENTION_DAYS}")
    return int(text)


def _port(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name)
    if not text:
        return None
    if not (text.isdecimal() and len(text) <= 5 and int(text) <= 65535):
        raise ConfigError(f"{name} is no port: a whole number from 0 (which takes a free one) to 65535")
    return int(text)


def _timings(env: Mapping[str, str]) -> Timings:
    text = env.get(TEST_LEASE_VARIABLE)
    if not text:
        return DEFAULT_TIMINGS
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not SHORTEST_TEST_LEASE_SECONDS <= seconds <= LONGEST_TEST_LEASE_SECONDS:
        raise ConfigError(
            f"{TEST_LEASE_VARIABLE} is {text!r}: a number of seconds from {SHORTEST_TEST_LEASE_SECONDS:g} to "
            f"{LONGEST_TEST_LEASE_SECONDS:g}; it is for tests of Quintain itself, leave it out"
        )
    log.warning("%s is set: all timings are those of a lease of %g s, for tests only", TEST_LEASE_VARIABLE, seconds)
    scaled = DEFAULT_TIMINGS.scaled(seconds / DEFAULT_TIMINGS.lease_seconds)
    return dataclasses.replace(scaled, ledger_silence_seconds=DEFAULT_TIMINGS.ledger_silence_seconds)


def read_log_settings(env: Mapping[str, str]) -> LogSettings:
    """Read ``QUINTAIN_LOG_FORMAT`` and ``QUINTAIN_LOG_LEVEL``. Raises `ConfigError` for an invalid value."""
    log_format = _read_choice(env, "QUINTAIN_LOG_FORMAT", ("text", "json"))
    level = _read_choice(env, "QUINTAIN_LOG_LEVEL", LOG_LEVELS)
    return LogSettings(as_json=log_format == "json", level=None if level is None else LOG_LEVELS[level])


def read_trace_settings(env: Mapping[str, str]) -> TraceSettings:
    """Read the standard ``OTEL_*`` variables and ``QUINTAIN_TRACE_CONTENT``. Raises `ConfigError`."""
    content = _read_choice(env, "QUINTAIN_TRACE_CONTENT", ("true", "false")) == "true"
    disabled = env.get("OTEL_SDK_DISABLED", "").lower() == "true"
    exporter = env.get("OTEL_TRACES_EXPORTER", "")
    endpoint = env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or env.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    service_named = bool(env.get("OTEL_SERVICE_NAME")) or "service.name=" in env.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return TraceSettings(
        export=not disabled and (exporter == "otlp" or (not exporter and bool(endpoint))),
        include_content=content,
        has_service_name=service_named,
    )


def _read_choice(env: Mapping[str, str], name: str, choices: Collection[str]) -> str | None:
    value = env.get(name, "").lower()
    if value and value not in choices:
        raise ConfigError(f"{name} is {env[name]!r}: it is one of {', '.join(choices)}")
    return value or None


def _state_dir(env: Mapping[str, str]) -> Path:
    if env.get("QUINTAIN_STATE_DIR"):
        return Path(env["QUINTAIN_STATE_DIR"])
    if env.get("XDG_STATE_HOME"):
        return Path(env["XDG_STATE_HOME"]) / "quintain"
    return Path(env.get("HOME") or Path.home()) / ".local" / "state" / "quintain"


#: A comma that is followed by another URL; any other comma may be part of a password.
_URL_SEPARATOR = re.compile(r",\s*(?=amqps?://)")


def first_node_url(urls: str) -> str:
    """Return the URL of the first node."""
    return _URL_SEPARATOR.split(urls.strip())[0]


def all_node_urls(urls: str) -> list[str]:
    """Return the URL of each node as it is written."""
    return _URL_SEPARATOR.split(urls.strip())


def url_user(urls: str) -> str:
    """Return the broker user in the URL, ``guest`` if it names none."""
    return unquote(urlsplit(first_node_url(urls)).username or "guest")


def without_password(urls: str) -> str:
    """Return the URL, or the URLs of all nodes, without passwords."""
    return ", ".join(_without_password(url) for url in _URL_SEPARATOR.split(urls.strip()))


def _without_password(url: str) -> str:
    head, _, tail = url.rpartition("@")
    scheme, _, user = head.partition("://")
    return f"{scheme}://{user.partition(':')[0]}@{tail}" if head else url
