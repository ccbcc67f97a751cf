"""superred's own Controller over hosted targets: what its suite does not ask. Runs in superred's environment."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chatbot_target import USER_TAG, ChatbotTarget
from superred.core import Optimizer, Target, TargetFactory, Task
from superred.core.controller import Controller
from superred.core.interfaces.security_claim import SecurityClaim
from superred.core.interfaces.task import NotApplicable
from superred.core.types.evaluation import EvaluationResult, Score
from superred.core.types.event import EventResponse
from superred.core.types.events import (
    ControllableInjection,
    ControllableNoInjection,
    ControllablePreCallEvent,
    RunEndEvent,
    RunEndResponse,
)
from superred.core.types.goal import Goal
from superred.core.types.llm import BudgetExhaustedError, LLMUsage

from quintain.contracts.remote_target import TRAJECTORY_FOLDER, TrajectoryLine, TrajectoryStart
from quintain.errors import ConfigError
from quintain.superred import Controller as QuintainController
from quintain.superred import remote_factory
from support.model_server import ModelServer, ScriptedResponse, model_server
from support.target_placements import scripted_target_class
from support.thread_host import ThreadHost, thread_host

Bot: Any = scripted_target_class("superred")


@pytest.fixture
def host(broker_url: str) -> Iterator[ThreadHost]:
    with thread_host(broker_url, slots=4) as host:
        yield host


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        yield server


class Attacker(Optimizer):
    """Says what it was given, one message after another, and then no more."""

    def __init__(self, *messages: str) -> None:
        super().__init__()
        self._messages = list(messages)

    async def initialize(self, goal: Any, controllables: Any, observables: Any, llm_client: Any) -> None:
        await super().initialize(goal, controllables, observables, llm_client)

    async def on_event(self, event: Any) -> EventResponse:
        if isinstance(event, RunEndEvent):
            return RunEndResponse(event=event, done=True)
        if isinstance(event, ControllablePreCallEvent) and self._messages:
            value = self._messages.pop(0)
            return ControllableInjection(event=event, controllable=event.controllable, value=value)
        if hasattr(event, "controllable"):
            return ControllableNoInjection(event=event, controllable=event.controllable)
        return EventResponse(event=event)


class TaskWithoutGoal(Task[Target]):
    """A task that any target suits."""

    def __init__(self, name: str, configure: Callable[[Any], None] = lambda target: None, request: str = "") -> None:
        self._name, self._configure, self._request = name, configure, request

    @property
    def goal(self) -> Goal:
        return Goal(description=self._name)

    async def configure_target(self, target: Target) -> None:
        self._configure(target)

    async def evaluate(self, trajectory: Any, target: Target) -> EvaluationResult:
        contents = target.query(self._request) if self._request else ""
        return EvaluationResult(success=True, primary_score=Score(value=1.0), rationale=contents)


def controller(
    factory: TargetFactory,
    scope: Any,
    tasks: list[Task[Any]],
    attacker: Any = Attacker,
    controller_class: Any = Controller,
    **more: Any,
) -> Any:
    return controller_class(
        optimizer_factory=attacker,
        target_factory=factory,
        security_claim=SecurityClaim.from_tasks(tasks),
        scope=frozenset(scope),
        report=False,
        **{"persist": False, **more},
    )


# A target that somebody else wrote.

#: What differs between any two runs.
CHANGING = {"event_id": "an id", "timestamp": "a time"}


def masked(found: Any) -> Any:
    """The same, without ids and times."""
    if isinstance(found, dict):
        return {name: CHANGING.get(name) or masked(value) for name, value in found.items()}
    return [masked(each) for each in found] if isinstance(found, list) else found


def trajectories(folder: Path) -> list[Any]:
    """Every trajectory of a results tree."""
    files = sorted(folder.rglob("trajectories/run_*.json"))
    return [masked(json.loads(file.read_text())) for file in files]


def completion(text: str) -> ScriptedResponse:
    """A chat completion, as OpenAI words it."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
    named = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-scripted"}
    return ScriptedResponse(body={**named, "choices": [choice], "usage": usage})


async def attack_chatbot(factory: TargetFactory, model: ModelServer, results: Path) -> list[Any]:
    """Two tasks against a chatbot whose model answers by script; what was recorded."""
    requests = len(model.requests)
    model.set_responses(*(completion(f"answer {number} ä \U0001f600") for number in range(6)))
    tasks: list[Task[Any]] = [
        TaskWithoutGoal(
            f"make it speak {number}",
            lambda target, number=number: target.set_config("system_prompt", f"You are number {number}."),  # type: ignore[misc]
            "last_response",
        )
        for number in range(2)
    ]
    experiment = controller(
        factory,
        {USER_TAG},
        tasks,
        lambda: Attacker("hello", "and \u2028 more", "bye"),
        persist=True,
        results_dir=results,
    )
    result = await experiment.run()
    assert [(task.error, task.success) for task in result.task_results] == [(None, True)] * 2
    assert len(model.requests) - requests == 6
    return trajectories(results)


