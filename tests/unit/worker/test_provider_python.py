"""Python functions as targets: found beside the configuration, called, bounded, and judged."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from quintain.config.targets import PythonTarget
from quintain.contracts.invoke import InvokeRequest, TokenUsage
from quintain.errors import BadRequest, ConfigError, ProviderFailed, TargetUnavailable, TimedOut
from quintain_worker.providers.factory import build_provider, check_program
from quintain_worker.providers.provider import Billing, Provider, ProviderAnswer, ProviderContext, ProviderFailure
from quintain_worker.providers.python_callable import PythonProvider

QUESTION = InvokeRequest(question="How are you?")
_numbers = itertools.count()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A configuration's folder, forgotten again by the interpreter."""
    paths, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = paths
    for name in set(sys.modules) - modules:
        if name.startswith("bot_"):
            del sys.modules[name]


def make_provider(folder: Path, code: str, function: str = "run") -> Provider:
    module = f"bot_{next(_numbers)}"
    (folder / f"{module}.py").write_text(code, encoding="utf-8")
    target = PythonTarget(provider="python", callable=f"{module}:{function}", max_concurrency=4)
    return build_provider("it", target, ProviderContext(folder, {}))


async def answer_of(provider: Provider, *, timeout_seconds: float = 10) -> ProviderAnswer:
    try:
        return await provider.answer(QUESTION, timeout_seconds=timeout_seconds)
    finally:
        await provider.close()


async def failure(provider: Provider, *, timeout_seconds: float = 10) -> ProviderFailure:
    with pytest.raises(ProviderFailure) as caught:
        await answer_of(provider, timeout_seconds=timeout_seconds)
    return caught.value


@pytest.mark.parametrize(
    "code",
    [
        "def run(request): return request.question.upper()",
        "async def run(request): return request.question.upper()",
        "class Bot:\n    async def __call__(self, request): return request.question.upper()\nrun = Bot()",
    ],
)
async def test_a_function_takes_the_request_and_returns_its_text(folder: Path, code: str) -> None:
    assert await answer_of(make_provider(folder, code)) == ProviderAnswer(text="HOW ARE YOU?")


async def test_a_function_may_return_a_whole_answer(folder: Path) -> None:
    code = """
from quintain.contracts.invoke import TokenUsage
from quintain_worker.providers.provider import ProviderAnswer

def run(request):
    return ProviderAnswer(text="x", model="m", token_usage=TokenUsage(input=1, output=2))
"""
    answer = await answer_of(make_provider(folder, code))
    assert answer == ProviderAnswer(text="x", model="m", token_usage=TokenUsage(input=1, output=2))


async def test_an_async_generator_yields_its_text_in_pieces(folder: Path) -> None:
    provider = make_provider(folder, "async def run(r):\n    for word in ('one ', '', 'two'):\n        yield word")
    heard: list[str] = []
    assert await provider.answer(QUESTION, timeout_seconds=10, on_text=heard.append) == ProviderAnswer(text="one two")
    assert heard == ["one ", "two"]
    assert await answer_of(provider) == ProviderAnswer(text="one two")


async def test_a_deadline_ends_an_async_generator() -> None:
    ended = asyncio.Event()

    async def run(_request: InvokeRequest) -> AsyncGenerator[str, None]:
        try:
            yield "one "
            await asyncio.Event().wait()
        finally:
            ended.set()

    heard: list[str] = []
    provider = PythonProvider("it", run, threads=1)
    with pytest.raises(ProviderFailure) as caught:
        await provider.answer(QUESTION, timeout_seconds=0.05, on_text=heard.append)
    assert isinstance(caught.value.fault, TimedOut)
    assert (caught.value.billing, heard, ended.is_set()) == (Billing.UNKNOWN, ["one "], True)
    await provider.close()


async def test_a_function_that_returns_its_text_is_not_heard(folder: Path) -> None:
    heard: list[str] = []
    provider = make_provider(folder, "def run(r): return 'whole'")
    assert (await provider.answer(QUESTION, timeout_seconds=10, on_text=heard.append)).text == "whole"
    assert heard == []
    await provider.close()


