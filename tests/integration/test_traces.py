"""Traces as a collector gets them: real processes on a real broker, spans over OTLP/HTTP."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from quintain.contracts.credentials import public_id
from support.command_line import command_line
from support.evaluations import write_files
from support.otlp_receiver import OtlpReceiver, ReceivedSpan, format_tree, otlp_receiver
from support.process_fleet import ADMIN_TOKEN, ProcessFleet, process_fleet
from support.raw_client import RawAmqpClient

CONFIG = """
targets:
  sage: {provider: mock, response: "a secret answer", token_usage: {input: 7, output: 3}}
  lame: {provider: mock, fail_rate: 1, max_tries: 2}
"""

DOCS = Path(__file__).parents[2] / "docs"

#: A trace of somebody else's.
THEIRS = f"00-{'ab' * 16}-{'cd' * 8}-01"

#: A grader that asks its session's default target: as a program, and as a function.
ASKS = """
import quintain
with quintain.sync.connect() as session:
    session.invoke("a program's")
print('{"pass": true}')
"""
FUNCTION = """
import quintain
@quintain.grader
def asks(session):
    session.invoke("a function's")
    return True
"""

CALLED = "process quintain.invoke:sage:quintain.target.sage"

QUESTION = "a secret question"

CALL = """\
send quintain.invoke:sage  (quintain-command, producer)
  process quintain.invoke:sage:quintain.target.sage  (quintain-worker, consumer)
    queue wait  (quintain-worker, internal)
    admit  (quintain-worker, client)
      ledger admit  (quintain-metadata, server)
    chat sage  (quintain-worker, client)
    settle  (quintain-worker, producer)
      ledger settle  (quintain-metadata, consumer)
    send quintain.reply  (quintain-worker, producer)"""


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def fleet(broker_url: str, receiver: OtlpReceiver) -> Iterator[ProcessFleet]:
    with process_fleet(broker_url, CONFIG, targets=["sage", "lame"]) as fleet:
        fleet.extra_env.update(receiver.env)
        fleet.start_services("metadata", "worker")
        yield fleet


@pytest.fixture(scope="module")
def token(fleet: ProcessFleet) -> str:
    """A session's, opened as a stranger would."""
    admin = RawAmqpClient(fleet.broker_url, ADMIN_TOKEN)
    _, opened = admin.call({"defaultTarget": "sage"}, key="open", exchange="quintain.metadata", kind="open")
    admin.close()
    return str(opened["token"])


@pytest.fixture
def raw_client(fleet: ProcessFleet, token: str) -> Iterator[RawAmqpClient]:
    stranger = RawAmqpClient(fleet.broker_url, token)
    yield stranger
    stranger.close()


def new_spans(receiver: OtlpReceiver, before: int, *last: str) -> list[ReceivedSpan]:
    """What has arrived since, once spans of these names are among it."""

    def has_arrived(spans: list[ReceivedSpan]) -> bool:
        return set(last) <= {span.name for span in spans[before:]}

    return receiver.wait_for(has_arrived)[before:]


def span_named(spans: list[ReceivedSpan], name: str) -> ReceivedSpan:
    [found] = [span for span in spans if span.name == name]
    return found


def test_a_call_is_one_trace_from_the_evaluator_to_its_settle(
    fleet: ProcessFleet, token: str, receiver: OtlpReceiver
) -> None:
    before = len(receiver.spans)
    fleet.quintain("invoke", QUESTION, "--target", "sage", env={"QUINTAIN_SESSION_TOKEN": token})
    spans = new_spans(receiver, before, "ledger settle", "send quintain.reply", "send quintain.invoke:sage")
    assert format_tree(spans) == CALL
    assert CALL in (DOCS / "operate.md").read_text()
    assert len({span.trace_id for span in spans}) == 1

    call, chat = span_named(spans, CALLED), span_named(spans, "chat sage")
    assert call.attributes["quintain.session.id"] == public_id(token)
    assert (
        call.attributes["quintain.request.id"] == span_named(spans, "ledger settle").attributes["quintain.request.id"]
    )
    assert (call.attributes["messaging.system"], call.attributes["messaging.operation.type"]) == ("rabbitmq", "process")
    assert span_named(spans, "admit").attributes["quintain.outcome"] == "granted"
    assert span_named(spans, "settle").attributes["quintain.outcome"] == "result"
    assert chat.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "mock",
        "gen_ai.response.model": "mock",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "quintain.target": "sage",
    }
    wait = span_named(spans, "queue wait")
    assert wait.starts_ns <= wait.ends_ns
    # Neither what was asked, nor what was answered, nor what opens the session.
    for secret in (QUESTION, "a secret answer", token):
        assert secret.encode() not in receiver.raw


