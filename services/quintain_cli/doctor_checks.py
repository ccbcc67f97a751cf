"""The checks of `quintain doctor` on what was read: of this machine, the database and RabbitMQ's management API."""

from __future__ import annotations

import ipaddress
import re
import shlex
import shutil
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from quintain.bus.broker_url import all_node_urls, url_user, without_password
from quintain.contracts.message import Message
from quintain.errors import BrokerUnavailable, BusError
from quintain.topology import (
    DEAD,
    HOST,
    INVOKE,
    LEDGER,
    METADATA,
    METADATA_TOPOLOGY,
    POISON,
    POISON_QUEUE,
    POISON_TOPOLOGY,
    UNROUTED,
    target_queue,
)
from quintain_cli.broker_management import USER_LIMITS, Management
from quintain_metadata.store.opening import DatabaseServer

#: Below this the ledger may lose what it is told, in bytes.
MIN_FREE_BYTES = 1024**3

#: How far a clock may be off, in seconds: deadlines of calls are times of the clock, and a ``Date`` header is rounded.
MAX_SKEW_SECONDS = 2.0

#: Beyond this, calls expire before they are tried, in seconds.
_FAILING_SKEW_SECONDS = 10.0

#: What a setting of PostgreSQL must not be, and what a crash of its machine then loses.
_UNSAFE_SETTINGS: Mapping[str, tuple[str, str]] = {
    "fsync": ("off", "a crash of its machine can destroy the ledger"),
    "full_page_writes": ("off", "a crash of its machine can destroy pages of the ledger"),
    "synchronous_commit": ("off", "a crash forgets calls that were charged and answered"),
}

CheckVerdict = Literal["ok", "note", "warn", "fail"]


class DoctorCheck(Message):
    """One check: what was checked (``what``), the verdict, what was found (``says``), and how to fix it (``mend``)."""

    what: str
    verdict: CheckVerdict
    says: str
    mend: str | None = None


def check_transport(urls: str) -> DoctorCheck:
    """Check that traffic to a broker on another machine is encrypted."""
    plain = [url for url in all_node_urls(urls) if urlsplit(url).scheme == "amqp" and not _is_here(url)]
    if not plain:
        return DoctorCheck(what="TLS", verdict="ok", says="encrypted, or on this machine")
    # A name without a dot, or a private address, may be a network of containers.
    verdict: CheckVerdict = "warn" if all(_is_private(url) for url in plain) else "fail"
    says = f"{without_password(plain[0])} is not encrypted: who is between reads every token and prompt"
    return DoctorCheck(what="TLS", verdict=verdict, says=says, mend="use amqps://, with cafile= for a CA of your own")


def check_broker_user(urls: str) -> DoctorCheck:
    """Check that a broker on another machine does not have RabbitMQ's default user."""
    user = url_user(urls)
    if user != "guest" or all(_is_here(url) for url in all_node_urls(urls)):
        return DoctorCheck(what="broker user", verdict="ok", says=user)
    fix = "`quintain broker add-user NAME --role ROLE`, then remove guest"
    return DoctorCheck(what="broker user", verdict="fail", says="guest, whose password everybody knows", mend=fix)


def check_modes(paths: Iterable[Path], shared: CheckVerdict = "fail") -> Iterator[DoctorCheck]:
    """Check that nobody else can read files that hold tokens or calls; yields one check for each that exists.

    ``shared`` is the verdict on one that others can read.
    """
    for path in paths:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue
        if mode & 0o077:
            fix = f"chmod go= {path}"
            yield DoctorCheck(
                what=str(path), verdict=shared, says=f"others have rights on it (mode {mode:o})", mend=fix
            )
        else:
            yield DoctorCheck(what=str(path), verdict="ok", says=f"for its owner alone (mode {mode:o})")


