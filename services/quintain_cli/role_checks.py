"""The check of `quintain doctor` on the users of running services: each needs the rights of its role."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from quintain.topology import METADATA_TOPOLOGY, conversation_topology, lease_topology
from quintain_cli.broker_checks import MAX_SHOWN, DoctorCheck
from quintain_cli.broker_management import ROLES, Management

#: The connections of a service, as its bus names them in the broker's list.
_CONNECTION: Final = re.compile(r"quintain (metadata|worker|gateway|host) (?:publishing|consuming)")

#: Names that a role may need. Those of targets are left out: a worker may have a part of them (``add-user --only``).
_NAMES: Final = (
    *(exchange.name for exchange in METADATA_TOPOLOGY.exchanges),
    *(queue.name for queue in METADATA_TOPOLOGY.queues),
    *(one.queues[0].name for one in (lease_topology("x"), conversation_topology("x", "x"))),
)

_VERBS: Final = {"configure": "declare", "write": "write to", "read": "read"}


def check_running_roles(api: Management) -> Iterator[DoctorCheck]:
    """Find the rights that the users of connected services lack: the broker refuses what needs them, and nobody else
    hears of a worker that may not reach the ledger."""
    permissions = {granted["user"]: granted for granted in api.get("vhosts/{vhost}/permissions")}
    connected = {
        (named[1], str(connection["user"]))
        for connection in api.get("vhosts/{vhost}/connections")
        if (named := _CONNECTION.fullmatch(str(connection.get("client_properties", {}).get("connection_name", ""))))
    }
    is_any_refused = False
    for role, user in sorted(connected):
        if missing := list(_missing(role, user, permissions.get(user, {}))):
            is_any_refused = True
            more = f", and {len(missing) - MAX_SHOWN} more" if len(missing) > MAX_SHOWN else ""
            says = f"a {role} is connected as {user}, which may not {', '.join(missing[:MAX_SHOWN])}{more}"
            fix = f"`quintain broker add-user {user} --role {role}`, with its --only; it has a new password then"
            yield DoctorCheck(what="rights of services", verdict="fail", says=says, mend=fix)
    if not is_any_refused:
        says = f"{len(connected)} kinds of connected services have those of their roles"
        yield DoctorCheck(what="rights of services", verdict="ok", says=says)


def _missing(role: str, user: str, granted: dict[str, Any]) -> Iterator[str]:
    """What the role may do and this user may not."""
    for right, verb in _VERBS.items():
        needed, pattern = ROLES[role][right], str(granted.get(right, ""))
        for name in (*_NAMES, "quintain.reply.{user}.x"):
            own, others = name.format(user=role), name.format(user=user)
            # RabbitMQ lets an empty pattern match nothing.
            if re.search(needed, own) and not (pattern and re.search(pattern, others)):
                yield f"{verb} {others}"
