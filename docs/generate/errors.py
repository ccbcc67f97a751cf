"""The pages of errors and of exit codes, from the exception classes and the codes of commands."""

from __future__ import annotations

from generate.markdown import code, from_docstring, table
from quintain import errors
from quintain.errors import Fault, QuintainError
from quintain_cli import console
from quintain_gateway import errors as http_errors
from quintain_host.supervisor import REPLACE_EXIT_CODE

#: What to do, by the error's class.
MENDS = {
    "RefusedInHttp": "Send what the message names.",
    "UnsupportedEncoding": "Send the body without `Content-Encoding`.",
    "BadRequest": "Correct the field that the message names.",
    "UnsupportedParameter": "Leave the setting in `parameter` out, or set `unsupported: ignore`.",
    "UnknownTarget": "Use a name in `availableTargets`, or start a worker that serves the target.",
    "Unauthorized": "Set the token of an open session; for sessions and `target`, the admin token of this fleet.",
    "ForbiddenTarget": "Open a session with this target in `--targets`.",
    "RequestConflict": "Use a new request id for another request.",
    "ReplyExpired": "Send it under a new request id, which is another charged call.",
    "PayloadTooLarge": "Shorten the request, or open the session with a larger `maxBodyBytes`.",
    "Rejected": "Correct what the provider says in `providerError`.",
    "BudgetExhausted": "Raise the session's limit, or open another session; `quintain info` shows what is left.",
    "Cancelled": "None: the caller wanted it. Send it again under a new request id.",
    "InternalFault": "Read the service's log, and report it.",
    "TargetUnavailable": "Correct `api_key` or `model` of the target, or pay the provider's bill; restart the worker.",
    "ProviderFailed": "Send it again if `retryable`; `providerError` has the provider's words.",
    "ReplyTooLarge": "Ask for less, or open the session with a larger `maxBodyBytes`.",
    "WorkerLost": "Find out why workers die, and send it under a new request id.",
    "ConversationLost": "Begin the conversation again, under a new id.",
    "Overloaded": "Send it again after `retryAfterMs`; add workers if it stays so.",
    "BudgetUnavailable": "Start the ledger's database or the metadata service; send the same request again.",
    "Throttled": "Send it again later; lower `max_concurrency` of the target if it stays so.",
    "Expired": "Give a longer deadline, or add workers: the call waited too long in its queue.",
    "TimedOut": "Give a longer deadline. The call may have been billed.",
    "NotFound": "Correct the path: `GET /openapi.json` lists all of them.",
    "MethodNotAllowed": "Use a method that `GET /openapi.json` lists for the path.",
    "RequestTimeout": "Send the whole request without long pauses.",
    "HeadersTooLarge": "Send fewer or shorter headers.",
    "TooManyConnections": "Close connections, or add gateways.",
    "GatewayStopping": "Send it to another gateway, or again when this one has started.",
    "SessionBusy": "Send fewer requests at once under one session.",
    "LargeBodiesBusy": "Send it again later; add gateways if it stays so.",
    "MisdirectedRequest": "Use the gateway's own name, or start it with `--allowed-host NAME`.",
    "StillRunning": "Send the same request with the same `Idempotency-Key` again.",
    "QuintainError": "Read the message.",
    "ConfigError": "Correct the file or variable that the message names.",
    "LedgerInUse": "Stop the other process, or set `QUINTAIN_LEDGER_URL` or `QUINTAIN_STATE_DIR` for this one.",
    "BusError": "Read the message.",
    "BrokerUnavailable": "Start the broker, or correct `QUINTAIN_BROKER_URL`.",
    "BrokerRefused": "Correct user, permissions or virtual host; `quintain doctor` says which.",
    "GatewayUnavailable": "Start the gateway, or correct `QUINTAIN_GATEWAY_URL`.",
    "Unroutable": "Start the service that declares the queue.",
    "QueueFull": "Send it again later; if it stays so, add workers, or look whether all nodes of the broker run.",
    "NoAnswer": "Start the service that answers; `quintain status` lists those that run.",
    "HostLost": "Create the target again: the lease ends with its host.",
    "LeaseRequestNotDelivered": "Create the target again.",
    "RemoteTargetError": "Correct the hosted target; the message has its exception.",
    "Fault": "Read `code`.",
}

