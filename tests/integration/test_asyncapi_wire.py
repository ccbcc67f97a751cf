"""The AsyncAPI document beside what a real fleet says, and beside the specification's own schema."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import jsonschema_rs
import pika
import pytest

from quintain.routes import ROUTES
from quintain.settings import environment
from quintain.topology import CANCEL, EVENTS, INVOKE, LEDGER, METADATA, METADATA_TOPOLOGY, REPLY
from support.node import node_or_skip
from support.process_fleet import ADMIN_TOKEN, ProcessFleet, process_fleet
from support.quick import lease_variable
from support.raw_client import RawAmqpClient
from support.servers.errors import ServerUnavailable
from support.servers.nodejs import npm_package


@dataclass(frozen=True)
class TappedMessage:
    """One message as it was on the wire; ``headers`` has AMQP's own properties too. ``request_type``: what was asked
    under its correlation id."""

    exchange: str
    key: str
    amqp_type: str
    headers: dict[str, object]
    body: bytes
    request_type: str


class WireTap:
    """Listens from now on. Replies are heard under the keys it is told of: a direct exchange names nobody's."""

    def __init__(self, broker_url: str, targets: Sequence[str]) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(broker_url))
        self._channel = self._connection.channel()
        self._queue = f"tap-{secrets.token_hex(8)}"
        self._heard: list[TappedMessage] = []
        for exchange in METADATA_TOPOLOGY.exchanges:
            self._channel.exchange_declare(exchange.name, exchange.kind, durable=True, arguments=exchange.arguments)
        self._channel.queue_declare(self._queue, exclusive=True)
        for target in targets:  # and no wildcard: what nothing else takes is to stay unrouted
            self._channel.queue_bind(self._queue, INVOKE.name, target)
        self._channel.queue_bind(self._queue, CANCEL.name)
        self._channel.queue_bind(self._queue, EVENTS.name, "#")
        for route in ROUTES:
            if route.exchange in {METADATA, LEDGER}:
                self._channel.queue_bind(self._queue, route.exchange.name, route.key)

    def bind_reply_keys(self, *keys: str) -> None:
        """Hear the replies under these keys too, from now on."""
        for key in keys:
            self._channel.queue_bind(self._queue, REPLY.name, key)

    def bind_admit_keys(self, *keys: str) -> None:
        """Hear the admits that go to the queues of single metadata services, from now on."""
        for key in keys:
            self._channel.queue_bind(self._queue, LEDGER.name, key)

    def heard(self) -> list[TappedMessage]:
        """All that has come so far."""
        while True:
            method, properties, body = self._channel.basic_get(self._queue, auto_ack=True)
            if method is None or properties is None:
                break
            amqp_headers = {"reply_to": properties.reply_to, "correlation_id": properties.correlation_id}
            application_headers = {
                name: int(value) if isinstance(value, int) else value
                for name, value in (properties.headers or {}).items()
            }
            headers = {**application_headers, **{name: value for name, value in amqp_headers.items() if value}}
            self._heard.append(TappedMessage(method.exchange, method.routing_key, properties.type, headers, body, ""))
        # A copy of an answer may overtake that of its question, and come at an earlier look.
        asked = {one.headers["correlation_id"]: one.amqp_type for one in self._heard if "reply_to" in one.headers}
        return [replace(one, request_type=asked.get(one.headers.get("correlation_id"), "")) for one in self._heard]

    def close(self) -> None:
        """Listen no more; the queue goes with the connection."""
        self._connection.close()


TARGETS = ("sage", "lame", "slow")

SPECIFICATION = ("@asyncapi/specs", "6.11.1")

CONFIG = """
targets:
  sage: {provider: mock, response: "one two three", chunk_delay_ms: 20}
  lame: {provider: mock, fail_rate: 1, max_tries: 1}
  slow: {provider: mock, delay_ms: 60000}
"""


@pytest.fixture(scope="module")
def document(fleet: ProcessFleet) -> dict[str, object]:
    told: dict[str, object] = json.loads(fleet.quintain("schema", "asyncapi"))
    return told


@pytest.fixture(scope="module")
def fleet(broker_url: str) -> Iterator[ProcessFleet]:
    with process_fleet(broker_url, CONFIG, targets=TARGETS) as fleet:
        fleet.extra_env |= lease_variable()
        yield fleet


def test_the_specifications_own_schema_takes_the_document(document: dict[str, object]) -> None:
    node_or_skip(print)
    try:
        modules = npm_package(*SPECIFICATION, environment(), print)
    except ServerUnavailable as reason:
        pytest.skip(f"no AsyncAPI schema from npm: {reason}")
    schema = json.loads((modules / SPECIFICATION[0] / "schemas" / "3.0.0-without-$id.json").read_text())
    validator = jsonschema_rs.validator_for(schema)
    assert [f"{error.instance_path}: {error.message[:300]}" for error in validator.iter_errors(document)] == []
    assert not validator.is_valid({**document, "operations": {"invoke": {"action": "answer"}}})


