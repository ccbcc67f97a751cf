"""A worker reads a body from the content store: what it repeats, what it refuses, and what the call is charged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from quintain.config.targets import MockTarget
from quintain.contracts.contents import ContentPiece, ContentReference, GetContent, encode_piece
from quintain.contracts.limits import CONTENT_PIECE_BYTES
from quintain.errors import BadRequest, Expired, InternalFault, NoAnswer, Overloaded, Unroutable
from quintain.timings import DEFAULT_TIMINGS
from quintain_worker.delivery.contents import ContentReader
from quintain_worker.delivery.worker_target import WorkerTarget
from quintain_worker.providers.mock import MockProvider
from quintain_worker.providers.provider import CallHolder

TEXT = "x" * CONTENT_PIECE_BYTES
BODY = json.dumps({"question": TEXT}).encode()
HOLDER = CallHolder("s", "r1", "t1", "w1")


@dataclass
class ScriptedRpcClient:
    """Answers requests for pieces; ``errors`` are raised before the next requests are looked at."""

    body: bytes = BODY
    errors: list[Exception] = field(default_factory=list)
    requests: list[GetContent] = field(default_factory=list)

    async def call_route(self, _: object, request: GetContent, __: Mapping[str, object], **___: float) -> ContentPiece:
        self.requests.append(request)
        if self.errors:
            raise self.errors.pop(0)
        start = request.piece * CONTENT_PIECE_BYTES
        return ContentPiece(data=encode_piece(self.body[start : start + CONTENT_PIECE_BYTES]))


def reference_to(body: bytes) -> ContentReference:
    return ContentReference(sha256=hashlib.sha256(body).hexdigest(), size=len(body))


async def fetch(rpc_client: ScriptedRpcClient, reference: ContentReference, timeout_seconds: float = 30) -> Any:
    reader = ContentReader(rpc_client, DEFAULT_TIMINGS.scaled(0.01))  # type: ignore[arg-type]
    return await reader.fetch(
        reference, HOLDER, WorkerTarget(name="a", provider=MockProvider(MockTarget(provider="mock"))), timeout_seconds
    )


async def test_a_request_is_read_whole_by_its_attempt() -> None:
    rpc_client = ScriptedRpcClient()
    request = await fetch(rpc_client, reference_to(BODY))
    assert (request.question, request.target) == (TEXT, "a")
    assert sorted(sent.piece for sent in rpc_client.requests) == [0, 1]
    assert {(sent.session_id, sent.request_id, sent.attempt_id, sent.incarnation) for sent in rpc_client.requests} == {
        ("s", "r1", "t1", "w1")
    }


async def test_what_may_pass_is_repeated() -> None:
    # A metadata service of an earlier release answers with a defect.
    errors = [NoAnswer("nobody"), Unroutable("gone"), Overloaded("full"), InternalFault(charge_unknown=True)]
    rpc_client = ScriptedRpcClient(errors=list(errors))
    assert (await fetch(rpc_client, reference_to(BODY))).question == TEXT
    assert len(rpc_client.requests) == 2 + len(errors)


async def test_a_defect_is_not_repeated_for_ever() -> None:
    rpc_client = ScriptedRpcClient(errors=[InternalFault(charge_unknown=True) for _ in range(1000)])
    with pytest.raises(InternalFault):
        await fetch(rpc_client, reference_to(BODY))
    assert len(rpc_client.errors) > 900


@pytest.mark.parametrize(
    "make",
    [
        lambda: (ScriptedRpcClient(errors=[BadRequest("content: it is gone")]), reference_to(BODY)),
        lambda: (ScriptedRpcClient(body=BODY[:-1] + b"]"), reference_to(BODY)),
        lambda: (ScriptedRpcClient(body=BODY[:-1]), reference_to(BODY)),
        lambda: (ScriptedRpcClient(body=b"no request"), reference_to(b"no request")),
        lambda: (ScriptedRpcClient(body=b'{"question": "", "target": "b"}'), reference_to(b"{}")),
    ],
    ids=["gone", "another hash", "another size", "no JSON", "another body"],
)
async def test_what_cannot_be_a_request_is_refused(
    make: Callable[[], tuple[ScriptedRpcClient, ContentReference]],
) -> None:
    with pytest.raises(BadRequest) as refused:
        await fetch(*make())
    assert refused.value.charged is False


async def test_the_deadline_ends_the_reading() -> None:
    rpc_client = ScriptedRpcClient(errors=[NoAnswer("nobody") for _ in range(10_000)])
    with pytest.raises(Expired):
        await fetch(rpc_client, reference_to(BODY), timeout_seconds=0.05)
