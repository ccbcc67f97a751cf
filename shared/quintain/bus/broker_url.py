"""Parses ``QUINTAIN_BROKER_URL``: the URL of one RabbitMQ node, or of several cluster nodes separated by commas."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

HEARTBEAT_SECONDS = 15

#: A comma that the next URL follows; any other may be of a password.
_URL_SEPARATOR = re.compile(r",\s*(?=amqps?://)")


def node_urls(urls: str) -> tuple[str, ...]:
    """The URL of each node, with our heartbeat where it names none: a silent peer is noticed in under a minute."""
    return tuple(_with_heartbeat(url) for url in _URL_SEPARATOR.split(urls.strip()))


def round_robin(nodes: tuple[str, ...]) -> Iterator[str]:
    """The nodes round and round, for ever. It begins anywhere: a cluster's clients are not all on its first node."""
    first = random.randrange(len(nodes))  # noqa: S311 -- spread, not a secret
    return itertools.cycle(nodes[first:] + nodes[:first])


def url_user(urls: str) -> str:
    """The broker's user of this URL; ``guest`` where it names none. A cluster's nodes have the same users."""
    return unquote(urlsplit(_URL_SEPARATOR.split(urls.strip())[0]).username or "guest")


def without_password(urls: str) -> str:
    """The URL without its password; of a cluster every node's."""
    return ", ".join(_without_password(url) for url in _URL_SEPARATOR.split(urls.strip()))


def _without_password(url: str) -> str:
    head, _, tail = url.rpartition("@")
    scheme, _, user = head.partition("://")
    return f"{scheme}://{user.partition(':')[0]}@{tail}" if head else url


def _with_heartbeat(url: str) -> str:
    if "heartbeat=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}heartbeat={HEARTBEAT_SECONDS}"