def test_what_a_fleet_says_is_what_the_document_says(document: dict[str, object], fleet: ProcessFleet) -> None:
    tap = WireTap(fleet.broker_url, TARGETS)
    try:
        fleet.start_services("metadata", "worker")
        started = tap.heard()
        # The worker's own questions tell where it hears its answers.
        tap.bind_reply_keys(*{str(one.headers["reply_to"]) for one in started if "reply_to" in one.headers})
        bind_admit_keys(tap)
        exchange_all_messages(fleet, tap)
        heard = tap.heard()
    finally:
        tap.close()
    # Everything that is said between evaluators, workers and the metadata service.
    asked = {"invoke", *OPERATIONS, "register", "heartbeat", "admit"}
    spoken = {name_of(document, one) for one in heard}
    assert "fleet.changed" in spoken
    spoken -= {"fleet.changed", "target.changed", "worker.changed", "session.changed"}
    assert spoken == {
        *(f"{name}.ask" for name in (*asked, "settle")),
        *(f"{name}.result" for name in asked),
        *("fault", "chunk", "calls_taken_back"),
    }
    for one in heard:
        check(document, one)


def bind_admit_keys(tap: WireTap) -> None:
    """Hear the queue that the metadata service tells its workers of with their lease."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        heard = tap.heard()
        renewed = [
            json.loads(one.body) for one in heard if one.request_type == "heartbeat" and one.amqp_type == "result"
        ]
        keys = {str(lease["admitKey"]) for lease in renewed if "admitKey" in lease}
        if keys:
            tap.bind_admit_keys(*keys)
            return
        time.sleep(0.05)
    raise AssertionError("no heartbeat was answered with the key of a queue for admits")


def test_the_check_sees_what_is_wrong(document: dict[str, object]) -> None:
    good = TappedMessage(
        "quintain.reply", "", "chunk", {"correlation_id": "1"}, b'{"attempt": 1, "seq": 0, "delta": ""}', ""
    )
    check(document, good)
    for wrong in (
        TappedMessage(good.exchange, "", good.amqp_type, {}, good.body, ""),
        TappedMessage(good.exchange, "", good.amqp_type, good.headers, b'{"attempt": 1, "seq": "x"}', ""),
    ):
        with pytest.raises(jsonschema_rs.ValidationError):
            check(document, wrong)


OPERATIONS = (
    *("info", "open", "amend", "close", "reserve", "release", "cancel"),
    *("list", "show", "targets", "pause", "resume", "workers", "drain", "fleet"),
)


def exchange_all_messages(fleet: ProcessFleet, tap: WireTap) -> None:
    """Say everything that an administrator, an evaluator and a worker can say."""
    admin = RawAmqpClient(fleet.broker_url, ADMIN_TOKEN)
    tap.bind_reply_keys(admin.reply_key)

    def administer(operation: str, **body: object) -> dict[str, object]:
        return result_body(admin.call(body, key=operation, exchange="quintain.metadata", kind=operation))

    opened = administer("open", defaultTarget="sage", maxCalls=20)
    administer("amend", sessionId=opened["sessionId"], maxCalls=30)
    administer("show", sessionId=opened["sessionId"])
    administer("list")
    administer("targets")
    administer("pause", target="lame", forSeconds=60)
    administer("resume", target="lame")
    worker = {"workerId": "stranger", "incarnation": "stranger"}
    card = {**worker, "targets": [], "drain": "able", "protocol": 1}
    result_body(admin.call(card, key="register", exchange="quintain.ledger", kind="register"))
    administer("drain", workerId="stranger")
    result_body(admin.call(worker, key="heartbeat", exchange="quintain.ledger", kind="heartbeat"))
    administer("workers")
    administer("fleet")
    admin.close()

    evaluator = RawAmqpClient(fleet.broker_url, str(opened["token"]))
    tap.bind_reply_keys(evaluator.reply_key)

    def call(operation: str, **body: object) -> dict[str, object]:
        return result_body(evaluator.call(body, key=operation, exchange="quintain.metadata", kind=operation))

    assert evaluator.call({"question": "?"}, key="sage", headers={"x-quintain-accept": "chunk"})[0] == "chunk"
    assert evaluator.call({"question": "?"})[0] == "result"
    assert evaluator.call({"question": "?"}, key="lame")[0] == "fault"
    call("reserve", requestIds=["a", "b"], deadline=int((time.time() + 60) * 1000))
    call("release", requestIds=["a", "b"])
    slow = evaluator.publish({"question": "?"}, key="slow", headers={"x-quintain-request-id": "slow"})
    while call("info", usage=True)["running"] != 1:
        pass
    call("cancel", requestIds=["slow"])
    evaluator.wait([slow])
    call("close")
    evaluator.close()


def result_body(answer: tuple[str, dict[str, object]]) -> dict[str, object]:
    kind, body = answer
    assert kind == "result", body
    return body


def name_of(document: dict[str, object], one: TappedMessage) -> str:
    """Which message of the document this is: of an answer by what was asked."""
    if one.exchange == "quintain.cancel":
        return "calls_taken_back"
    if one.exchange == "quintain.events":
        return f"{one.amqp_type}.changed"
    if one.exchange == "quintain.reply":
        return f"{one.request_type}.result" if one.amqp_type == "result" else one.amqp_type
    return f"{one.amqp_type}.ask"


def check(document: dict[str, object], one: TappedMessage) -> None:
    """Raises `jsonschema_rs.ValidationError` where the document says otherwise."""
    components = document["components"]
    assert isinstance(components, dict)
    message = components["messages"][name_of(document, one)]
    assert message["bindings"]["amqp"]["messageType"] == one.amqp_type
    jsonschema_rs.validate(message["headers"], one.headers)
    jsonschema_rs.validate({**message["payload"], "components": components}, json.loads(one.body))