#: What a command's exit code means, and what to do.
EXIT_CODES = {
    console.EXIT_OK: ("Passed, or done. A service that SIGTERM ended has it too.", ""),
    console.EXIT_ERRORS: (
        "A command failed. Of `run`, `rescore`: rows with errors or in doubt, a parked target, or the run failed.",
        "Read the message; the same `run` again tries only what has no answer.",
    ),
    console.EXIT_USAGE: ("Wrong options or files, or a setting that is missing.", "Correct what the message names."),
    console.EXIT_BELOW_THRESHOLD: (
        "Of `run`, `rescore`: a value is below its threshold, or worse than the baseline's. Of `compare`: it is worse.",
        "`quintain view RUN` shows the answers.",
    ),
    console.EXIT_BUDGET_SPENT: (
        "The budget is spent; every row so far is kept.",
        "Raise `max_calls`, and run the same command again.",
    ),
    REPLACE_EXIT_CODE: (
        "Of `serve host`: a thread of the target did not end, and the process was ended.",
        "Start it again; correct the target, whose code does not return.",
    ),
    console.EXIT_INTERRUPTED: (
        "Ctrl-C (SIGINT: 128 + 2) ended the command; of `run`, every row so far is kept.",
        "Run the same command again.",
    ),
}


def error_classes() -> list[type[QuintainError]]:
    """Every class of errors, those of faults first, each by its place in its module."""
    found = [
        one
        for module in (errors, http_errors)
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, QuintainError) and one.__module__ == module.__name__
    ]
    return sorted(found, key=lambda one: not issubclass(one, Fault))


def errors_page() -> str:
    """Return the page of errors."""
    faults = [one for one in error_classes() if issubclass(one, Fault) and one is not Fault]
    others = [one for one in error_classes() if not issubclass(one, Fault)]
    return (
        "# Errors\n\n"
        "A call that has no result has a fault. Programs decide by its `code`, `retryable` and `charged`, never by its "
        "message. `charged` is `unknown` where no ledger decided: the same request again, with the same request id, is "
        "answered with what the ledger knows ([protocol](../protocol/index.md)).\n\n"
        "## Faults\n\n"
        + table(
            ["code", "status", "class", "meaning", "retryable", "charged", "what to do"],
            [_fault_row(one) for one in faults],
        )
        + "## Other errors\n\n"
        "The library raises these before or instead of a reply. `--json` prints the class in snake_case as `code`.\n\n"
        + table(
            ["class", "meaning", "what to do"],
            [(code(one.__name__), from_docstring(_first_line(one)), MENDS[one.__name__]) for one in others],
        )
    )


def exit_codes_page() -> str:
    """Return the page of exit codes."""
    codes = {one.__name__: console.exit_code(one()) for one in error_classes()}
    special = [(code(name), str(number)) for name, number in codes.items() if number != console.EXIT_ERRORS]
    return (
        "# Exit codes\n\n"
        + table(["code", "meaning", "what to do"], [(str(key), *EXIT_CODES[key]) for key in sorted(EXIT_CODES)])
        + f"A command that ends with an [error](errors.md) exits with {console.EXIT_ERRORS}, but for these:\n\n"
        + table(["error", "code"], special)
    )


def _first_line(kind: type[QuintainError]) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]


def _fault_row(kind: type[Fault]) -> tuple[str, ...]:
    charged = "depends" if kind.always_charged is None else "yes" if kind.always_charged else "no"
    if kind.always_unknown:
        charged = "unknown"
    retryable = "if uncharged" if kind.always_retryable is None else "yes" if kind.always_retryable else "no"
    meaning = from_docstring(_first_line(kind))
    return code(kind.code), str(kind.status), code(kind.__name__), meaning, retryable, charged, MENDS[kind.__name__]
