"""Spans without anybody who records them, with somebody, and the context of strangers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from quintain.contracts.agents import AgentStep
from quintain.contracts.invoke import InvokeRequest, InvokeSettings, TokenUsage
from quintain.contracts.ledger import TargetCard
from quintain.errors import BudgetExhausted, ConfigError
from quintain.observe import semconv, spans
from quintain.observe.semconv import ERROR_TYPE, SpanStart, publish_span
from quintain.observe.spans import (
    context_headers,
    current_trace_id,
    current_traceparent,
    record_finished_span,
    span,
    span_in_trace,
    valid_traceparent,
)
from quintain.settings import read_trace_settings
from quintain_worker.attempt import ask_provider
from quintain_worker.providers.provider import CallHolder, ProviderAnswer
from quintain_worker.target import WorkerMetrics, WorkerTarget

THEIRS = f"00-{'ab' * 16}-{'cd' * 8}-01"
WORK = SpanStart("work")


@pytest.fixture
def recorded_spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What a program that set up OpenTelemetry would record."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(spans, "_provider", lambda: provider)
    yield exporter
    provider.shutdown()


def test_where_nobody_records_what_came_is_passed_on_as_it_is() -> None:
    assert current_traceparent() is None
    assert context_headers() == {}
    with span(WORK, parent=THEIRS) as one:
        assert not one.is_recording
        one.set_attributes({"anything": 1})
        one.set_error("whatever")
        one.rename("other")
        with span(WORK), span_in_trace(WORK, "nonsense"):
            assert context_headers() == {"traceparent": THEIRS}
            assert current_trace_id() == "ab" * 16
        record_finished_span(WORK, duration_seconds=1)
    assert current_traceparent() is None


def test_without_the_library_everything_works_as_where_nobody_records() -> None:
    # Another process, in which it cannot be imported.
    program = f"""
import sys
sys.modules["opentelemetry"] = None
import quintain
from quintain.settings import TraceSettings
from quintain.observe import export
from quintain.observe import spans
from quintain.observe.semconv import SpanStart
asked = TraceSettings(export=True)
with export.export_spans("test", asked), spans.span(SpanStart("work"), parent={THEIRS!r}, new_trace=True) as one:
    one.set_attributes({{"a": 1}})
    spans.record_finished_span(SpanStart("before"), duration_seconds=1.0)
    print(spans.current_traceparent(), one.is_recording)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (said.stdout, said.stderr) == (f"{THEIRS} False\n", "")


def test_a_program_may_set_up_its_tracing_when_spans_were_begun_already() -> None:
    # Another process: in one it can be set up once.
    program = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from quintain.observe import spans
from quintain.observe.semconv import SpanStart
def nobody_makes_it():
    raise AssertionError
with spans.span(nobody_makes_it) as before:
    assert not before.is_recording
trace.set_tracer_provider(TracerProvider(shutdown_on_exit=False))
for _ in range(2):
    with spans.span(lambda: SpanStart("work")) as after:
        print(after.is_recording, after._span.name)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (said.stdout, said.stderr) == ("True work\n" * 2, "")


def test_a_span_belongs_to_what_came_and_what_is_inside_to_it(recorded_spans: InMemorySpanExporter) -> None:
    with span(WORK, parent=THEIRS), span(SpanStart("inside")) as inside:
        assert inside.is_recording
        here = current_traceparent()
    with span_in_trace(WORK, None):
        assert current_traceparent() is None
    spans = {one.name: one for one in recorded_spans.get_finished_spans()}
    assert len(recorded_spans.get_finished_spans()) == 2
    assert (spans["work"].parent.span_id, spans["work"].context.trace_id) == (int("cd" * 8, 16), int("ab" * 16, 16))
    assert here == f"00-{'ab' * 16}-{spans['inside'].context.span_id:016x}-01"


def test_apart_is_a_trace_of_its_own_with_a_link(recorded_spans: InMemorySpanExporter) -> None:
    with span(WORK), span(SpanStart("trial"), new_trace=True):
        pass
    trial, work = recorded_spans.get_finished_spans()
    assert trial.parent is None
    assert trial.context.trace_id != work.context.trace_id
    assert [link.context.span_id for link in trial.links] == [work.context.span_id]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (BudgetExhausted("a model's words"), "budget_exhausted"),
        (ValueError("a model's words"), "ValueError"),
        (asyncio.CancelledError(), "cancelled"),
    ],
)
def test_an_error_is_told_by_its_kind_and_never_by_its_words(
    recorded_spans: InMemorySpanExporter, error: BaseException, told: str
) -> None:
    with pytest.raises(type(error)), span(WORK):
        raise error
    [one] = recorded_spans.get_finished_spans()
    assert one.attributes == {ERROR_TYPE: told}
    assert one.status.status_code is trace.StatusCode.ERROR
    assert "words" not in one.to_json()