@pytest.mark.filterwarnings("ignore")  # litellm's own, and many
async def test_a_published_chatbot_behind_rabbitmq_leaves_the_trajectories_that_it_leaves_here(
    host: ThreadHost, model: ModelServer, broker_url: str, tmp_path: Path
) -> None:
    def chatbot() -> ChatbotTarget:
        return ChatbotTarget("openai/gpt-scripted", "sk-canary", f"{model.url}/v1", max_attempts=1)

    host.serve(chatbot)
    here = await attack_chatbot(TargetFactory(create=chatbot), model, tmp_path / "here")
    remote = remote_factory(host.name, url=broker_url, tags=[USER_TAG])
    try:
        there = await attack_chatbot(remote, model, tmp_path / "there")
    finally:
        remote.close()
    assert len(here) == 2
    assert there == here
    assert "answer 5" in json.dumps(there[1])


# Without tags.


@pytest.mark.filterwarnings("ignore")  # litellm's own, and many
async def test_without_tags_a_package_that_is_imported_here_is_attacked_as_with_them(
    host: ThreadHost, model: ModelServer, broker_url: str, tmp_path: Path
) -> None:
    host.serve(lambda: ChatbotTarget("openai/gpt-scripted", "sk-canary", f"{model.url}/v1", max_attempts=1))
    remote = remote_factory(host.name, url=broker_url)
    try:
        [first, _] = await attack_chatbot(remote, model, tmp_path)
    finally:
        remote.close()
    assert "ControllableInjection" in json.dumps(first)


async def test_a_target_whose_tags_are_in_no_module_is_not_attacked_and_its_task_says_so(
    host: ThreadHost, broker_url: str
) -> None:
    host.serve(lambda: Bot(chat))
    with contextlib.closing(remote_factory(host.name, prefetch=0, url=broker_url)) as remote:
        with pytest.raises(ConfigError, match="root/tools"):
            remote.create()
        result = await controller(remote, {Bot.user}, [TaskWithoutGoal("talk")]).run()
    assert [task.stop_reason for task in result.task_results] == ["error"]
    with contextlib.closing(
        remote_factory(host.name, prefetch=0, url=broker_url, tags=[Bot.user, Bot.tools])
    ) as remote:
        await remote.create().teardown()


# Errors that a Controller tells by their class.


@pytest.fixture
def remote(host: ThreadHost, broker_url: str) -> Iterator[Any]:
    host.serve(lambda: Bot(chat))
    factory = remote_factory(host.name, concurrency=2, prefetch=0, url=broker_url)
    yield factory
    factory.close()


async def chat(target: Any, emit: Any, send: Any) -> None:
    """Logs who it is, and asks once."""
    logging.getLogger("bot").warning("I am %s", target.persona)
    await send(target.request_event("question"))


async def test_a_targets_spent_budget_stops_the_task_as_one(host: ThreadHost, remote: Any) -> None:
    async def spent(target: Any, emit: Any, send: Any) -> None:
        raise BudgetExhaustedError("nothing left", LLMUsage(calls=3, cost=1.5))

    host.serve(lambda: Bot(spent))
    result = await controller(remote, remote.scope("user"), [TaskWithoutGoal("spend")]).run()
    assert [task.stop_reason for task in result.task_results] == ["budget_exhausted"]
    with pytest.raises(BudgetExhaustedError) as caught:
        await remote.create().run(print, print)
    assert caught.value.usage == LLMUsage(calls=3, cost=1.5)


async def test_a_target_that_a_task_does_not_suit_skips_it(host: ThreadHost, remote: Any) -> None:
    class Picky(Bot):
        def set_config(self, name: str, value: str) -> None:
            raise NotApplicable(f"no {name} here")

    host.serve(lambda: Picky(chat))
    tasks = [TaskWithoutGoal("a", lambda target: target.set_config("slot", "x")), TaskWithoutGoal("b")]
    result = await controller(remote, remote.scope("user"), tasks).run()
    assert len(result.skipped_tasks) == 1
    assert [task.error for task in result.task_results] == [None]


# Fewer slots than tasks.


async def nap(target: Any, emit: Any, send: Any) -> None:
    await asyncio.sleep(0.3)


async def test_superreds_own_controller_uses_the_slots_that_there_are(broker_url: str) -> None:
    with thread_host(broker_url, slots=1) as host:
        host.serve(lambda: Bot(nap))
        tasks: list[Task[Any]] = [TaskWithoutGoal(f"task {number}") for number in range(3)]
        with contextlib.closing(remote_factory(host.name, concurrency=2, url=broker_url)) as remote:
            result = await controller(remote, remote.scope("user"), tasks).run()
            assert remote.concurrency == 1
    assert [task.error for task in result.task_results] == [None] * 3