def check_free_disk(folder: Path, min_free_bytes: int = MIN_FREE_BYTES) -> DoctorCheck:
    """Check that the disk of the ledger has room."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    says = f"{free / 1024**3:.1f} GiB free at {folder}"
    if free >= min_free_bytes:
        return DoctorCheck(what="disk", verdict="ok", says=says)
    return DoctorCheck(
        what="disk", verdict="fail", says=says, mend="free some: a ledger that cannot be written to stops"
    )


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or "localhost"
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_private(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host


def check_clock(what: str, clock: float, now: float) -> DoctorCheck:
    """Compare a clock of a server with this machine's, both in seconds since the epoch."""
    skew = clock - now
    if abs(skew) <= MAX_SKEW_SECONDS:
        return DoctorCheck(what=what, verdict="ok", says=f"within {MAX_SKEW_SECONDS:g} s of this machine's")
    verdict: CheckVerdict = "fail" if abs(skew) > _FAILING_SKEW_SECONDS else "warn"
    says = (
        f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's: calls expire too early or too late"
    )
    return DoctorCheck(what=what, verdict=verdict, says=says, mend="run NTP (chrony, systemd-timesyncd) on both")


def database_checks(server: DatabaseServer, now: float) -> Iterator[DoctorCheck]:
    """Check the clock and the durability of a PostgreSQL server."""
    yield check_clock("clock of the database", server.clock, now)
    unsafe = [name for name, (wrong, _) in _UNSAFE_SETTINGS.items() if server.settings.get(name) == wrong]
    for name in unsafe:
        wrong, loss = _UNSAFE_SETTINGS[name]
        fix = f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()"
        yield DoctorCheck(what=f"durability: {name}", verdict="fail", says=f"{wrong}: {loss}", mend=fix)
    if not unsafe:
        yield DoctorCheck(what="durability", verdict="ok", says="the database writes what it confirms")


#: A broker's free disk at which it stops taking messages; its default is 50 MB, in bytes.
MIN_DISK_LIMIT_BYTES = 500_000_000

#: Workers that are not told otherwise hold no message for as long: RabbitMQ's default, in milliseconds.
MIN_CONSUMER_TIMEOUT_MS = 1_800_000

#: A name that no role's permissions match: who may use it may use the queues of others too.
_NOBODYS_NAME = "quintain.x"

#: What the names of the queues begin with that services bind to exchanges with calls or tokens of others.
_BOUND_PREFIXES = {
    METADATA.name: ("quintain.metadata",),
    LEDGER.name: ("quintain.ledger.",),
    UNROUTED.name: ("quintain.metadata.unrouted",),
    DEAD.name: ("quintain.metadata.dead",),
    POISON.name: ("quintain.poison",),
    HOST.name: ("quintain.host.", "quintain.lease."),
}

#: How many names a check shows.
MAX_SHOWN: Final = 10

_EXCHANGES: Final = {each.name for each in (*METADATA_TOPOLOGY.exchanges, *POISON_TOPOLOGY.exchanges)}

_SHARED_QUEUES: Final = {each.name: each.kind for each in METADATA_TOPOLOGY.queues}

#: The queues with a part of their own in the name, and their type: docs/protocol/topology.md.
_NAMED_QUEUES: Final = (
    (re.compile(r"quintain\.(target|host)\..+"), "quorum"),
    (re.compile(r"quintain\.(cancel|discovery|events|lease|ledger\.admit|reply|run)\..+"), "classic"),
)

_APPLY = "quintain broker apply"


def management_checks(api: Management, queues: Collection[str]) -> Iterator[DoctorCheck]:
    """Check what the API tells of the broker, alarms first; ``queues`` are those that need a limit in bytes."""
    reads = (_nodes, lambda api: _policies(api, queues), _bindings, _foreign_checks, _flags, _guest, _rights, _clock)
    for read in reads:
        try:
            yield from read(api)
        except BusError as error:
            fix = "name its address with --management, and a user with the tag administrator"
            yield DoctorCheck(what="management API", verdict="warn", says=error.message, mend=fix)
            if isinstance(error, BrokerUnavailable):
                return


