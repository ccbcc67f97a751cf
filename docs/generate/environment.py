"""The page of environment variables: the names that the settings read, each with its meaning."""

from __future__ import annotations

from generate.markdown import code, table
from quintain.settings import TEST_LEASE_VARIABLE, read_log_settings, read_settings, read_trace_settings

#: What each variable is for, and what counts where it is not set.
MEANINGS = {
    "QUINTAIN_BROKER_URL": (
        "The broker; for a cluster the nodes' URLs, separated by commas.",
        "`run`, `demo`, `up`: none, all in one process. `serve`: required",
    ),
    "QUINTAIN_GATEWAY_URL": ("A gateway, for programs and commands that use HTTP.", "none"),
    "QUINTAIN_SESSION_TOKEN": ("The token of an open session.", "none"),
    "QUINTAIN_ADMIN_TOKEN": (
        "The token that opens sessions and pauses targets: any text of 16 characters or more.",
        "`run` and `up` make one in the state folder",
    ),
    "QUINTAIN_LEDGER_URL": (
        "The ledger: `sqlite:///` and an absolute path, or `postgresql://user:password@host/database`.",
        "SQLite in the state folder",
    ),
    "QUINTAIN_RETENTION_DAYS": (
        "For how many days sessions that are closed or expired are kept, with their calls; at least 3.",
        "for ever",
    ),
    "QUINTAIN_CONFIG": ("The configuration file.", "`quintain.yaml`, then `agentv.config.yaml`, here or above"),
    "QUINTAIN_STATE_DIR": (
        "The state folder: the ledger and the admin token.",
        "`$XDG_STATE_HOME/quintain`, else `~/.local/state/quintain`",
    ),
    "QUINTAIN_OPS_PORT": ("The port of health and metrics; 0 takes a free one.", "none is opened"),
    "QUINTAIN_OPS_HOST": ("The address of that port.", "`127.0.0.1`"),
    "QUINTAIN_LOG_FORMAT": ("`text` or `json`.", "`text`"),
    "QUINTAIN_LOG_LEVEL": ("`debug`, `info`, `warning` or `error`.", "the command's own"),
    "QUINTAIN_TRACE_CONTENT": ("`true`: spans have questions and answers.", "`false`"),
    "TRACEPARENT": ("The span that the spans of this process belong to, as W3C writes it.", "none"),
    "OTEL_TRACES_EXPORTER": ("`otlp` exports spans, `none` does not.", "`otlp`, if an endpoint is set"),
    "OTEL_EXPORTER_OTLP_ENDPOINT": ("Where spans are sent.", "none: no spans"),
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": ("The same, for spans only.", "none"),
    "OTEL_SDK_DISABLED": ("`true`: no spans.", "`false`"),
    "OTEL_SERVICE_NAME": ("The service's name in spans.", "`quintain-` and the service"),
    "OTEL_RESOURCE_ATTRIBUTES": ("Attributes of all spans.", "none"),
    "HOME": ("The user's folder, for the default of the state folder.", "as the system says"),
    "XDG_STATE_HOME": ("The folder of the user's state, likewise.", "`~/.local/state`"),
}


class _RecordedNames(dict[str, str]):
    """An environment that records which of its variables are read."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, None] = {}

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        self.names[name] = None
        return super().get(name, default)


def variables() -> list[str]:
    """The names of all variables that the settings read; not those of secrets' files, nor that of our own tests."""
    env = _RecordedNames()
    for read in (read_settings, read_log_settings, read_trace_settings):
        read(env)
    return [name for name in env.names if name != TEST_LEASE_VARIABLE and not _names_file(name, env.names)]


def page() -> str:
    """Return the page."""
    secrets = [name for name in variables() if _has_file(name)]
    return (
        "# Environment variables\n\n"
        + table(["variable", "meaning", "if not set"], [(code(name), *MEANINGS[name]) for name in MEANINGS])
        + f"In place of {', '.join(map(code, secrets))} and of each variable that the configuration names as "
        "`${{ NAME }}`, the same name with `_FILE` may name a file with the value. Setting both is an error.\n\n"
        "[The protocol](../protocol/programs.md) says which service reads which variable, and what a grader gets; "
        "[traces](../operate.md#traces) has more of OpenTelemetry's.\n"
    )


def _names_file(name: str, names: dict[str, None]) -> bool:
    return name.endswith("_FILE") and name.removesuffix("_FILE") in names


def _has_file(name: str) -> bool:
    env = _RecordedNames()
    read_settings(env)
    return f"{name}_FILE" in env.names
