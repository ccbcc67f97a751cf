"""``QUINTAIN_BROKER_URL``: one RabbitMQ, or the nodes of a cluster one after another, with commas between them."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

HEARTBEAT_SECONDS = 15

#: A comma that the next URL follows; any other may be of a password.
_BETWEEN = re.compile(r",\s*(?=amqps?://)")


def nodes_of(urls: str) -> tuple[str, ...]:
    """The URL of each node, with our heartbeat where it names none: a silent peer is noticed in under a minute."""
    return tuple(_with_heartbeat(url) for url in _BETWEEN.split(urls.strip()))


def in_turn(nodes: tuple[str, ...]) -> Iterator[str]:
    """The nodes round and round, for ever. It begins anywhere: a cluster's clients are not all on its first node."""
    first = random.randrange(len(nodes))  # noqa: S311 -- spread, not a secret
    return itertools.cycle(nodes[first:] + nodes[:first])


def user_of(urls: str) -> str:
    """The broker's user of this URL; ``guest`` where it names none. A cluster's nodes have the same users."""
    return unquote(urlsplit(_BETWEEN.split(urls.strip())[0]).username or "guest")


def shown(urls: str) -> str:
    """The URL without its password; of a cluster every node's."""
    return ", ".join(_shown(url) for url in _BETWEEN.split(urls.strip()))


def _shown(url: str) -> str:
    head, _, tail = url.rpartition("@")
    scheme, _, user = head.partition("://")
    return f"{scheme}://{user.partition(':')[0]}@{tail}" if head else url


def _with_heartbeat(url: str) -> str:
    if "heartbeat=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}heartbeat={HEARTBEAT_SECONDS}"
