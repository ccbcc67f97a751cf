"""The URL of one RabbitMQ, or of a cluster's nodes: taken apart, and shown."""

from __future__ import annotations

from itertools import islice

import pytest

from quintain.bus.rabbit import RabbitBus
from quintain.bus.rabbit_connection import node_urls, round_robin
from quintain.errors import ConfigError
from quintain.settings import without_password

HEARTBEAT = "heartbeat=15"


@pytest.mark.parametrize(
    ("urls", "nodes"),
    [
        ("amqp://a/", (f"amqp://a/?{HEARTBEAT}",)),
        ("amqp://a/?heartbeat=3", ("amqp://a/?heartbeat=3",)),
        ("amqp://a/?x=1", (f"amqp://a/?x=1&{HEARTBEAT}",)),
        ("amqp://a/,amqps://b/v", (f"amqp://a/?{HEARTBEAT}", f"amqps://b/v?{HEARTBEAT}")),
        (" amqp://a/, amqp://b/ ", (f"amqp://a/?{HEARTBEAT}", f"amqp://b/?{HEARTBEAT}")),
        # A comma that no URL follows is of the password.
        ("amqp://me:p,w@a/,amqp://me:p,w@b/", (f"amqp://me:p,w@a/?{HEARTBEAT}", f"amqp://me:p,w@b/?{HEARTBEAT}")),
    ],
)
def test_nodes_stand_between_commas(urls: str, nodes: tuple[str, ...]) -> None:
    assert node_urls(urls) == nodes


@pytest.mark.parametrize("option", ["no_verify_ssl=1", "x=1&no_verify_ssl=true", "no_verify%5Fssl=1", "no_verify_ssl="])
def test_verification_of_the_certificate_cannot_be_switched_off(option: str) -> None:
    for urls in (f"amqps://me:secret@a/?{option}", f"amqps://a/,amqps://me:secret@b/?{option}"):
        with pytest.raises(ConfigError) as refused:
            RabbitBus(urls)
        assert "secret" not in str(refused.value)
    assert node_urls("amqps://a/?cafile=/ca.pem&no_verify_ssl=0&heartbeat=3")


def test_nodes_take_turns_and_each_client_begins_somewhere() -> None:
    nodes = ("a", "b", "c")
    rounds = {tuple(islice(round_robin(nodes), 4)) for _ in range(200)}
    assert rounds == {("a", "b", "c", "a"), ("b", "c", "a", "b"), ("c", "a", "b", "c")}


@pytest.mark.parametrize(
    ("urls", "said"),
    [
        ("amqp://a:5672/v", "amqp://a:5672/v"),
        ("amqp://me:secret@a/", "amqp://me@a/"),
        ("amqp://me:s@e,c@a/,amqps://me:secret@b/", "amqp://me@a/, amqps://me@b/"),
    ],
)
def test_no_password_is_shown(urls: str, said: str) -> None:
    assert without_password(urls) == said
