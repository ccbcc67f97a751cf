"""A real RabbitMQ for tests and benchmarks, taken from where there is one.

In this order:

1. ``QUINTAIN_TEST_BROKER_URL`` names one that runs: that one, or an error, and never another.
2. A container, where a Docker engine answers and has or can pull the image.
3. A ``rabbitmq-server`` on this machine, started as a private node.
4. The same, installed first, where there are apt and root.

``QUINTAIN_TEST_BROKER=container`` allows only the second, ``=server`` only the third and fourth.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager

from quintain.errors import BrokerUnavailable, ConfigError, QuintainError
from quintain.testing.handshake import address_of, read_version
from quintain.testing.rabbitmq_container import container
from quintain.testing.rabbitmq_node import private_node
from quintain.testing.rabbitmq_server import find_server, install_server
from quintain.testing.under_test import BrokerAdmin, BrokerUnderTest

__all__ = ["BrokerAdmin", "BrokerUnderTest", "find_broker"]

Say = Callable[[str], None]
_Way = Callable[[Mapping[str, str], Say], AbstractContextManager[BrokerUnderTest]]

_URL_VARIABLE = "QUINTAIN_TEST_BROKER_URL"
_CHOICE_VARIABLE = "QUINTAIN_TEST_BROKER"

_MEND = (
    f"Start a RabbitMQ and name it ({_URL_VARIABLE}=amqp://guest:guest@127.0.0.1:5672/), or start Docker, "
    "or install one (apt-get install -y rabbitmq-server)"
)


@contextlib.contextmanager
def find_broker(environment: Mapping[str, str], say: Say) -> Iterator[BrokerUnderTest]:
    """A real RabbitMQ, until left. It blocks: seconds, or minutes where something is pulled or installed.

    ``say`` is told, in one line each, what takes long, and at last which broker was taken. Raises
    `BrokerUnavailable`, with all that was tried, where there is none, and `ConfigError` for a variable that
    cannot be understood.
    """
    with contextlib.ExitStack() as stack:
        broker = _take(stack, environment, say)
        say(f"broker: {broker.how}")
        yield broker


def _take(stack: contextlib.ExitStack, environment: Mapping[str, str], say: Say) -> BrokerUnderTest:
    if environment.get(_URL_VARIABLE):
        return _named_broker(environment[_URL_VARIABLE])
    tried = []
    for name, way in _ways(environment).items():
        try:
            return stack.enter_context(way(environment, say))
        except QuintainError as reason:
            tried.append(f"\n  {name}: {reason}")
    raise BrokerUnavailable(f"There is no RabbitMQ to test against. Tried:{''.join(tried)}\n{_MEND}")


def _ways(environment: Mapping[str, str]) -> Mapping[str, _Way]:
    ways: dict[str, _Way] = {"container": container, "server": _server}
    choice = environment.get(_CHOICE_VARIABLE)
    if not choice:
        return ways
    if choice not in ways:
        raise ConfigError(f"{_CHOICE_VARIABLE} is '{choice}'; it may be {' or '.join(sorted(ways))}")
    return {choice: ways[choice]}


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