def test_every_try_at_a_provider_is_a_span_that_says_how_it_failed(
    raw_client: RawAmqpClient, receiver: OtlpReceiver
) -> None:
    before = len(receiver.spans)
    assert raw_client.call({"question": QUESTION}, key="lame", headers={"traceparent": THEIRS})[0] == "fault"
    spans = new_spans(receiver, before, "ledger settle", "send quintain.reply", "chat lame")
    tries = [span for span in spans if span.name == "chat lame"]
    assert [(span.failed, span.attributes["error.type"]) for span in tries] == [(True, "provider_error")] * 2
    assert [span.attributes["quintain.billing"] for span in tries] == ["billed"] * 2
    assert not span_named(spans, "process quintain.invoke:lame:quintain.target.lame").failed


def test_a_call_for_the_default_target_is_routed_within_its_trace(
    raw_client: RawAmqpClient, receiver: OtlpReceiver
) -> None:
    before = len(receiver.spans)
    assert raw_client.call({"question": QUESTION}, headers={"traceparent": THEIRS})[0] == "result"
    routing = "process quintain.unrouted:quintain.metadata.unrouted"
    spans = new_spans(receiver, before, "ledger settle", "send quintain.reply", routing)
    call = span_named(spans, CALLED)
    assert [span_named(spans, routing).parent_id, call.parent_id] == ["cd" * 8] * 2
    assert {span.trace_id for span in spans} == {"ab" * 16}


def test_a_gateway_takes_its_clients_trace_and_passes_it_on(
    fleet: ProcessFleet, token: str, receiver: OtlpReceiver
) -> None:
    gateway = fleet.start("serve", "gateway", "--port", "0")
    gateway.wait_for_output("ready  gateway")
    found = re.search(r"url (\S+)", gateway.read_output())
    assert found is not None
    before = len(receiver.spans)
    answer = httpx2.post(
        f"{found[1]}/v1/chat/completions",
        json={"model": "sage", "messages": [{"role": "user", "content": QUESTION}]},
        headers={"Authorization": f"Bearer {token}", "traceparent": THEIRS},
    )
    assert answer.status_code == 200
    spans = new_spans(receiver, before, "ledger settle", "send quintain.reply", "POST /v1/chat/completions")
    assert {span.trace_id for span in spans} == {"ab" * 16}
    visit = span_named(spans, "POST /v1/chat/completions")
    assert (visit.kind, visit.parent_id, visit.attributes["http.response.status_code"]) == ("server", "cd" * 8, 200)
    assert span_named(spans, "send quintain.invoke:sage").parent_id == visit.span_id
    assert gateway.stop() == 0


def test_a_run_is_a_span_and_each_of_its_trials_a_trace_linked_to_it_with_what_its_graders_ask(
    tmp_path: Path, receiver: OtlpReceiver
) -> None:
    program = json.dumps([sys.executable, "asks.py"])
    graders = f"[{{name: own, command: {program}}}, {{name: kept, function: 'looks:asks'}}]"
    write_files(
        tmp_path,
        cases=2,
        eval_yaml=f"dataset: cases.jsonl\ntargets: [echo]\ngraders: {graders}\n",
        quintain_yaml="targets: {echo: {provider: mock}}\n",
        asks_py=ASKS,
        looks_py=FUNCTION,
    )
    before = len(receiver.spans)
    with command_line(tmp_path, {**receiver.env, "QUINTAIN_TRACE_CONTENT": "true"}) as shell:
        shell.run("run", "eval.yaml", "--json")
    spans = new_spans(receiver, before, "run eval", "ledger settle")
    run = span_named(spans, "run eval")
    trials = [span for span in spans if span.name == "trial echo"]
    assert [trial.links for trial in trials] == [(run.span_id,)] * 2
    assert len({run.trace_id, *(trial.trace_id for trial in trials)}) == 3
    assert {trial.attributes["quintain.case.id"] for trial in trials} == {"case-1", "case-2"}
    assert {trial.attributes["quintain.run.id"] for trial in trials} == {run.attributes["quintain.session.id"]}
    asked = [(span.trace_id, span.parent_id) for span in spans if span.name == "POST /invoke" and span.kind == "server"]
    assert sorted(asked) == sorted([(trial.trace_id, trial.span_id) for trial in trials] * 2)
    # Here somebody asked for the content.
    chats = [span.attributes for span in spans if span.name == "chat echo"]
    said = {json.loads(str(chat["gen_ai.input.messages"]))[0]["parts"][0]["content"] for chat in chats}
    answered = {json.loads(str(chat["gen_ai.output.messages"]))[0]["parts"][0]["content"] for chat in chats}
    assert said == answered == {"q1", "q2", "a program's", "a function's"}