async def test_a_module_may_import_its_neighbours(folder: Path) -> None:
    (folder / "bot_neighbour.py").write_text("WORD = 'hello'", encoding="utf-8")
    assert (
        await answer_of(make_provider(folder, "from bot_neighbour import WORD\ndef run(r): return WORD"))
    ).text == "hello"


async def test_functions_run_in_threads_as_many_as_the_target_may_have_in_flight() -> None:
    together = threading.Barrier(4, timeout=10)

    def run(_request: InvokeRequest) -> str:
        together.wait()
        return "all here"

    provider = PythonProvider("it", run, threads=4)
    answers = await asyncio.gather(*(provider.answer(QUESTION, timeout_seconds=10) for _ in range(4)))
    await provider.close()
    assert [answer.text for answer in answers] == ["all here"] * 4


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def run(r): raise RuntimeError('the key is canary')", "it: the function raised RuntimeError"),
        ("async def run(r): raise TimeoutError('canary')", "it: the function raised TimeoutError"),
        ("def run(r): raise SystemExit('canary')", "it: the function raised SystemExit"),
        ("def run(r): return None + len('canary')", "it: the function raised TypeError"),
        ("def run(r): return 'canary'.nothing", "it: the function raised AttributeError"),
        ("def run(r): return {'canary': 1}", "it: the function returned dict, not str or ProviderAnswer"),
        ("async def run(r):\n    yield 'a'\n    yield 5", "it: the function yielded int, not str"),
        ("async def run(r):\n    yield 'a'\n    raise KeyError('canary')", "it: the function raised KeyError"),
        (
            "def run(r): return (word for word in 'canary')",
            "it: the function returned generator, not str or ProviderAnswer",
        ),
    ],
)
async def test_what_a_function_does_wrong_is_charged_and_told_by_its_class_alone(
    folder: Path, code: str, says: str
) -> None:
    failed = await failure(make_provider(folder, code))
    assert isinstance(failed.fault, ProviderFailed)
    assert (failed.fault.message, failed.fault.charged) == (says, True)
    assert (failed.billing, failed.retryable) == (Billing.BILLED, False)


TEXT_USES = ["prompt.upper()", "'a ' + prompt", "prompt[0]", "str(len(prompt))"]


@pytest.mark.parametrize("use", [*TEXT_USES, "__import__('re').sub('a', 'b', prompt)"])
@pytest.mark.parametrize(
    "kind", ["def run(prompt): return", "async def run(prompt): return", "async def run(prompt):\n yield"]
)
async def test_a_function_that_takes_its_request_for_text_is_told_so_uncharged(
    folder: Path, kind: str, use: str
) -> None:
    failed = await failure(make_provider(folder, f"{kind} {use}"))
    assert isinstance(failed.fault, TargetUnavailable)
    assert "InvokeRequest" in failed.fault.message
    assert (failed.billing, failed.fault.charged, failed.retryable) == (Billing.UNBILLED, False, False)


@pytest.mark.parametrize(
    ("code", "is_wrong"),
    [
        *((f"def run(prompt):\n  return {use}", True) for use in TEXT_USES),
        ("async def run(prompt): return f'You asked: {prompt}'", True),
        ("def run(request): return request.question.upper()", False),
        ("def run(request): return request.model_dump_json()", False),
        ("def run(request): return ask(request)", False),
        ("def run(prompt):\n  prompt = prompt.question\n  return prompt.upper()", False),
        ("def run(prompt): return prompt.upper() if isinstance(prompt, str) else prompt.question", False),
        ("run = print", False),
        ("class Bot:\n  def __call__(self, request): return ''\nrun = Bot()", False),
        ("class Bot:\n  def __call__(self, prompt): return prompt.upper()\nrun = Bot()", True),
        ("class Bot:\n  def ask(self, request): return self.name + request.question\nrun = Bot().ask", False),
        ("class Bot:\n  def ask(self, prompt): return self.name + prompt\nrun = Bot().ask", True),
        ("def run(prompt):\n  for word in prompt:\n    return word", True),
        ("def run(prompt): return ''.join(word for word in prompt)", True),
    ],
)
def test_check_finds_a_function_that_takes_its_request_for_text(folder: Path, code: str, *, is_wrong: bool) -> None:
    (folder / "bot_text.py").write_text(code)
    target = PythonTarget(provider="python", callable="bot_text:run")
    warnings = check_program("it", target, ProviderContext(folder, {}), set())
    assert ["targets.it.callable" in warning for warning in warnings] == ([True] if is_wrong else [])


