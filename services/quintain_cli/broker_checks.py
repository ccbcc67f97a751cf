"""The checks of `quintain doctor` on RabbitMQ: its version, what is declared, who may use it, its management API."""

from __future__ import annotations

import ipaddress
import re
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from quintain.bus.rabbit_declarations import DeclarationCheck, DeclarationStatus, is_older
from quintain.contracts.message import MAX_BODY_BYTES, Message
from quintain.errors import BrokerUnavailable, BusError
from quintain.settings import all_node_urls, url_user, without_password
from quintain.topology import (
    BACKLOG,
    CONSUMER_TIMEOUT_MS,
    CONVERSATION,
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
    backlog_queue,
    target_of_key,
    target_queue,
)
from quintain_cli.broker_management import USER_LIMITS, Management

#: How far a clock may be off, in seconds: deadlines of calls are times of the clock, and a ``Date`` header is rounded.
MAX_SKEW_SECONDS = 2.0

#: Beyond this, calls expire before they are tried, in seconds.
_FAILING_SKEW_SECONDS = 10.0


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


#: A broker's free disk at which it stops taking messages; its default is 50 MB, in bytes.
MIN_DISK_LIMIT_BYTES = 500_000_000

#: A name that no role's permissions match: who may use it may use the queues of others too.
_NOBODYS_NAME = "quintain.x"

#: What the names of the queues begin with that services bind to exchanges with calls or tokens of others.
_BOUND_PREFIXES = {
    METADATA.name: ("quintain.metadata", "quintain.ledger.admit."),
    LEDGER.name: ("quintain.ledger.",),
    UNROUTED.name: ("quintain.metadata.unrouted",),
    DEAD.name: ("quintain.metadata.dead",),
    POISON.name: ("quintain.poison",),
    HOST.name: ("quintain.host.", "quintain.lease."),
    CONVERSATION.name: ("quintain.conversation.",),
}

#: The queues of the exchanges with calls, by the target that is their key.
_CALL_QUEUES = {INVOKE.name: target_queue, BACKLOG.name: backlog_queue}

#: How many names a check shows.
MAX_SHOWN: Final = 10

_EXCHANGES: Final = {each.name for each in (*METADATA_TOPOLOGY.exchanges, *POISON_TOPOLOGY.exchanges)}

_SHARED_QUEUES: Final = {each.name: each.kind for each in METADATA_TOPOLOGY.queues}

#: The queues with a part of their own in the name, and their type: docs/protocol/topology.md.
_NAMED_QUEUES: Final = (
    (re.compile(r"quintain\.(target|host)\..+"), "quorum"),
    (re.compile(r"quintain\.(conversation|lease|ledger\.admit|reply|run)\..+"), "classic"),
)

_POLICIES_MEND = "rabbitmqctl import_definitions, of the policies of deploy/rabbitmq/definitions.json: docs/operate.md"

_LIMITS_MEND = "rabbitmqctl set_user_limits and set_vhost_limits, as in docs/operate.md"


def management_checks(
    api: Management, queues: Collection[str], *further: Callable[[Management], Iterator[DoctorCheck]]
) -> Iterator[DoctorCheck]:
    """Check what the API tells of the broker, alarms first; ``queues`` are those that need a limit in bytes."""
    reads = (_nodes, lambda api: _policies(api, queues), _bindings, _foreign_checks, _flags, _guest, _rights, _clock)
    for read in (*reads, *further):
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
            yield DoctorCheck(
                what=what, verdict="fail", says="none: a client can fill the broker's disk", mend=_POLICIES_MEND
            )
        elif name != "quintain.poison" and limits.get("overflow", limits.get("x-overflow")) != "reject-publish":
            yield DoctorCheck(
                what=what,
                verdict="fail",
                says="what is beyond it drops the oldest messages unanswered",
                mend=_POLICIES_MEND,
            )
        else:
            yield DoctorCheck(what=what, verdict="ok", says=f"{int(size) / 1024**2:,.0f} MiB")
        yield from _consumer_timeout(name, limits)
        yield from _delivery_limit(name, limits)


