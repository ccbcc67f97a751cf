"""Parses ``QUINTAIN_BROKER_URL``: the URL of one RabbitMQ node, or of several cluster nodes separated by commas."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from urllib.parse import parse_qsl, unquote, urlsplit

from quintain.errors import ConfigError

HEARTBEAT_SECONDS = 15

#: A comma that is followed by another URL; any other comma may be part of a password.
_URL_SEPARATOR = re.compile(r",\s*(?=amqps?://)")


def node_urls(urls: str) -> tuple[str, ...]:
    """Return the URL of each node, with a heartbeat of `HEARTBEAT_SECONDS` added where the URL names none.

    Raises `ConfigError` where a parameter switches off the verification of the broker's certificate.
    """
    return tuple(_with_heartbeat(url) for url in _URL_SEPARATOR.split(urls.strip()))


def round_robin(nodes: tuple[str, ...]) -> Iterator[str]:
    """Iterate over the nodes for ever, starting at a random one so that clients spread over the cluster."""
    first = random.randrange(len(nodes))  # noqa: S311 -- spread, not a secret
    return itertools.cycle(nodes[first:] + nodes[:first])


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


def _with_heartbeat(url: str) -> str:
    options = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    if any(name == "no_verify_ssl" and value != "0" for name, value in options):
        raise ConfigError(
            f"The broker's URL {_without_password(url)} switches off the verification of its certificate: leave "
            "no_verify_ssl out, and name your own CA's certificate as cafile=/path/to/ca.pem"
        )
    if "heartbeat=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}heartbeat={HEARTBEAT_SECONDS}"
