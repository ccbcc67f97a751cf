"""Groups sent by plain pika, after ``docs/protocol/groups.md``, against services started as a user starts them."""

from __future__ import annotations

import json
import struct
import time
import uuid
from collections.abc import Iterator

import pika
import pytest

from support.process_fleet import ProcessFleet, process_fleet
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

    def publish_group(
        self,
        bodies: list[bytes],
        *,
        key: str,
        request_ids: list[str] | None = None,
        seconds: float = 60,
        accept: str | None = "group",
        body: bytes | None = None,
        headers: dict[str, object] | None = None,
    ) -> tuple[str, list[str]]:
        """The correlation ids of the group and of its calls."""
        ids = [uuid.uuid4().hex for _ in bodies]
        names = request_ids or ids
        deadline = int((time.time() + seconds) * 1000)
        items: list[tuple[dict[str, object], bytes]] = [
            (
                {
                    "correlationId": one,
                    "headers": {"x-quintain-request-id": name, "x-quintain-deadline": deadline},
                },
                content,
            )
            for one, name, content in zip(ids, names, bodies, strict=True)
        ]
        group_id = uuid.uuid4().hex
        common: dict[str, object] = {"x-quintain-session": self._token, "x-quintain-protocol": 1}
        if accept is not None:
            common["x-quintain-accept"] = accept
        self._channel.basic_publish(
            "quintain.invoke",
            key,
            encode(items) if body is None else body,
            pika.BasicProperties(
                reply_to=self.reply_key,
                correlation_id=group_id,
                type="invoke_group",
                content_type=GROUP,
                delivery_mode=2,
                message_id=uuid.uuid4().hex,
                expiration=str(int(seconds * 1000)),
                headers={**common, **(headers or {})},
            ),
            mandatory=True,
        )
        return group_id, ids

    def call_group(self, bodies: list[bytes], *, key: str, **options: object) -> list[tuple[str, dict[str, object]]]:
        _, ids = self.publish_group(bodies, key=key, **options)  # type: ignore[arg-type]
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
"""


@pytest.fixture(scope="module")
def fleet(broker_url: str) -> Iterator[ProcessFleet]:
    with process_fleet(broker_url, CONFIG, targets=["parrot"]) as fleet:
        fleet.extra_env |= lease_variable()
        worker = fleet.start("serve", "worker")
        fleet.start_service("metadata")
        worker.wait_for_output("ready  worker")
        yield fleet


@pytest.fixture
def token(fleet: ProcessFleet) -> str:
    return fleet.open_session("parrot", 70).token


@pytest.fixture
def raw_client(fleet: ProcessFleet, token: str) -> Iterator[RawGroupClient]:
    stranger = RawGroupClient(fleet.broker_url, token)
    yield stranger
    stranger.close()


def questions(*texts: str) -> list[bytes]:
    return [json.dumps({"question": text}).encode() for text in texts]


def test_each_call_is_charged_and_answered_by_itself(raw_client: RawGroupClient) -> None:
    texts = [f"question {number}" for number in range(64)]
    replies = raw_client.call_group(questions(*texts), key="parrot")
    assert [(kind, text_of(reply)) for kind, reply in replies] == [("result", text) for text in texts]
    assert sorted(reply["callCount"] for _, reply in replies) == list(range(1, 65))  # type: ignore[type-var]
    assert max(raw_client.reply_group_sizes) > 1


def test_without_a_word_of_groups_every_reply_is_a_message_of_its_own(raw_client: RawGroupClient) -> None:
    replies = raw_client.call_group(questions("x", "y"), key="parrot", accept=None)
    assert [text_of(reply) for _, reply in replies] == ["x", "y"]
    assert raw_client.reply_group_sizes == []
