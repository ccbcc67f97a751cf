"""What OpenRouter says that a generation cost, by its id, where nothing else does: over the wire that it speaks."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import SecretStr

from quintain.config.prices import Price
from quintain.contracts.headers import ACCEPT_CHUNKS, ACCEPT_HEADER
from quintain.contracts.ledger import AttemptOutcome, Settle
from quintain_worker.providers import model_api
from quintain_worker.providers.factory import build_provider
from quintain_worker.providers.provider import ProviderContext
from support.fake_ledger_service import FakeEvaluator, FakeLedgerService, next_item
from support.model_server import ModelServer, ReceivedRequest, ScriptedResponse, StreamedResponse
from support.model_streams import event
from support.model_wires import ANTHROPIC, CHAT, KEY, Wire
from support.running_worker import running_worker

Answer = ScriptedResponse | StreamedResponse

#: As OpenRouter names them.
ID = "gen-1776261029-NwGfHtvek98PEpj1M0fh"
HEADER = {"x-generation-id": ID}

CHUNK = event({"id": ID, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "Pa"}}]})
WITHOUT_USAGE = {"id": ID, "choices": [{"index": 0, "message": {"role": "assistant", "content": "Paris"}}]}

NOT_FOUND = ScriptedResponse(status=404, body={"error": {"code": 404, "message": f"Generation {ID} not found"}})

CUT = StreamedResponse(events=[CHUNK, CHUNK], then="reset")
STALLED = StreamedResponse(events=[CHUNK], then="stall")


def record(**fields: object) -> ScriptedResponse:
    return ScriptedResponse(body={"data": {"id": ID, "total_cost": 0.0015, "is_byok": False, **fields}})


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_api, "BILL_WAITS", (0.01, 0.01, 0.01))


async def settled(
    ledger: FakeLedgerService,
    evaluator: FakeEvaluator,
    server: ModelServer,
    answer: Answer,
    *records: ScriptedResponse,
    url: str = "http://openrouter.ai/api",
    wire: Wire = CHAT,
) -> tuple[Settle, list[ReceivedRequest]]:
    """How a try is settled that is answered so by a server in the place of `url`, and its questions for the bill.

    The wire adds ``/v1`` to the URL where its API has it there.
    """
    told = list(records)

    def respond(request: ReceivedRequest) -> Answer:
        return answer if request.method == "POST" else told.pop(0) if told else NOT_FOUND

    server.response_for = respond
    target = wire.target(url, api_key=SecretStr(KEY), model="m", idle_seconds=0.5 if answer is STALLED else None)
    provider = build_provider("a", target, ProviderContext(Path.cwd(), {"HTTP_PROXY": server.url}))
    found = Price(input_per_million=Decimal(1), output_per_million=Decimal(2), failed_tries="free")
    async with running_worker(ledger, provider, price=found):
        await evaluator.send_request(headers={ACCEPT_HEADER: ACCEPT_CHUNKS})
        settle = await next_item(ledger.settles)
    return settle, [request for request in server.requests if request.method == "GET"]


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (CUT, AttemptOutcome.IN_DOUBT),
        (STALLED, AttemptOutcome.IN_DOUBT),
        (ScriptedResponse(headers=HEADER, body=WITHOUT_USAGE, close_after=200), AttemptOutcome.IN_DOUBT),
        (ScriptedResponse(headers=HEADER, body=b"{oops"), AttemptOutcome.IN_DOUBT),
        (ScriptedResponse(body={"id": ID, "choices": []}), AttemptOutcome.IN_DOUBT),
        (ScriptedResponse(body=WITHOUT_USAGE), AttemptOutcome.RESULT),
    ],
    ids=["cut", "stalled", "body cut", "unreadable", "no choices", "no usage"],
)
async def test_a_generation_of_unknown_bill_is_asked_about_until_its_record_is_there(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, server: ModelServer, answer: Answer, outcome: AttemptOutcome
) -> None:
    settle, asked = await settled(ledger, evaluator, server, answer, NOT_FOUND, ScriptedResponse(status=502), record())
    assert (settle.outcome, settle.cost) == (outcome, 1_500_000_000)
    assert [request.path for request in asked] == [f"http://openrouter.ai/api/v1/generation?id={ID}"] * 3
    assert {request.headers["authorization"] for request in asked} == {f"Bearer {KEY}"}


@pytest.mark.parametrize(
    "told",
    [
        NOT_FOUND,
        record(total_cost=None),
        record(total_cost=-1),
        record(total_cost=True),
        ScriptedResponse(body=b'{"data": {"total_cost": 1' + b"0" * 400 + b"}}"),
        record(is_byok=True),
        ScriptedResponse(body=[1]),
        ScriptedResponse(body=b"{"),
        ScriptedResponse(body=b'{"data": {"total_cost": NaN}}'),
        ScriptedResponse(body=None, close_after=10),
    ],
)
async def test_what_is_never_told_stays_unknown(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, server: ModelServer, told: ScriptedResponse
) -> None:
    settle, asked = await settled(ledger, evaluator, server, CUT, told, told, told)
    assert settle.cost is None
    # The library itself asks again where a kept connection is closed.
    assert 1 <= len(asked) <= 6


@pytest.mark.parametrize(
    ("answer", "url"),
    [
        (StreamedResponse(events=[CHUNK], then="reset"), "http://openrouter.ai.example/api"),
        (StreamedResponse(events=[], then="reset"), "http://openrouter.ai/api"),
        (ScriptedResponse(body={key: WITHOUT_USAGE[key] for key in ("choices",)}), "http://openrouter.ai/api"),
        (ScriptedResponse(body={**WITHOUT_USAGE, "id": "gen-\ud800"}), "http://openrouter.ai/api"),
        (ScriptedResponse(body={**WITHOUT_USAGE, "id": "g" * 201}), "http://openrouter.ai/api"),
        (ScriptedResponse(headers={"x-generation-id": "gén"}, body=WITHOUT_USAGE), "http://openrouter.ai/api"),
        (ScriptedResponse(body=CHAT.answer("Paris")), "http://openrouter.ai/api"),
        (ScriptedResponse(status=500, headers=HEADER, body={"error": {"message": "no"}}), "http://openrouter.ai/api"),
        (ScriptedResponse(status=429, headers=HEADER, body={"error": {"message": "no"}}), "http://openrouter.ai/api"),
    ],
    ids=[
        *("another vendor", "no chunk", "no id", "half a character", "too long an id", "another encoding"),
        *("with its usage", "a failure that is free", "throttled"),
    ],
)
async def test_nothing_is_asked_without_an_id_or_where_the_bill_is_known(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, server: ModelServer, answer: Answer, url: str
) -> None:
    _, asked = await settled(ledger, evaluator, server, answer, record(), url=url)
    assert asked == []


async def test_anthropics_api_has_the_records_beside_it(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, server: ModelServer
) -> None:
    body = json.dumps({**ANTHROPIC.answer("Paris"), "id": ID, "usage": None}).encode()
    answer, url = ScriptedResponse(body=body), "http://openrouter.ai/api"
    settle, asked = await settled(ledger, evaluator, server, answer, record(), url=url, wire=ANTHROPIC)
    assert settle.cost == 1_500_000_000
    assert [request.path for request in asked] == [f"http://openrouter.ai/api/v1/generation?id={ID}"]
