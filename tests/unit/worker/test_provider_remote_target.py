"""A hosted target behind ``provider: target``: what it is told, what it says for an answer, and what is owed for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from quintain.bus.base import Envelope
from quintain.bus.memory import MemoryBroker, MemoryBus
from quintain.config.targets import TargetTarget
from quintain.contracts.agents import AgentStep
from quintain.contracts.invoke import InvokeRequest
from quintain.errors import BadRequest, ConfigError, Overloaded, ProviderFailed, TimedOut, Unroutable
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import Exchange
from quintain_host.host import Host
from quintain_worker.providers.factory import build_provider
from quintain_worker.providers.provider import Billing, ProviderAnswer, ProviderContext, ProviderFailure
from support.quick import QUICK
from support.target_placements import TargetScript, scripted_target_class

BODY = scripted_target_class("ours")
QUESTION = InvokeRequest(question="What is the password?")


@contextlib.asynccontextmanager
async def run_host(create: Callable[[], Any]) -> AsyncIterator[MemoryBroker]:
    memory = MemoryBroker()
    bus = memory.connect()
    host = Host(bus, "it", create, 1)
    await host.start()
    try:
        yield memory
    finally:
        await host.stop(0)
        await bus.close()


async def answer_of(
    memory: MemoryBroker,
    request: InvokeRequest = QUESTION,
    *,
    timeout_seconds: float = 30,
    timings: Timings = DEFAULT_TIMINGS,
    **options: object,
) -> ProviderAnswer:
    bus = memory.connect()
    target = TargetTarget.model_validate({"provider": "target", **options})
    provider = build_provider("it", target, ProviderContext(Path.cwd(), {}, bus, timings))
    try:
        return await provider.answer(request, timeout_seconds=timeout_seconds)
    finally:
        await provider.close()
        await bus.close()


async def answer_text(script: TargetScript, request: InvokeRequest = QUESTION, **options: object) -> str:
    async with run_host(lambda: BODY(script)) as memory:
        return (await answer_of(memory, request, **options)).text


async def failure_of(create: Callable[[], Any], request: InvokeRequest = QUESTION, **options: Any) -> ProviderFailure:
    async with run_host(create) as memory:
        with pytest.raises(ProviderFailure) as caught:
            await answer_of(memory, request, **options)
    return caught.value


async def test_the_question_answers_the_first_event_and_every_other_one_goes_on_as_it_is() -> None:
    async def script(body: Any, emit: Any, send: Any) -> None:
        first, second = await send(body.request_event("hello")), await send(body.request_event("and now"))
        emit(body.observation_event(f"{first.value} / {type(second).__name__}"))

    assert await answer_text(script) == "What is the password? / ControllableNoInjection"


@pytest.mark.parametrize(
    ("content", "text"), [("the end", "the end"), ({"said": 5}, '{"said": 5}'), (None, "null"), ("", "")]
)
async def test_without_a_query_the_last_thing_shown_is_the_answer(content: object, text: str) -> None:
    async def script(body: Any, emit: Any, send: Any) -> None:
        emit(body.observation_event("not this"))
        emit(body.observation_event(content))

    assert await answer_text(script) == text


async def test_where_nothing_was_shown_the_last_answer_that_could_be_replaced_is_it() -> None:
    async def script(body: Any, emit: Any, send: Any) -> None:
        await send(body.request_event("hello"))
        post = body.types.events["ControllablePostCallEvent"]
        await send(post(controllable=body.question, request="hello", answer="good morning"))

    assert await answer_text(script) == "good morning"


async def test_a_query_gives_the_answer_after_what_was_configured() -> None:
    class Persona(BODY):  # type: ignore[misc, valid-type]
        def query(self, name: str, **params: str) -> str:
            return f"{name} of {self.persona}"

    async def script(body: Any, emit: Any, send: Any) -> None:
        emit(body.observation_event("not this"))

    async with run_host(lambda: Persona(script)) as memory:
        said = await answer_of(memory, query="words", config={"persona": "pirate"})
    assert said.text == "words of pirate"


def said(step: AgentStep) -> tuple[str, str, str]:
    """The operation of a step, the name of who spoke, and the text."""
    assert step.messages is not None
    (message,) = step.messages
    return step.operation, message["name"], message["parts"][0]["content"]


async def test_what_a_run_showed_asked_and_logged_are_its_steps_in_order() -> None:
    async def script(body: Any, emit: Any, send: Any) -> None:
        post = body.types.events["ControllablePostCallEvent"]
        await send(body.request_event("hello"))
        logging.getLogger("bot").warning("half a day")
        await send(body.request_event('{"q": 1}'))
        emit(body.observation_event({"seen": 5}))
        await send(post(controllable=body.question, request='{"q": 1}', answer="one"))
        emit(body.observation_event("done"))

    async with run_host(lambda: BODY(script)) as memory:
        answer = await answer_of(memory)
    first, log, called, shown, last = answer.steps
    assert (first.operation, first.tool, first.arguments) == ("execute_tool", "question", "What is the password?")
    assert said(log) == ("log", "bot", "half a day")
    assert (called.tool, called.arguments, called.result) == ("question", {"q": 1}, "one")
    assert called.duration_ms is not None
    assert said(shown)[::2] == ("emit", '{"seen": 5}')
    assert said(last)[::2] == ("emit", "done")
    assert answer.steps_cut is None


async def test_every_call_has_an_instance_of_its_own_that_is_reset_and_torn_down() -> None:
    made: list[Any] = []

    async def script(body: Any, emit: Any, send: Any) -> None:
        emit(body.observation_event(str(body.total_runs)))

    def create() -> Any:
        made.append(BODY(script))
        return made[-1]

    async with run_host(create) as memory:
        assert [(await answer_of(memory)).text for _ in range(3)] == ["1", "1", "1"]
    assert [body.torn_down for body in made] == [True, True, True]
    assert [body.runs_since_reset for body in made] == [0, 0, 0]


async def test_a_target_that_raises_is_charged_and_its_words_are_its_own() -> None:
    async def script(body: Any, emit: Any, send: Any) -> None:
        emit(body.observation_event("began"))
        raise ArithmeticError("the key is hunter2")

    failure = await failure_of(lambda: BODY(script))
    assert isinstance(failure.fault, ProviderFailed)
    assert (failure.billing, failure.retryable) == (Billing.BILLED, False)
    assert failure.fault.message == "it: the target raised ArithmeticError while running"
    # What it did before is told all the same.
    assert [step.operation for step in failure.fault.steps] == ["emit"]


async def test_a_target_that_shows_nothing_is_charged_and_told_of_queries() -> None:
    async def script(body: Any, emit: Any, send: Any) -> None:
        await send(body.request_event("hello"))

    failure = await failure_of(lambda: BODY(script))
    assert failure.billing is Billing.BILLED
    assert "query" in failure.fault.message


def raise_lookup_error() -> Any:
    raise LookupError("no such agent: hunter2")


async def emit_ran(body: Any, emit: Any, send: Any) -> None:
    emit(body.observation_event("ran"))


@pytest.mark.parametrize(
    ("create", "says", "words"),
    [
        (lambda: BODY(emit_ran), {"config": {"mood": "grim"}}, "the target raised ValueError while being configured"),
        (raise_lookup_error, {}, "it could not be created: LookupError"),
    ],
)
async def test_what_fails_before_the_run_is_not_charged(
    create: Callable[[], Any], says: dict[str, object], words: str
) -> None:
    failure = await failure_of(create, **says)
    assert isinstance(failure.fault, ProviderFailed)
    assert (failure.billing, failure.retryable, failure.fault.charged) == (Billing.UNBILLED, False, False)
    assert failure.fault.message == f"it: {words}"


async def test_where_no_host_is_free_in_time_nothing_is_charged_and_another_try_may_help() -> None:
    failure = await failure_of(lambda: BODY(emit_ran), host="elsewhere", timeout_seconds=0.3)
    assert isinstance(failure.fault, Overloaded)
    assert (failure.billing, failure.retryable) == (Billing.UNBILLED, True)
    assert "quintain serve host module:factory --name elsewhere" in failure.fault.message


async def test_a_run_that_does_not_end_in_time_is_cancelled_and_in_doubt() -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def script(body: Any, emit: Any, send: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            loop.call_soon_threadsafe(ended.set)

    failure = await failure_of(lambda: BODY(script), timeout_seconds=0.5)
    assert isinstance(failure.fault, TimedOut)
    assert failure.billing is Billing.UNKNOWN
    await asyncio.wait_for(ended.wait(), 5)


async def test_a_run_that_sends_events_goes_on_and_one_that_is_silent_for_too_long_is_ended() -> None:
    async def script(body: Any, emit: Any, send: Any) -> None:
        for number in range(5):
            emit(body.observation_event(str(number)))
            await asyncio.sleep(0.3)
        await asyncio.Event().wait()

    failure = await failure_of(lambda: BODY(script), timeout_seconds=60, idle_seconds=1.4)
    assert isinstance(failure.fault, TimedOut)
    assert (failure.billing, len(failure.fault.steps)) == (Billing.UNKNOWN, 5)


async def test_a_host_that_goes_while_it_runs_is_in_doubt_and_not_asked_again() -> None:
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def script(body: Any, emit: Any, send: Any) -> None:
        loop.call_soon_threadsafe(began.set)
        await asyncio.Event().wait()

    memory = MemoryBroker()
    bus = memory.connect()
    host = Host(bus, "it", lambda: BODY(script), 1)
    await host.start()
    asking = asyncio.create_task(answer_of(memory, timings=QUICK))
    await began.wait()
    # The connection, and with it every word of this host.
    await bus.close()
    with pytest.raises(ProviderFailure) as caught:
        await asking
    assert isinstance(caught.value.fault, ProviderFailed)
    assert (caught.value.billing, caught.value.retryable, caught.value.fault.charged) == (Billing.UNKNOWN, False, True)
    await host.stop(0)


@pytest.mark.parametrize(("carried", "owed"), [(False, Billing.UNBILLED), (True, Billing.UNKNOWN)])
async def test_a_lease_that_ended_before_the_run_was_asked_for_is_not_charged_unless_the_asking_may_have_arrived(
    carried: bool, owed: Billing, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(body: Any, emit: Any, send: Any) -> None:
        raise AssertionError("it never runs")

    publish = MemoryBus.publish

    async def to_nobody(bus: MemoryBus, exchange: Exchange, key: str, envelope: Envelope, **more: Any) -> None:
        if b'"type":"run"' not in envelope.body:
            return await publish(bus, exchange, key, envelope, **more)
        returned = Unroutable("the lease's queue is gone")
        returned.maybe_delivered_before = carried
        raise returned

    monkeypatch.setattr(MemoryBus, "publish", to_nobody)
    failure = await failure_of(lambda: BODY(never))
    assert (failure.billing, failure.retryable, failure.fault.charged) == (owed, not carried, carried)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"question": "q", "systemPrompt": "be kind"}, "systemPrompt"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}, "messages[0]"),
        ({"question": "q", "settings": {"temperature": 0}}, "settings.temperature"),
    ],
)
async def test_what_a_target_cannot_be_told_is_refused_before_anything_is_leased(
    request_: dict[str, object], field: str
) -> None:
    failure = await failure_of(raise_lookup_error, InvokeRequest.model_validate(request_))
    assert isinstance(failure.fault, BadRequest)
    assert failure.billing is Billing.UNBILLED
    assert failure.fault.message.startswith(f"{field}: ")


def test_it_needs_a_bus() -> None:
    with pytest.raises(ConfigError, match=r"targets\.it: provider target needs a broker"):
        build_provider("it", TargetTarget(provider="target"), ProviderContext(Path.cwd(), {}))
