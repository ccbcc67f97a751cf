"""A client in plain pika, after ``docs/protocol/README.md`` and its page of groups alone, against real services."""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
import time
import uuid
from collections.abc import Iterator

import pika
import pytest

from support.process_fleet import ADMIN_TOKEN, ProcessFleet, process_fleet
from support.quick import lease_variable
from support.raw_client import RawAmqpClient, text_of

GROUP = "application/vnd.quintain.group"


def encode(items: list[tuple[dict[str, object], bytes]]) -> bytes:
    """Each item: the lengths of its head and its body, the head, the body."""
    parts = []
    for head, body in items:
        encoded = json.dumps(head).encode()
        parts.append(struct.pack(">II", len(encoded), len(body)) + encoded + body)
    return b"".join(parts)


def decode(body: bytes) -> list[tuple[dict[str, object], bytes]]:
    """What `encode` was given."""
    items = []
    while body:
        head_length, body_length = struct.unpack(">II", body[:8])
        head, rest = body[8 : 8 + head_length], body[8 + head_length :]
        items.append((json.loads(head), rest[:body_length]))
        body = rest[body_length:]
    return items


class RawGroupClient(RawAmqpClient):
    """Sends groups, and reads groups of replies."""

    def __init__(self, broker_url: str, token: str) -> None:
        super().__init__(broker_url, token)
        self.reply_group_sizes: list[int] = []

    def call_group(self, questions: list[str], accept: str | None = None) -> list[tuple[str, dict[str, object]]]:
        """Call target ``parrot`` with all of them in one message; their replies in order."""
        ids = [uuid.uuid4().hex for _ in questions]
        deadline = int((time.time() + 60) * 1000)
        heads = [{"correlationId": one, "headers": {"x-quintain-deadline": deadline}} for one in ids]
        bodies = [json.dumps({"question": text}).encode() for text in questions]
        common: dict[str, object] = {"x-quintain-session": self._token, "x-quintain-protocol": 1}
        properties = pika.BasicProperties(
            reply_to=self.reply_key,
            correlation_id=uuid.uuid4().hex,
            type="invoke_group",
            content_type=GROUP,
            delivery_mode=2,
            message_id=uuid.uuid4().hex,
            expiration="60000",
            headers=common if accept is None else {**common, "x-quintain-accept": accept},
        )
        body = encode(list(zip(heads, bodies, strict=True)))
        self._channel.basic_publish("quintain.invoke", "parrot", body, properties, mandatory=True)
        self.wait(ids)
        return [self.replies[one][0] for one in ids]

    def _on_reply(self, channel: object, method: object, properties: pika.BasicProperties, body: bytes) -> None:
        if properties.content_type != GROUP:
            super()._on_reply(channel, method, properties, body)
            return
        assert properties.type == "reply_group"
        items = decode(body)
        self.reply_group_sizes.append(len(items))
        for head, reply in items:
            self.replies.setdefault(str(head["correlationId"]), []).append((str(head["type"]), json.loads(reply)))


CONFIG = """
targets:
  parrot: {provider: mock}
  sage: {provider: mock, response: "42", delay_ms: 5}
"""


@pytest.fixture(scope="module")
def fleet(broker_url: str) -> Iterator[ProcessFleet]:
    with process_fleet(broker_url, CONFIG, targets=["parrot", "sage"]) as fleet:
        fleet.extra_env |= lease_variable()
        first, *_ = [fleet.start("serve", "worker") for _ in range(2)]
        fleet.start_service("metadata")
        first.wait_for_output("ready  worker")
        yield fleet


@pytest.fixture
def raw_client(fleet: ProcessFleet) -> Iterator[RawAmqpClient]:
    stranger = RawAmqpClient(fleet.broker_url, fleet.open_session("parrot", 3).token)
    yield stranger
    stranger.close()


def test_a_named_target_replies_to_the_clients_own_queue(raw_client: RawAmqpClient) -> None:
    kind, reply = raw_client.call({"question": "Who?"}, key="sage")
    assert kind == "result"
    assert reply["output"] == [{"role": "assistant", "content": "42"}]
    assert (reply["target"], reply["callCount"], reply["maxCalls"], reply["attempts"]) == ("sage", 1, 3, 1)
    assert (reply["cached"], reply["replayed"]) == (False, False)
    assert reply["durationMs"] >= 5
    assert {"queuedMs", "tokenUsage"} <= reply.keys()


@pytest.mark.parametrize(
    ("body", "target", "text"),
    [
        ({"question": "echo me"}, "parrot", "echo me"),
        ({"question": "x", "target": "sage"}, "sage", "42"),
        ({"question": "x", "provider": "sage"}, "sage", "42"),
        ({"question": "x", "target": None, "unheardOf": [1]}, "parrot", "x"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "parrot", "hi"),
    ],
)
def test_without_a_routing_key_the_body_or_the_default_decides(
    raw_client: RawAmqpClient, body: dict[str, object], target: str, text: str
) -> None:
    kind, reply = raw_client.call(body)
    assert (kind, reply["target"], text_of(reply)) == ("result", target, text)


