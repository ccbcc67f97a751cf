"""A real RabbitMQ for tests and benchmarks, taken from where there is one.

In this order:

1. ``QUINTAIN_TEST_BROKER_URL`` names one that runs: that one, or an error, and never another.
2. A container, where a Docker engine answers and has or can pull the image.
3. A ``rabbitmq-server`` on this machine, started as a private node.
4. The same, installed first, where there are apt and root.

``QUINTAIN_TEST_BROKER=container`` allows only the second, ``=server`` only the third and fourth.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from quintain.errors import BrokerUnavailable, ConfigError
from quintain.testing.choosing import Choice, Say
from quintain.testing.handshake import address_of, read_version
from quintain.testing.rabbitmq_container import container
from quintain.testing.rabbitmq_node import private_node
from quintain.testing.rabbitmq_server import find_server, install_server
from quintain.testing.under_test import BrokerAdmin, BrokerUnderTest

__all__ = ["BrokerAdmin", "BrokerUnderTest", "find_broker"]

_URL_VARIABLE = "QUINTAIN_TEST_BROKER_URL"


def find_broker(environment: Mapping[str, str], say: Say) -> AbstractContextManager[BrokerUnderTest]:
    """A real RabbitMQ, as `Choice.find` gives it; raises `BrokerUnavailable` where there is none."""
    return _CHOICE.find(environment, say)


def _named_broker(url: str) -> BrokerUnderTest:
    try:
        address = address_of(url)
    except ValueError as error:
        raise ConfigError(f"{_URL_VARIABLE} cannot be used: {error}") from error
    try:
        version = read_version(address)
    except OSError as error:
        raise BrokerUnavailable(
            f"{_URL_VARIABLE} names a broker at {address}, and none answers there ({error}): "
            "start it, or unset the variable to have one started"
        ) from error
    return BrokerUnderTest(url=url, how=f"RabbitMQ {version} at {address}, named by {_URL_VARIABLE}", admin=None)


def _server(environment: Mapping[str, str], say: Say) -> AbstractContextManager[BrokerUnderTest]:
    return private_node(find_server(environment) or install_server(environment, say), environment)


_CHOICE = Choice(
    kind="broker",
    product="RabbitMQ",
    url_variable=_URL_VARIABLE,
    named=_named_broker,
    ways={"container": container, "server": _server},
    missing=BrokerUnavailable,
    mend=f"Start a RabbitMQ and name it ({_URL_VARIABLE}=amqp://guest:guest@127.0.0.1:5672/), or start Docker, "
    "or install one (apt-get install -y rabbitmq-server)",
)