def _consumer_timeout(name: str, limits: dict[str, Any]) -> Iterator[DoctorCheck]:
    """Check the consumer timeout of a queue, if it has one of its own."""
    timeout_ms = limits.get("consumer-timeout", limits.get("x-consumer-timeout"))
    if isinstance(timeout_ms, int) and timeout_ms < CONSUMER_TIMEOUT_MS:
        says = f"{timeout_ms / 1000:,.0f} s: a longer call is delivered again while it runs"
        fix = f"take consumer-timeout out of its policy, or set it to {CONSUMER_TIMEOUT_MS} (ms) or more"
        yield DoctorCheck(what=f"consumer timeout of {name}", verdict="warn", says=says, mend=fix)


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
        is_own = source not in {*_CALL_QUEUES, *_BOUND_PREFIXES} or (
            binding["destination_type"] == "queue"
            and (
                destination == _CALL_QUEUES[source](target_of_key(key)).name
                if source in _CALL_QUEUES
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
        return DoctorCheck(what=what, verdict="fail", says="; ".join(absent), mend=_LIMITS_MEND)
    return DoctorCheck(what=what, verdict="ok", says="all are limited")


#: The RabbitMQ versions that the tests were run on, oldest first: as docs/operate.md names them.
TRIED_VERSIONS: Final = ("3.10.8", "4.0.5", "4.3.6")


def check_message_size(*, refuses_larger: bool) -> DoctorCheck:
    """Check that the broker refuses what is larger than any message of the protocol."""
    if refuses_larger:
        return DoctorCheck(what="message size", verdict="ok", says=f"at most {MAX_BODY_BYTES >> 20} MiB")
    return DoctorCheck(
        what="message size",
        verdict="warn",
        says=f"messages of more than {MAX_BODY_BYTES >> 20} MiB are taken: a client can fill the memory of a service",
        mend=f"set max_message_size = {MAX_BODY_BYTES} in rabbitmq.conf; it is the default since RabbitMQ 4.0",
    )


def version_checks(version: str) -> Iterator[DoctorCheck]:
    """Check the broker's version, and say what one needs that has one consumer timeout for all queues."""
    yield check_version(version)
    if is_older(version, (3, 12)):
        yield DoctorCheck(
            what="consumer timeout",
            verdict="note",
            says=f"RabbitMQ {version} has it in rabbitmq.conf alone, 30 min by default, and tells it to no client",
            mend=f"set consumer_timeout = {CONSUMER_TIMEOUT_MS} there: a longer call is delivered again while it runs",
        )


def check_version(version: str) -> DoctorCheck:
    """Check the broker's version against those that the tests were run on."""
    says = f"RabbitMQ {version}"
    if version in TRIED_VERSIONS:
        return DoctorCheck(what="version", verdict="ok", says=says)
    if is_older(version, (3, 10)):
        return DoctorCheck(what="version", verdict="fail", says=says, mend="use RabbitMQ 3.10 or newer")
    fix = f"no problem is known; the versions that were tried are {', '.join(TRIED_VERSIONS)}"
    return DoctorCheck(what="version", verdict="warn", says=f"{says}, which was not tried", mend=fix)


def check_declaration(declaration: DeclarationCheck) -> DoctorCheck:
    """Check one exchange or queue of the protocol as it is declared at the broker."""
    if declaration.status is DeclarationStatus.SAME:
        return DoctorCheck(what=declaration.name, verdict="ok", says="as the protocol declares it")
    if declaration.status is DeclarationStatus.MISSING:
        fix = "the first service that needs it declares it: `quintain serve metadata`"
        return DoctorCheck(what=declaration.name, verdict="warn", says="not declared yet", mend=fix)
    if declaration.status is DeclarationStatus.HIDDEN:
        fix = "use a broker user with configure permission, as metadata, to compare what is declared"
        says = f"not compared, as are those after it: {declaration.broker_message}"
        return DoctorCheck(what=declaration.name, verdict="warn", says=says, mend=fix)
    fix = "empty and delete it, and a service declares it again; change settings of it with a policy"
    return DoctorCheck(what=declaration.name, verdict="fail", says=declaration.broker_message, mend=fix)