async def test_our_controller_leaves_the_loop_to_others_while_it_waits(host: ThreadHost, broker_url: str) -> None:
    begun, may_end = threading.Semaphore(0), threading.Semaphore(0)

    async def wait(target: Any, emit: Any, send: Any) -> None:
        begun.release()
        await asyncio.to_thread(may_end.acquire, timeout=60)

    async def end_one_after_the_other() -> None:
        for _ in tasks:
            while not begun.acquire(blocking=False):
                await asyncio.sleep(0.005)
            may_end.release()

    host.serve(lambda: Bot(wait))
    tasks: list[Task[Any]] = [TaskWithoutGoal(f"task {number}") for number in range(12)]
    with contextlib.closing(remote_factory(host.name, concurrency=8, url=broker_url)) as remote:
        scope = await asyncio.to_thread(remote.scope, "user")
        # On the controller's loop: if it were held while tasks run or wait for a slot, no task would end.
        ending = asyncio.create_task(end_one_after_the_other())
        result = await controller(remote, scope, tasks, controller_class=QuintainController).run()
        await ending
    assert [task.error for task in result.task_results] == [None] * 12


@pytest.mark.parametrize(("on_host_lost", "retries"), [("retry", 1), ("error", 0)])
async def test_a_lost_hosts_task_is_retried_where_that_is_asked_and_else_keeps_what_was_said(
    on_host_lost: str, retries: int, host: ThreadHost, broker_url: str
) -> None:
    async def lost_once(target: Any, emit: Any, send: Any) -> None:
        emit(target.observation_event("the last words"))
        if len(host.instances) == 1:
            await send(target.request_event("anybody?"))
            [lease] = [slot.lease for slot in host.host._slots if slot.lease is not None]

            def lose() -> None:
                vars(lease._stream)["send"] = lambda *_, **__: 0  # a lost host says nothing more
                lease._ended.set_result(None)

            host.call_soon(lose)
            await asyncio.sleep(30)

    host.serve(lambda: Bot(lost_once))
    with contextlib.closing(
        remote_factory(host.name, prefetch=0, url=broker_url, tags=[Bot.user, Bot.tools])
    ) as remote:
        tasks: list[Task[Any]] = [TaskWithoutGoal("talk")]
        mine = controller(remote, {Bot.user}, tasks, controller_class=QuintainController, on_host_lost=on_host_lost)
        [task] = (await mine.run()).task_results
    assert (mine.retries, task.stop_reason) == (retries, "done" if retries else "error")
    assert task.error is None if retries else "HostLost" in task.error
    assert [run.errored for run in task.runs] == [not retries]
    assert "the last words" in [getattr(event, "content", None) for event in task.runs[0].trajectory.snapshot()]


async def test_a_scope_that_touches_none_of_the_targets_tags_is_refused_unless_allowed(
    host: ThreadHost, broker_url: str
) -> None:
    host.serve(lambda: Bot(do_nothing))
    tags = [Bot.user, Bot.tools]
    with contextlib.closing(remote_factory(host.name, prefetch=0, url=broker_url, tags=tags)) as remote:
        reasons = []
        for allowed in (False, True):
            tasks: list[Task[Any]] = [TaskWithoutGoal("talk")]
            asked = controller(remote, {USER_TAG}, tasks, controller_class=QuintainController, allow_untouched=allowed)
            reasons += [task.stop_reason for task in (await asked.run()).task_results]
    assert reasons == ["error", "done"]


async def test_each_run_of_a_task_is_recorded_under_its_goal(host: ThreadHost, broker_url: str, tmp_path: Path) -> None:
    host.serve(lambda: Bot(chat))
    tags, tasks = [Bot.user, Bot.tools], [TaskWithoutGoal(f"talk {number}") for number in range(2)]
    with contextlib.closing(remote_factory(host.name, prefetch=0, url=broker_url, tags=tags)) as remote:
        mine = controller(remote, {Bot.user}, list(tasks), controller_class=QuintainController, trajectories=tmp_path)
        await mine.run()
    files = [path.read_bytes().splitlines() for path in (tmp_path / TRAJECTORY_FOLDER).iterdir()]
    starts = [TrajectoryStart.from_wire(lines[0]) for lines in files]
    assert sorted(start.title for start in starts) == ["task 1: talk 0", "task 2: talk 1"]
    assert [TrajectoryLine.from_wire(lines[-1]).kind for lines in files] == ["end", "end"]


# Several at once.


def test_a_copy_of_a_factory_is_as_whole_as_the_factory(host: ThreadHost, broker_url: str) -> None:
    host.serve(lambda: Bot(do_nothing))
    remote = remote_factory(host.name, concurrency=2, prefetch=0, url=broker_url)
    copy = dataclasses.replace(remote, concurrency=3)
    try:
        assert (type(copy), copy.concurrency) == (type(remote), 3)
        assert copy.scope("user") == remote.scope("user")
        assert copy.tags is remote.tags
    finally:
        copy.close()


async def do_nothing(target: Any, emit: Any, send: Any) -> None: ...
