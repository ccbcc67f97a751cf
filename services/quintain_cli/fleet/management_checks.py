"""The checks of `quintain doctor` that need RabbitMQ's management API: policies, feature flags, alarms and limits."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from typing import Any, Protocol

from quintain.errors import BusError
from quintain_cli.fleet.doctor_check import DoctorCheck
from quintain_cli.fleet.server_checks import check_clock

#: A broker's free disk at which it stops taking messages; its default is 50 MB, in bytes.
MIN_DISK_LIMIT_BYTES = 500_000_000

#: Calls last up to 25 min; RabbitMQ's default, in milliseconds.
MIN_CONSUMER_TIMEOUT_MS = 1_800_000

#: Patterns of permissions that match every name.
_EVERYTHING = (".*", ".+", "^.*", "^.*$", "^.+$")

_APPLY = "quintain broker apply"


class ReadsManagement(Protocol):
    """Reads objects of the management API."""

    def get(self, path: str) -> Any:
        """Return an object or a list. Raises `BusError`."""

    def clock(self) -> float:
        """Return the broker's clock, in seconds since the epoch. Raises `BusError`."""


def management_checks(api: ReadsManagement, queues: Collection[str]) -> Iterator[DoctorCheck]:
    """Check what the API tells of the broker; ``queues`` are those that need a limit in bytes."""
    checked = (_policies(api, queues), _flags(api), _nodes(api), _guest(api), _rights(api), _clock(api))
    for checks in checked:
        try:
            yield from checks
        except BusError as error:
            fix = "name its address with --management, and a user with the tag administrator"
            yield DoctorCheck(what="management API", verdict="warn", says=error.message, mend=fix)


def _policies(api: ReadsManagement, queues: Collection[str]) -> Iterator[DoctorCheck]:
    for queue in sorted(api.get("queues/{vhost}"), key=lambda queue: str(queue["name"])):
        name = queue["name"]
        if name not in queues:
            continue
        limits = {**(queue.get("arguments") or {}), **(queue.get("effective_policy_definition") or {})}
        size = limits.get("max-length-bytes", limits.get("x-max-length-bytes"))
        what = f"limit of {name}"
        if size is None:
            yield DoctorCheck(what=what, verdict="fail", says="none: a client can fill the broker's disk", mend=_APPLY)
        elif name != "quintain.poison" and limits.get("overflow", limits.get("x-overflow")) != "reject-publish":
            yield DoctorCheck(
                what=what, verdict="fail", says="what is beyond it drops the oldest messages unanswered", mend=_APPLY
            )
        else:
            yield DoctorCheck(what=what, verdict="ok", says=f"{int(size) / 1024**2:,.0f} MiB")
        yield from _consumer_timeout(name, limits)


def _consumer_timeout(name: str, limits: dict[str, Any]) -> Iterator[DoctorCheck]:
    """Check the consumer timeout of a queue, if it has one of its own."""
    timeout_ms = limits.get("consumer-timeout", limits.get("x-consumer-timeout"))
    if isinstance(timeout_ms, int) and timeout_ms < MIN_CONSUMER_TIMEOUT_MS:
        says = f"{timeout_ms / 1000:,.0f} s: a longer call is delivered again while it runs"
        fix = f"take consumer-timeout out of its policy, or set it to {MIN_CONSUMER_TIMEOUT_MS} (ms) or more"
        yield DoctorCheck(what=f"consumer timeout of {name}", verdict="fail", says=says, mend=fix)


def _flags(api: ReadsManagement) -> Iterator[DoctorCheck]:
    disabled = [flag["name"] for flag in api.get("feature-flags") if _is_missing(flag)]
    if disabled:
        fix = "rabbitmqctl enable_feature_flag all"
        yield DoctorCheck(what="feature flags", verdict="fail", says=f"disabled: {', '.join(disabled)}", mend=fix)
    else:
        yield DoctorCheck(what="feature flags", verdict="ok", says="all stable ones are enabled")


def _is_missing(flag: dict[str, Any]) -> bool:
    return flag.get("state") == "disabled" and flag.get("stability", "stable") in {"stable", "required"}


def _nodes(api: ReadsManagement) -> Iterator[DoctorCheck]:
    for node in api.get("nodes"):
        what = f"node {node['name']}"
        alarms = [name for name, key in (("memory", "mem_alarm"), ("disk", "disk_free_alarm")) if node.get(key)]
        limit = node.get("disk_free_limit", 0)
        if not node.get("running", True):
            yield DoctorCheck(what=what, verdict="fail", says="it does not run", mend="start it, or forget it")
        elif alarms:
            fix = "free memory or disk; until then no message is taken"
            yield DoctorCheck(what=what, verdict="fail", says=f"alarm: {', '.join(alarms)}", mend=fix)
        elif isinstance(limit, int) and limit < MIN_DISK_LIMIT_BYTES:
            fix = "set disk_free_limit.absolute = 2GB in rabbitmq.conf"
            says = f"it takes messages until {limit / 10**6:,.0f} MB of disk are left"
            yield DoctorCheck(what=what, verdict="warn", says=says, mend=fix)
        else:
            yield DoctorCheck(what=what, verdict="ok", says="no alarm, and a limit of its disk")


def _guest(api: ReadsManagement) -> Iterator[DoctorCheck]:
    administrators = [user["name"] for user in api.get("users") if "administrator" in user.get("tags", ())]
    if "guest" in administrators:
        fix = "rabbitmqctl delete_user guest, when services have users of their own"
        yield DoctorCheck(what="users", verdict="warn", says="guest is an administrator", mend=fix)
    else:
        yield DoctorCheck(what="users", verdict="ok", says="guest is no administrator")


def _rights(api: ReadsManagement) -> Iterator[DoctorCheck]:
    """Find users who may do everything without being administrators."""
    administrators = {user["name"] for user in api.get("users") if "administrator" in user.get("tags", ())}
    powerful = [
        granted["user"]
        for granted in api.get("permissions/{vhost}")
        if granted["user"] not in administrators
        and any(granted.get(right) in _EVERYTHING for right in ("configure", "write", "read"))
    ]
    if powerful:
        fix = "`quintain broker add-user NAME --role ROLE` for each, then remove these"
        says = f"{', '.join(sorted(powerful))} may use every queue: the ledger's, and the replies of others"
        yield DoctorCheck(what="rights", verdict="fail", says=says, mend=fix)
    else:
        yield DoctorCheck(what="rights", verdict="ok", says="only administrators may use every queue")


def _clock(api: ReadsManagement) -> Iterator[DoctorCheck]:
    yield check_clock("clock of the broker", api.clock(), time.time())
