"""Which broker the tests take, tried with real brokers; and that ours leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pika
import pytest

from quintain.errors import BrokerUnavailable, ConfigError
from quintain.settings import environment
from quintain.testing.broker import BrokerUnderTest, find_broker
from quintain.testing.handshake import address_of, read_version
from quintain.testing.rabbitmq_container import IMAGE
from quintain.testing.rabbitmq_server import find_server, services_held_back

#: Starts a broker as any program would, says where it is, and waits to be ended.
STARTER = """
import signal, time
from quintain.settings import environment
from quintain.testing.broker import find_broker
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
with find_broker(environment(), print) as broker:
    print(broker.url, broker.admin.rabbitmqctl("eval", 'os:getenv("RABBITMQ_MNESIA_BASE").'), flush=True)
    time.sleep(600)
"""

#: What protocol.md §1 asks of a target's queue; 3.10 refuses the strategy without the flag stream_queue.
TARGET_QUEUE_ARGUMENTS = {
    "x-queue-type": "quorum",
    "x-delivery-limit": 100,
    "x-message-ttl": 86_400_000,
    "x-max-length": 100_000,
    "x-overflow": "reject-publish",
    "x-dead-letter-exchange": "quintain.test.dead",
    "x-dead-letter-strategy": "at-least-once",
}


#: Only where there is neither a server nor the right to install one: there Docker serves the other tests.
needs_server = pytest.mark.skipif(
    find_server(environment()) is None and os.geteuid() != 0,
    reason="no rabbitmq-server here, and only root may install one: apt-get install -y rabbitmq-server",
)


@pytest.fixture(scope="module")
def own_node() -> Iterator[BrokerUnderTest]:
    """A private node, whatever else this machine offers."""
    with find_broker(only("server"), print) as node:
        yield node


def only(choice: str, **more: str) -> Mapping[str, str]:
    return environment() | {"QUINTAIN_TEST_BROKER_URL": "", "QUINTAIN_TEST_BROKER": choice} | more


def answers(url: str) -> bool:
    try:
        read_version(address_of(url))
    except OSError:
        return False
    return True


def processes_of(folder: Path) -> list[str]:
    """The commands of all processes that have the folder's path in their arguments or their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in told:
            found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def wait_until_gone(url: str, folder: Path) -> None:
    """Returns when there is no listener, folder or process left; the test's own timeout bounds it."""
    while answers(url) or folder.exists() or processes_of(folder):
        time.sleep(0.1)


def declare_target_queue(url: str, name: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True, arguments=TARGET_QUEUE_ARGUMENTS)
        channel.confirm_delivery()
        channel.basic_publish("", name, b"hello", mandatory=True)
        _, _, body = channel.basic_get(name, auto_ack=True)
        channel.queue_delete(name)
    assert body == b"hello"


def test_the_shared_broker_holds_a_queue_as_the_protocol_has_it(broker: BrokerUnderTest) -> None:
    declare_target_queue(broker.url, "quintain.test.shared")


@needs_server
def test_a_named_broker_is_taken_before_all_others_and_is_not_ours_to_stop(own_node: BrokerUnderTest) -> None:
    said: list[str] = []
    named = only("container", QUINTAIN_TEST_BROKER_URL=own_node.url)
    with find_broker(named, said.append) as taken:
        assert (taken.url, taken.admin) == (own_node.url, None)
    assert answers(own_node.url)
    version = read_version(address_of(own_node.url))
    assert said == [f"broker: RabbitMQ {version} at {address_of(own_node.url)}, named by QUINTAIN_TEST_BROKER_URL"]


def test_a_named_broker_that_does_not_answer_is_an_error_and_no_other_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: every connection to it is refused
        port = taken.getsockname()[1]
        named = only("", QUINTAIN_TEST_BROKER_URL=f"amqp://guest:hidden@127.0.0.1:{port}/")
        with pytest.raises(BrokerUnavailable) as raised, find_broker(named, print):
            pass
    assert f"QUINTAIN_TEST_BROKER_URL names a broker at 127.0.0.1:{port}" in str(raised.value)
    assert "unset the variable" in str(raised.value)
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:5672/", "amqp://guest:hid#den@127.0.0.1:5672/"])
def test_a_named_broker_whose_url_is_none_is_an_error_without_the_password(url: str) -> None:
    with (
        pytest.raises(ConfigError, match="QUINTAIN_TEST_BROKER_URL cannot be used") as raised,
        find_broker(only("", QUINTAIN_TEST_BROKER_URL=url), print),
    ):
        pass
    assert "hid" not in str(raised.value)