def test_the_operations_of_the_metadata_exchange(fleet: ProcessFleet, raw_client: RawAmqpClient) -> None:
    def operate(name: str, body: object, token: str | None = None) -> tuple[str, dict[str, object]]:
        headers: dict[str, object] = {} if token is None else {"x-quintain-session": token}
        return raw_client.call(body, key=name, exchange="quintain.metadata", kind=name, headers=headers)

    info = operate("info", {})[1]
    assert (info["targetName"], info["maxCalls"], info["state"]) == ("parrot", 3, "open")
    assert info["availableTargets"] == ["parrot", "sage"]
    assert isinstance(info["now"], int)
    assert operate("reserve", {"requestIds": ["a", "b"], "deadline": info["now"] + 60_000})[1] == {"granted": 2}
    too_many = operate("reserve", {"requestIds": ["c", "d"], "deadline": info["now"] + 60_000})[1]
    assert too_many["error"] == "Batch would exceed max calls (current: 2, batch: 2, limit: 3)"
    assert operate("release", {"requestIds": ["a", "b"]})[1] == {"released": 2}
    child = operate("open", {"defaultTarget": "sage", "maxCalls": 1})[1]
    assert child["parentId"] == info["sessionId"]
    assert operate("close", {}, str(child["token"]))[1]["state"] == "closed"
    opened = operate("open", {"defaultTarget": "sage"}, ADMIN_TOKEN)[1]
    assert operate("show", {"sessionId": opened["sessionId"]}, ADMIN_TOKEN)[1]["maxCalls"] == 50
    amended = operate("amend", {"sessionId": opened["sessionId"], "maxCalls": 7, "state": "closed"}, ADMIN_TOKEN)[1]
    assert (amended["maxCalls"], amended["state"]) == (7, "closed")
    assert operate("info", {}, str(opened["token"]))[1]["code"] == "unauthorized"
    listed = operate("list", {"state": "closed"}, ADMIN_TOKEN)[1]
    assert opened["sessionId"] in [one["sessionId"] for one in listed["sessions"]]  # type: ignore[attr-defined]
    for name, body in (("amend", {"sessionId": "x"}), ("list", {}), ("show", {"sessionId": "x"})):
        assert operate(name, body)[1]["code"] == "unauthorized"
    assert operate("open", b"{", ADMIN_TOKEN)[1]["code"] == "bad_request"


def test_a_proof_made_after_the_protocol_alone_is_accepted(fleet: ProcessFleet) -> None:
    token = fleet.open_session("parrot", 3).token
    session_id = token.split("_")[2]
    stranger = RawAmqpClient(fleet.broker_url, session_id)
    body, deadline = b'{"question": "x"}', int((time.time() + 60) * 1000)
    digest = hashlib.sha256(body).hexdigest()
    for key in ("sage", ""):
        lines = f"quintain call 1\n{session_id}\n{key}\n{digest}\n{deadline}\nid for {key}"
        proof = hmac.new(hashlib.sha256(token.encode()).digest(), lines.encode(), "sha256").hexdigest()
        headers = {"x-quintain-request-id": f"id for {key}", "x-quintain-deadline": deadline, "x-quintain-proof": proof}
        assert stranger.call(body, key=key, headers=headers)[0] == "result"
        kind, fault = stranger.call(body, key=key, headers={**headers, "x-quintain-request-id": "another"})
        assert (kind, fault["code"], fault["charged"]) == ("fault", "unauthorized", False)
    stranger.close()


@pytest.fixture
def group_client(fleet: ProcessFleet) -> Iterator[RawGroupClient]:
    stranger = RawGroupClient(fleet.broker_url, fleet.open_session("parrot", 70).token)
    yield stranger
    stranger.close()


def test_each_call_of_a_group_is_charged_and_answered_by_itself(group_client: RawGroupClient) -> None:
    texts = [f"question {number}" for number in range(64)]
    replies = group_client.call_group(texts, accept="group")
    assert [(kind, text_of(reply)) for kind, reply in replies] == [("result", text) for text in texts]
    assert sorted(reply["callCount"] for _, reply in replies) == list(range(1, 65))
    assert max(group_client.reply_group_sizes) > 1


def test_without_a_word_of_groups_every_reply_is_a_message_of_its_own(group_client: RawGroupClient) -> None:
    assert [text_of(reply) for _, reply in group_client.call_group(["x", "y"])] == ["x", "y"]
    assert group_client.reply_group_sizes == []