@pytest.mark.parametrize(
    ("code", "is_wrong"),
    [
        ("def run(): return ''", True),
        ("def run(prompt, history): return ''", True),
        ("def run(*, prompt): return ''", True),
        ("def run(prompt: str): return prompt.upper()", True),
        ("def run(prompt: 'str'): return prompt.upper()", True),
        ("def run(messages: list[dict] | None): return ''", True),
        ("def run(prompt): yield ''", True),
        ("from quintain.contracts.invoke import InvokeRequest\ndef run(request: InvokeRequest, x=1): return ''", False),
        ("from __future__ import annotations\ndef run(request: 'unknown'): return ''", False),
        ("from typing import Any\ndef run(request: Any): return ''", False),
        ("import pydantic\ndef run(request: pydantic.BaseModel | str): return ''", False),
        ("def run(*anything): return ''", False),
        ("run = str", False),
    ],
)
def test_a_signature_that_cannot_take_a_request_stops_the_start(folder: Path, code: str, *, is_wrong: bool) -> None:
    with pytest.raises(ConfigError, match=r"targets\.it\.callable: bot_") if is_wrong else contextlib.nullcontext():
        make_provider(folder, code)


async def test_a_function_may_judge_its_own_failure(folder: Path) -> None:
    code = """
from quintain.errors import BadRequest
from quintain_worker.providers.provider import Billing, ProviderFailure

def run(request):
    raise ProviderFailure(BadRequest("question: too short"), Billing.UNBILLED)
"""
    failed = await failure(make_provider(folder, code))
    assert isinstance(failed.fault, BadRequest)
    assert failed.billing is Billing.UNBILLED


async def test_a_deadline_is_in_doubt_for_a_coroutine() -> None:
    stopped = asyncio.Event()

    async def run(_request: InvokeRequest) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    failed = await failure(PythonProvider("it", run, threads=1), timeout_seconds=0.05)
    assert isinstance(failed.fault, TimedOut)
    assert (failed.billing, failed.retryable) == (Billing.UNKNOWN, False)
    assert stopped.is_set()


async def test_a_deadline_is_in_doubt_for_a_thread_which_runs_on() -> None:
    finish, finished = threading.Event(), threading.Event()

    def run(_request: InvokeRequest) -> str:
        finish.wait(10)
        finished.set()
        return "too late"

    failed = await failure(PythonProvider("it", run, threads=1), timeout_seconds=0.05)
    assert isinstance(failed.fault, TimedOut)
    assert failed.billing is Billing.UNKNOWN
    finish.set()
    assert await asyncio.to_thread(finished.wait, 10)


async def test_a_cancelled_call_is_cancelled() -> None:
    began = asyncio.Event()

    async def run(_request: InvokeRequest) -> str:
        began.set()
        await asyncio.Event().wait()
        return "never"

    provider = PythonProvider("it", run, threads=1)
    call = asyncio.create_task(answer_of(provider))
    await began.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


@pytest.mark.parametrize(
    ("callable_", "says"),
    [
        ("bot_nowhere:run", "targets.it.callable: bot_nowhere cannot be imported: ModuleNotFoundError"),
        ("bot_broken:run", "targets.it.callable: bot_broken cannot be imported: ZeroDivisionError"),
        ("bot_fine:walk", "targets.it.callable: bot_fine has no function walk"),
        ("bot_fine:run", "targets.it.callable: bot_fine has no function run"),
    ],
)
def test_a_function_that_cannot_be_had_stops_the_start(folder: Path, callable_: str, says: str) -> None:
    (folder / "bot_broken.py").write_text("1 / 0", encoding="utf-8")
    (folder / "bot_fine.py").write_text("run = 5", encoding="utf-8")
    target = PythonTarget(provider="python", callable=callable_)
    with pytest.raises(ConfigError) as caught:
        build_provider("it", target, ProviderContext(folder, {}))
    assert caught.value.message.startswith(says)