def test_a_choice_that_nobody_knows_is_an_error_that_names_the_known_ones() -> None:
    with (
        pytest.raises(ConfigError, match="'podman'; it may be container or server"),
        find_broker(only("podman"), print),
    ):
        pass


def test_without_a_docker_engine_a_forced_container_says_what_was_tried_and_what_to_do() -> None:
    nowhere = only("container", DOCKER_HOST="unix:///nowhere/docker.sock")
    with pytest.raises(BrokerUnavailable) as raised, find_broker(nowhere, print):
        pass
    assert "container: `docker version" in str(raised.value)
    assert "server:" not in str(raised.value)
    assert "Start a RabbitMQ and name it" in str(raised.value)


@needs_server
def test_without_a_docker_engine_the_machines_own_server_is_taken() -> None:
    said: list[str] = []
    nowhere = only("", DOCKER_HOST="unix:///nowhere/docker.sock")
    with find_broker(nowhere, said.append) as taken:
        declare_target_queue(taken.url, "quintain.test.own")
    assert "a private node of" in said[-1]


def test_the_wrapper_of_a_package_is_not_taken_for_the_server(tmp_path: Path) -> None:
    path, packaged = tmp_path / "sbin", tmp_path / "lib" / "bin"
    for folder in (path, packaged):
        folder.mkdir(parents=True)
    for name in ("rabbitmq-env", "rabbitmq-script-wrapper"):
        (packaged / name).touch()
    (path / "rabbitmq-server").symlink_to(packaged / "rabbitmq-script-wrapper")
    assert find_server({"PATH": str(path)}, [str(packaged)]) is None
    (packaged / "rabbitmq-server").touch()
    assert find_server({"PATH": str(path)}, [str(packaged)]) == packaged / "rabbitmq-server"


def test_while_a_server_is_installed_the_machine_starts_no_service_and_afterwards_it_may(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    with services_held_back(policy):
        refusal = subprocess.run([policy, "rabbitmq-server", "start"], check=False)
    assert refusal.returncode == 101  # Debian's word for: forbidden by policy
    assert not policy.exists()


def test_an_operators_own_policy_is_left_as_it_is(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("theirs")
    with services_held_back(policy):
        pass
    assert policy.read_text() == "theirs"


@needs_server
def test_a_private_node_listens_on_the_loopback_alone(own_node: BrokerUnderTest) -> None:
    assert own_node.admin is not None
    listeners = own_node.admin.rabbitmqctl(
        "eval", "[L || {listener,_,_,_,L,_,_} <- rabbit_networking:active_listeners()]."
    )
    assert listeners.replace(" ", "") == "[{127,0,0,1},{127,0,0,1}]"


@needs_server
def test_a_private_node_stopped_and_started_answers_at_the_same_address(own_node: BrokerUnderTest) -> None:
    assert own_node.admin is not None
    own_node.admin.stop_app()
    assert not answers(own_node.url)
    own_node.admin.start_app()
    declare_target_queue(own_node.url, "quintain.test.again")


@needs_server
def test_a_tool_that_fails_says_why(own_node: BrokerUnderTest) -> None:
    assert own_node.admin is not None
    with pytest.raises(BrokerUnavailable, match="no_such_command"):
        own_node.admin.rabbitmqctl("no_such_command")


@needs_server
# SIGTERM, which Python leaves to the kernel, ends a process as SIGKILL does.
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_private_node_ends_with_its_starter_however_that_ends(how: signal.Signals) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER],
        env={**only("server"), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert starter.stdout is not None
    with starter:
        url, data = next(line for line in starter.stdout if line.startswith("amqp://")).split()
        folder = Path(data.strip('"')).parent
        assert processes_of(folder)
        starter.send_signal(how)
    wait_until_gone(url, folder)


@pytest.mark.docker
@pytest.mark.timeout(600)
def test_where_docker_answers_a_container_is_taken_and_removed() -> None:
    said: list[str] = []
    with find_broker(only(""), said.append) as taken:
        assert f"a container of {IMAGE}" in said[-1]
        declare_target_queue(taken.url, "quintain.test.container")
        assert taken.admin is not None
        taken.admin.stop_app()
        assert not answers(taken.url)
        taken.admin.start_app()
        declare_target_queue(taken.url, "quintain.test.container")
    assert not answers(taken.url)