def _policies(api: Management, queues: Collection[str]) -> Iterator[DoctorCheck]:
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
        yield from _delivery_limit(name, limits)


def _consumer_timeout(name: str, limits: dict[str, Any]) -> Iterator[DoctorCheck]:
    """Check the consumer timeout of a queue, if it has one of its own."""
    timeout_ms = limits.get("consumer-timeout", limits.get("x-consumer-timeout"))
    if isinstance(timeout_ms, int) and timeout_ms < MIN_CONSUMER_TIMEOUT_MS:
        says = f"{timeout_ms / 1000:,.0f} s: a longer call is delivered again while it runs"
        fix = (
            f"take consumer-timeout out of its policy, set it to {MIN_CONSUMER_TIMEOUT_MS} (ms) or more, or set"
            " QUINTAIN_CONSUMER_TIMEOUT_SECONDS of the workers to it"
        )
        yield DoctorCheck(what=f"consumer timeout of {name}", verdict="fail", says=says, mend=fix)


def _delivery_limit(name: str, limits: dict[str, Any]) -> Iterator[DoctorCheck]:
    """Check that no policy lowers the delivery limit of the poison queue: the lower one of both is in force."""
    limit = limits.get("delivery-limit")
    if name == POISON_QUEUE.name and isinstance(limit, int) and 0 <= limit < (POISON_QUEUE.delivery_limit or 0):
        says = f"{limit}: a message is dropped after `quintain dlq` has read it so often"
        fix = "take delivery-limit out of the policy that matches it"
        yield DoctorCheck(what=f"delivery limit of {name}", verdict="fail", says=says, mend=fix)


def _bindings(api: Management) -> Iterator[DoctorCheck]:
    """Find what gets a copy of messages that are for a service alone."""
    copies = []
    for binding in api.get("bindings/{vhost}"):
        source, destination, key = (str(binding[field]) for field in ("source", "destination", "routing_key"))
        is_own = source not in {INVOKE.name, *_BOUND_PREFIXES} or (
            binding["destination_type"] == "queue"
            and (
                destination == target_queue(key).name
                if source == INVOKE.name
                else destination.startswith(_BOUND_PREFIXES[source])
            )
        )
        if not is_own:
            copies.append(destination)
            says = f"the {binding['destination_type']} {destination} gets a copy of what {source} routes with {key!r}"
            fix = f"find who declared it, then: rabbitmqctl delete_queue {shlex.quote(destination)}"
            yield DoctorCheck(what="bindings", verdict="fail", says=says, mend=fix)
    if not copies:
        yield DoctorCheck(what="bindings", verdict="ok", says="no queue gets a copy of what is for a service")


def _flags(api: Management) -> Iterator[DoctorCheck]:
    disabled = [flag["name"] for flag in api.get("feature-flags") if _is_missing(flag)]
    if disabled:
        fix = "rabbitmqctl enable_feature_flag all"
        yield DoctorCheck(what="feature flags", verdict="fail", says=f"disabled: {', '.join(disabled)}", mend=fix)
    else:
        yield DoctorCheck(what="feature flags", verdict="ok", says="all stable ones are enabled")


def _is_missing(flag: dict[str, Any]) -> bool:
    return flag.get("state") == "disabled" and flag.get("stability", "stable") in {"stable", "required"}


def _nodes(api: Management) -> Iterator[DoctorCheck]:
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


def _guest(api: Management) -> Iterator[DoctorCheck]:
    administrators = [user["name"] for user in api.get("users") if "administrator" in user.get("tags", ())]
    if "guest" in administrators:
        fix = "rabbitmqctl delete_user guest, when services have users of their own"
        yield DoctorCheck(what="users", verdict="warn", says="guest is an administrator", mend=fix)
    else:
        yield DoctorCheck(what="users", verdict="ok", says="guest is no administrator")