class _Agent:
    """A provider whose answer tells these steps."""

    def __init__(self, *steps: AgentStep) -> None:
        self._steps = steps

    async def answer(self, request: object, **_: object) -> ProviderAnswer:
        await asyncio.sleep(0.05)
        return ProviderAnswer(text="done", steps=self._steps)

    async def close(self) -> None: ...


async def test_a_tool_that_ran_in_a_call_is_a_span_in_it_where_its_time_is_known(
    recorded_spans: InMemorySpanExporter,
) -> None:
    def tool(**fields: Any) -> AgentStep:
        return AgentStep(operation="execute_tool", tool="search", arguments="secret", result="secret", **fields)

    untold = [tool(), tool(start_ms=1.0, duration_ms=1e9), tool(start_ms=-5.0, duration_ms=1.0)]
    known = tool(start_ms=10.0, duration_ms=20.0, error_type="half \ud83d", tool_call_id="c1")
    agent = _Agent(known, *untold, AgentStep(operation="chat", start_ms=1.0, duration_ms=2.0))
    card = TargetCard(name="bot", provider="agent", max_concurrency=1)
    target = WorkerTarget(name="bot", provider=agent, card=card)
    await ask_provider(target, CallHolder("s", "r", "a", "w"), WorkerMetrics(), InvokeRequest(question="q"), 5)
    ran, call = recorded_spans.get_finished_spans()
    assert (ran.name, call.name) == ("execute_tool search", "invoke_agent bot")
    assert ran.parent.span_id == call.context.span_id
    assert None not in {ran.start_time, ran.end_time, call.start_time, call.end_time}
    assert abs(ran.end_time - ran.start_time - 20_000_000) < 10
    assert call.start_time < ran.start_time < ran.end_time < call.end_time
    assert (ran.attributes["gen_ai.tool.call.id"], ran.attributes[ERROR_TYPE]) == ("c1", "half \ufffd")
    assert "secret" not in ran.to_json()


@given(st.one_of(st.text(max_size=80), st.binary(max_size=80), st.integers(), st.none()))
def test_no_header_is_more_than_a_context_or_nothing(header: object) -> None:
    assert valid_traceparent(header) in {None, header}


@pytest.mark.parametrize(
    "header",
    [
        *(THEIRS + "\n", THEIRS + "-more", THEIRS.replace("00-", "ff-"), THEIRS.upper()),
        *(f"00-{'0' * 32}-{'cd' * 8}-01", f"00-{'ab' * 16}-{'0' * 16}-01", "0" * 10_000_000, THEIRS.encode()),
        {"traceparent": THEIRS},
    ],
    ids=lambda header: repr(header)[:20],
)
def test_a_malformed_context_is_none(header: object) -> None:
    assert valid_traceparent(header) is None


def test_text_chosen_by_callers_is_truncated() -> None:
    opening = publish_span("quintain.invoke", "k" * 1000, request_id="r" * 1000)
    assert len(opening.name) < 200
    assert all(len(str(value)) < 200 for value in opening.attributes.values())


def test_a_model_is_told_by_the_conventions_and_its_words_apart() -> None:
    request = InvokeRequest(
        question="secret", system_prompt="secret too", settings=InvokeSettings(temperature=0.5, max_tokens=9)
    )
    opening = semconv.provider_span("judge", "openai", "gpt-x", request)
    assert opening.name == "chat gpt-x"
    assert opening.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-x",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 9,
        "quintain.target": "judge",
    }
    assert semconv.provider_span("bot", "command", None, request).name == "invoke_agent bot"
    told = semconv.response_attributes("gpt-x-1", "stop", TokenUsage(input=3, output=4, cached=1))
    assert told["gen_ai.usage.cache_read.input_tokens"] == 1
    assert "secret" not in f"{opening}{told}"
    assert str(semconv.input_content(request)).count("secret") == 2
    # What is no Unicode would end the export of everything that travels with it.
    assert str(semconv.output_content("half \ud800", None, None)["gen_ai.output.messages"]).isascii()


@pytest.mark.parametrize(
    ("env", "export"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, False),
    ],
)
def test_the_standard_variables_switch_it_on(env: dict[str, str], export: bool) -> None:
    settings = read_trace_settings(env)
    assert (settings.export, settings.include_content, settings.has_service_name) == (export, False, False)


def test_content_is_asked_for_in_one_word() -> None:
    assert read_trace_settings({"QUINTAIN_TRACE_CONTENT": "true", "OTEL_SERVICE_NAME": "x"}).include_content
    with pytest.raises(ConfigError, match="QUINTAIN_TRACE_CONTENT is 'yes': it is one of true, false"):
        read_trace_settings({"QUINTAIN_TRACE_CONTENT": "yes"})
