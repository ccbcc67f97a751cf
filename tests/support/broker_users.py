"""The users of deploy/rabbitmq/definitions.json on a real broker, in a virtual host of their own."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pika
from pika.exceptions import ChannelClosedByBroker

from quintain.topology import METADATA_TOPOLOGY
from support.servers.rabbitmq_admin import BrokerAdmin

DEFINITIONS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "deploy" / "rabbitmq" / "definitions.json").read_text()
)
USERS = [user["name"] for user in DEFINITIONS["users"]]

#: As the broker's own commands do it; one of those takes a second, and there are two for each user.
_CREATE_USERS = """
ok = rabbit_vhost:add(<<"VHOST">>, <<"test">>),
lists:foreach(fun({User, Configure, Write, Read}) ->
    case rabbit_auth_backend_internal:exists(User) of
        true -> ok;
        false -> ok = rabbit_auth_backend_internal:add_user(User, <<"PASSWORD">>, <<"test">>)
    end,
    ok = rabbit_auth_backend_internal:set_permissions(User, <<"VHOST">>, Configure, Write, Read, <<"test">>)
end, [USERS])
"""


@dataclass(frozen=True)
class BrokerUsers:
    """A virtual host in which these users have the rights of the definitions, and nobody else has any."""

    address: str
    vhost: str
    password: str

    def url(self, user: str) -> str:
        """The broker, for one of the users."""
        return f"amqp://{user}:{self.password}@{self.address}/{quote(self.vhost, safe='')}"

    def is_allowed(self, user: str, method: str, *args: Any) -> bool:
        """Whether the broker lets this user do this: a method of pika's channel."""
        with pika.BlockingConnection(pika.URLParameters(self.url(user))) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            try:
                getattr(channel, method)(*args)
            except ChannelClosedByBroker as closed:
                if closed.reply_code != 403:
                    raise
                return False
            return True


def broker_users(
    admin: BrokerAdmin,
    broker_url: str,
    rights: Sequence[dict[str, Any]] = DEFINITIONS["permissions"],
    vhost: str | None = None,
) -> BrokerUsers:
    """The users, made on this broker in a fresh virtual host, or in this one. Their password is one, and this run's
    alone."""
    vhost = vhost or f"users-{secrets.token_hex(4)}"
    made = BrokerUsers(urlsplit(broker_url).netloc.rpartition("@")[2], vhost, PASSWORD)
    users = ", ".join(_erlang([one["user"], one["configure"], one["write"], one["read"]]) for one in rights)
    program = _CREATE_USERS.replace("PASSWORD", PASSWORD).replace("VHOST", made.vhost).replace("USERS", users)
    admin.evaluate(program)
    return made


PASSWORD = secrets.token_hex(16)


def _erlang(texts: Sequence[str]) -> str:
    return "{" + ", ".join(f"<<{json.dumps(text)}>>" for text in texts) + "}"


def declarable(user: str, suffix: str) -> list[str]:
    """The names of the protocol that a user may declare, and so may use for what it likes; ``suffix`` ends those of
    which there are many."""
    (configure,) = (each["configure"] for each in DEFINITIONS["permissions"] if each["user"] == user)
    names = {each.name for each in (*METADATA_TOPOLOGY.exchanges, *METADATA_TOPOLOGY.queues)}
    kinds = ("conversation", "host", "ledger.admit", "lease", f"reply.{user}", "run", "target")
    names |= {f"quintain.{kind}.{suffix}" for kind in kinds}
    return sorted(name for name in names if re.search(configure, name))


def apply_policies(admin: BrokerAdmin, vhost: str = "/", *, byte_share: float = 1.0, count_share: float = 1.0) -> None:
    """Set the policies of the definitions; limits in bytes, and in messages, are these shares of theirs."""
    for policy in DEFINITIONS["policies"]:
        definition = dict(policy["definition"])
        definition["max-length-bytes"] = int(definition["max-length-bytes"] * byte_share)
        if "max-length" in definition:
            definition["max-length"] = int(definition["max-length"] * count_share)
        if "stream-max-segment-size-bytes" in definition:
            definition["stream-max-segment-size-bytes"] = int(definition["stream-max-segment-size-bytes"] * byte_share)
        texts = (vhost, policy["name"], policy["pattern"], json.dumps(definition))
        quoted = ", ".join(map(_binary, texts))
        arguments = f'{quoted}, {policy["priority"]}, <<"{policy["apply-to"]}">>, <<"test">>'
        admin.evaluate(f"ok = rabbit_policy:parse_set({arguments})")


def apply_limits(admin: BrokerAdmin, vhost: str = "/", *, share: float = 1.0) -> None:
    """Set this share of the limits of the definitions: the most queues, and each user's connections and channels."""
    for parameter in DEFINITIONS["parameters"]:
        value = _scaled(parameter["value"], share)
        admin.evaluate(f'ok = rabbit_vhost_limit:parse_set(<<"{vhost}">>, {value}, <<"test">>)')
    for user in DEFINITIONS["users"]:
        value = _scaled(user["limits"], share)
        admin.evaluate(f'ok = rabbit_auth_backend_internal:set_user_limits(<<"{user["name"]}">>, {value}, <<"test">>)')


def _scaled(limits: dict[str, int], share: float) -> str:
    return _binary(json.dumps({name: int(limit * share) for name, limit in limits.items()}))


def _binary(text: str) -> str:
    """Return the text as Erlang writes it by its bytes: not every image's `rabbitmqctl` keeps quotes in quotes."""
    return f"<<{', '.join(map(str, text.encode()))}>>"