def _rights(api: Management) -> Iterator[DoctorCheck]:
    """Find users who may do everything without being administrators."""
    administrators = {user["name"] for user in api.get("users") if "administrator" in user.get("tags", ())}
    powerful = [
        granted["user"]
        for granted in api.get("vhosts/{vhost}/permissions")
        if granted["user"] not in administrators
        and any(_allows_everything(granted[right]) for right in ("configure", "write", "read"))
    ]
    if powerful:
        fix = "`quintain broker add-user NAME --role ROLE` for each, then remove these"
        says = f"{', '.join(sorted(powerful))} may use every queue: the ledger's, and the replies of others"
        yield DoctorCheck(what="rights", verdict="fail", says=says, mend=fix)
    else:
        yield DoctorCheck(what="rights", verdict="ok", says="only administrators may use every queue")


def _allows_everything(pattern: str) -> bool:
    try:
        # RabbitMQ lets an empty pattern match nothing.
        return bool(pattern) and re.search(pattern, _NOBODYS_NAME) is not None
    except re.error:
        return False


def _clock(api: Management) -> Iterator[DoctorCheck]:
    yield check_clock("clock of the broker", api.clock(), time.time())


def _foreign_checks(api: Management) -> Iterator[DoctorCheck]:
    """Name the exchanges and queues that the protocol does not have, and the limits that are absent."""
    exchanges = [each["name"] for each in api.get("exchanges/{vhost}")]
    foreign = [name for name in exchanges if name and not name.startswith("amq.") and name not in _EXCHANGES]
    yield _foreign("exchanges", foreign)
    yield _foreign("queues", [each["name"] for each in api.get("queues/{vhost}") if _is_foreign_queue(each)])
    yield _limits(api)


def _is_foreign_queue(queue: dict[str, Any]) -> bool:
    name, kind = queue["name"], queue.get("type", "classic")
    if name in _SHARED_QUEUES:
        return bool(kind != _SHARED_QUEUES[name])
    return not any(pattern.fullmatch(name) and kind == wanted for pattern, wanted in _NAMED_QUEUES)


def _foreign(what: str, names: Sequence[str]) -> DoctorCheck:
    """Name what the protocol does not have; below its own prefix only a user of Quintain can have made it."""
    what = f"foreign {what}"
    if not names:
        return DoctorCheck(what=what, verdict="ok", says="none")
    shown = sorted(names, key=lambda name: (not name.startswith("quintain."), name))
    listed = ", ".join(shown[:MAX_SHOWN]) + (f", {len(shown) - MAX_SHOWN} more" if len(shown) > MAX_SHOWN else "")
    return DoctorCheck(
        what=what,
        verdict="fail" if shown[0].startswith("quintain.") else "warn",
        says=f"{listed}: not of the protocol by name or type; a user can store or copy messages there",
        mend="delete them, and replace the user who made them; other programs need a virtual host of their own",
    )


def _limits(api: Management) -> DoctorCheck:
    what = "limits of queues, connections and channels"
    administrators = {user["name"] for user in api.get("users") if "administrator" in user.get("tags", ())}
    users = {granted["user"] for granted in api.get("vhosts/{vhost}/permissions")} - administrators
    limited = {each["user"]: each["value"] for each in api.get("user-limits")}
    without = sorted(user for user in users if not USER_LIMITS.keys() <= limited.get(user, {}).keys())
    absent = [f"{user} may open any number of connections or channels" for user in without[:MAX_SHOWN]]
    if len(without) > MAX_SHOWN:
        absent.append(f"{len(without) - MAX_SHOWN} more users likewise")
    if not any("max-queues" in each["value"] for each in api.get("vhost-limits/{vhost}")):
        absent.insert(0, "any number of queues may be declared")
    if absent:
        return DoctorCheck(what=what, verdict="fail", says="; ".join(absent), mend="quintain broker apply")
    return DoctorCheck(what=what, verdict="ok", says="all are limited")
