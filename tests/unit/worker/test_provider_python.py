"""Python functions as targets: found beside the configuration, called, bounded, and judged."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from quintain.config.program_targets import PythonTarget
from quintain.contracts.invoke import InvokeRequest, TokenUsage
from quintain.contracts.quota import TryOutcome
from quintain.errors import BadRequest, ConfigError, ProviderFailed, ReplyTooLarge, TargetUnavailable, TimedOut
from quintain.programs.program import Program
from quintain_worker.providers import python_callable
from quintain_worker.providers.factory import build_provider, check_program, check_provider
from quintain_worker.providers.provider import (
    Billing,
    CallHolder,
    Provider,
    ProviderAnswer,
    ProviderContext,
    ProviderFailure,
    StartedProvider,
)
from quintain_worker.providers.python_callable import KeptProcess, PythonProvider, RunningProcess
from quintain_worker.providers.python_process import load_function, wrong_uses
from support.waiting import wait_until

QUESTION = InvokeRequest(question="How are you?")
_numbers = itertools.count()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration's folder."""
    return tmp_path


class Module:
    """Writes modules that this process may import."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, code: str) -> str:
        name = f"bot_{next(_numbers)}"
        (self.folder / f"{name}.py").write_text(code)
        return name


@pytest.fixture
def module(tmp_path: Path) -> Iterator[Module]:
    """Writes modules, which the interpreter forgets again."""
    paths, modules = list(sys.path), set(sys.modules)
    yield Module(tmp_path)
    sys.path[:] = paths
    for name in set(sys.modules) - modules:
        if name.startswith("bot_"):
            del sys.modules[name]


def make_provider(
    folder: Path, code: str, worker_env: Mapping[str, str] | None = None, **options: Any
) -> PythonProvider:
    (folder / "bot.py").write_text(code, encoding="utf-8")
    target = PythonTarget(provider="python", callable="bot:run", **options)
    provider = build_provider("it", target, ProviderContext(folder, worker_env or {}))
    assert isinstance(provider, PythonProvider)
    return provider


@contextlib.asynccontextmanager
async def started(
    folder: Path, code: str, worker_env: Mapping[str, str] | None = None, **options: Any
) -> AsyncIterator[PythonProvider]:
    """A provider whose processes run."""
    provider = make_provider(folder, code, worker_env, **options)
    await provider.start()
    try:
        yield provider
    finally:
        await provider.close()


def ask(provider: Provider, question: str, seconds: float = 60) -> asyncio.Task[ProviderAnswer]:
    """Ask a question in a task."""
    return asyncio.create_task(provider.answer(InvokeRequest(question=question), timeout_seconds=seconds))


async def text_of(provider: Provider, question: str) -> str:
    return (await ask(provider, question)).text


async def answer_of(provider: Provider, *, timeout_seconds: float = 60) -> ProviderAnswer:
    try:
        return await provider.answer(QUESTION, timeout_seconds=timeout_seconds)
    finally:
        await provider.close()


async def failure(provider: Provider, *, timeout_seconds: float = 60) -> ProviderFailure:
    with pytest.raises(ProviderFailure) as caught:
        await answer_of(provider, timeout_seconds=timeout_seconds)
    return caught.value


#: Runs the function that the question defines.
ANY = """
def run(request):
    names = {}
    exec(request.question, names)
    return names["run"](request)
"""


async def test_a_function_takes_the_request_and_returns_its_text_or_a_whole_answer(folder: Path) -> None:
    codes = [
        "def run(request): return request.question.upper()",
        "async def run(request): return request.question.upper()",
        "class Bot:\n    async def __call__(self, request): return request.question.upper()\nrun = Bot()",
    ]
    whole = "ProviderAnswer(text='x', model='m', token_usage=TokenUsage(input=1, output=2))"
    imports = (
        "from quintain.contracts.invoke import TokenUsage\n"
        "from quintain_worker.providers.provider import ProviderAnswer\n"
    )
    async with started(folder, ANY) as provider:
        assert [await ask(provider, code) for code in codes] == [ProviderAnswer(text=code.upper()) for code in codes]
        answer = await ask(provider, f"{imports}def run(request): return {whole}")
    assert answer == ProviderAnswer(text="x", model="m", token_usage=TokenUsage(input=1, output=2))


async def test_an_async_generator_yields_its_text_in_pieces(folder: Path) -> None:
    provider = make_provider(folder, "async def run(r):\n    for word in ('one ', '', 'two'):\n        yield word")
    heard: list[str] = []
    assert await provider.answer(QUESTION, timeout_seconds=60, on_text=heard.append) == ProviderAnswer(text="one two")
    assert heard == ["one ", "two"]
    assert await answer_of(provider) == ProviderAnswer(text="one two")


async def test_a_module_may_import_and_read_its_neighbours(folder: Path) -> None:
    (folder / "neighbour.py").write_text("WORD = 'hello'", encoding="utf-8")
    code = "from neighbour import WORD\ndef run(r): return WORD + open('neighbour.py').read()"
    assert (await answer_of(make_provider(folder, code))).text == "helloWORD = 'hello'"


TOGETHER = """
import os, threading
together = threading.Barrier(4)

def run(request):
    together.wait()
    return str(os.getpid())
"""


async def test_functions_run_in_threads_of_one_process(folder: Path) -> None:
    async with started(folder, TOGETHER) as provider:
        answers = await asyncio.gather(*(text_of(provider, "q") for _ in range(8)))
    assert len(set(answers)) == 1


async def test_calls_are_spread_over_processes_that_are_kept(folder: Path) -> None:
    code = """
import asyncio, os, pathlib

async def run(request):
    pathlib.Path(f"{os.getpid()}.pid").touch()
    while len(list(pathlib.Path().glob("*.pid"))) < 2:
        await asyncio.sleep(0.01)
    return str(os.getpid())
"""
    async with started(folder, code, processes=2) as provider:
        pids = {answer.text for answer in await asyncio.gather(ask(provider, "a"), ask(provider, "b"))}
        again = {answer.text for answer in await asyncio.gather(ask(provider, "a"), ask(provider, "b"))}
    assert (len(pids), again) == (2, pids)


#: Each is another function of one process: what one does wrong, and what is told of it.
WRONG = {
    "def run(r): raise RuntimeError('the key is canary')": "the function raised RuntimeError",
    "async def run(r): raise TimeoutError('canary')": "the function raised TimeoutError",
    "def run(r): raise SystemExit('canary')": "the function raised SystemExit",
    "async def run(r): raise SystemExit('canary')": "the function raised SystemExit",
    "def run(r): raise KeyboardInterrupt('canary')": "the function raised KeyboardInterrupt",
    "class Skipped(BaseException): ...\nasync def run(r): raise Skipped('canary')": "the function raised Skipped",
    "import asyncio\nasync def run(r): raise asyncio.CancelledError": "the function raised CancelledError",
    "def run(r): return None + len('canary')": "the function raised TypeError",
    "def run(r): return 'canary'.nothing": "the function raised AttributeError",
    "def run(r): return {'canary': 1}": "the function returned dict, not str or ProviderAnswer",
    "async def run(r):\n    yield 'a'\n    yield 5": "the function yielded int, not str",
    "async def run(r):\n    yield 'a'\n    raise KeyError('canary')": "the function raised KeyError",
    "def run(r): return (word for word in 'canary')": "the function returned generator, not str or ProviderAnswer",
}


async def failures_of(folder: Path, codes: Iterable[str]) -> dict[str, ProviderFailure]:
    """How each of these functions fails, all in one process."""
    async with started(folder, ANY) as provider:
        ended = await asyncio.gather(*(ask(provider, code) for code in codes), return_exceptions=True)
    return {code: each for code, each in zip(codes, ended, strict=True) if isinstance(each, ProviderFailure)}


async def test_what_a_function_does_wrong_is_charged_and_told_by_its_class_alone(folder: Path) -> None:
    failed = await failures_of(folder, WRONG)
    assert {code: each.fault.message for code, each in failed.items()} == {
        code: f"it: {says}" for code, says in WRONG.items()
    }
    assert {(type(each.fault), each.fault.charged, each.billing, each.retryable) for each in failed.values()} == {
        (ProviderFailed, True, Billing.BILLED, False)
    }


TEXT_USES = ["prompt.upper()", "'a ' + prompt", "prompt[0]", "str(len(prompt))"]
KINDS = ["def run(prompt): return", "async def run(prompt): return", "async def run(prompt):\n yield"]


async def test_a_function_that_takes_its_request_for_text_is_told_so_uncharged(folder: Path) -> None:
    codes = [f"{kind} {use}" for kind in KINDS for use in [*TEXT_USES, "__import__('re').sub('a', 'b', prompt)"]]
    failed = await failures_of(folder, codes)
    assert failed.keys() == {*codes}
    assert all("InvokeRequest" in each.fault.message for each in failed.values())
    assert {(type(each.fault), each.fault.charged, each.billing, each.retryable) for each in failed.values()} == {
        (TargetUnavailable, False, Billing.UNBILLED, False)
    }


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
def test_a_function_that_takes_its_request_for_text_is_found(module: Module, code: str, *, is_wrong: bool) -> None:
    assert bool(wrong_uses(load_function(f"{module(code)}:run", module.folder))) is is_wrong


def test_check_warns_of_a_function_that_takes_its_request_for_text(folder: Path) -> None:
    (folder / "bot.py").write_text("def run(prompt): return prompt.upper()")
    target = PythonTarget(provider="python", callable="bot:run")
    (warning,) = check_provider("it", target, ProviderContext(folder, {}))
    assert warning.startswith("targets.it.callable: bot:run: `prompt.upper")


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
def test_a_signature_that_cannot_take_a_request_is_refused(module: Module, code: str, *, is_wrong: bool) -> None:
    with pytest.raises(ConfigError, match="bot_") if is_wrong else contextlib.nullcontext():
        load_function(f"{module(code)}:run", module.folder)


async def test_a_function_may_judge_its_own_failure(folder: Path) -> None:
    code = """
from quintain.contracts.quota import TryOutcome
from quintain.errors import BadRequest
from quintain_worker.providers.provider import Billing, ProviderFailure

def run(request):
    fault = BadRequest("question: too short")
    raise ProviderFailure(fault, Billing.UNBILLED, retry_after_seconds=3, outcome=TryOutcome.THROTTLED)
"""
    failed = await failure(make_provider(folder, code))
    assert isinstance(failed.fault, BadRequest)
    assert (failed.fault.message, failed.fault.charged) == ("question: too short", False)
    assert (failed.billing, failed.retryable, failed.retry_after_seconds) == (Billing.UNBILLED, False, 3)
    assert failed.outcome is TryOutcome.THROTTLED


WAITING = """
import asyncio, pathlib, time

async def run(request):
    try:
        pathlib.Path("began").touch()
        await asyncio.Event().wait()
    finally:
        pathlib.Path("ended").touch()
"""

PIECES = WAITING.replace("await asyncio.Event().wait()", "yield 'one '\n        await asyncio.Event().wait()")


@pytest.mark.parametrize(("code", "pieces"), [(WAITING, []), (PIECES, ["one "])])
async def test_a_deadline_is_in_doubt_and_cancels_what_runs_on_the_loop(
    folder: Path, code: str, pieces: list[str]
) -> None:
    heard: list[str] = []
    async with started(folder, code) as provider:
        with pytest.raises(ProviderFailure) as caught:
            await provider.answer(QUESTION, timeout_seconds=2, on_text=heard.append)
        await wait_until((folder / "ended").exists)
    assert isinstance(caught.value.fault, TimedOut)
    assert (caught.value.billing, caught.value.retryable, heard) == (Billing.UNKNOWN, False, pieces)


async def test_a_cancelled_call_is_cancelled(folder: Path) -> None:
    async with started(folder, WAITING) as provider:
        call = ask(provider, "q")
        await wait_until((folder / "began").exists)
        await cancel(call)
        await wait_until((folder / "ended").exists)


ARGV = [sys.executable, "-P", "-m", "quintain_worker.providers.python_process", "it", "bot:run"]


@contextlib.asynccontextmanager
async def process_of(folder: Path, code: str) -> AsyncIterator[RunningProcess]:
    """The process of a function."""
    (folder / "bot.py").write_text(code)
    kept = KeptProcess("it", Program(argv=ARGV, cwd=folder, env={}))
    try:
        yield await kept.ready()
    finally:
        await kept.close()


def call_in(process: RunningProcess, question: str) -> asyncio.Task[ProviderAnswer]:
    """Run a call in a process, whose deadline is far."""
    wire, ends_at = InvokeRequest(question=question).to_wire(), asyncio.get_running_loop().time() + 600
    return asyncio.create_task(process.call(wire, ends_at, None))


async def cancel(call: asyncio.Task[ProviderAnswer]) -> None:
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_call_that_is_cancelled_at_once_ends(folder: Path) -> None:
    async with process_of(folder, WAITING) as process:
        call = call_in(process, "q")
        await asyncio.sleep(0)
        await cancel(call)
        await wait_until(lambda: process.load == 0)


#: Sleeps without end in a thread, unless it is asked something else.
HANGING = """
import os, pathlib, time

def run(request):
    if request.question == "hang":
        pathlib.Path("began").touch()
        time.sleep(1000)
    while request.question == "wait" and not pathlib.Path("go").exists():
        time.sleep(0.01)
    return str(os.getpid())
"""


async def test_a_thread_that_hangs_after_its_deadline_ends_its_process_after_the_other_calls(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_callable, "GRACE_SECONDS", 0.01)
    async with started(folder, HANGING) as provider:
        pid = await text_of(provider, "who")
        neighbour = ask(provider, "wait")
        with pytest.raises(ProviderFailure) as caught:
            await provider.answer(InvokeRequest(question="hang"), timeout_seconds=1)
        assert isinstance(caught.value.fault, TimedOut)
        assert caught.value.billing is Billing.UNKNOWN
        while (new := await text_of(provider, "who")) == pid:
            await asyncio.sleep(0.01)
        (folder / "go").touch()
        assert (await neighbour).text == pid != new
        await wait_until(lambda: not Path(f"/proc/{pid}").exists())
        assert await text_of(provider, "who") == new


async def test_a_cancelled_thread_runs_on_beside_other_calls(folder: Path) -> None:
    async with process_of(folder, HANGING) as process:
        call = call_in(process, "hang")
        await wait_until((folder / "began").exists)
        await cancel(call)
        assert (await call_in(process, "who")).text != ""
        assert (process.load, process.takes_calls) == (1, True)


async def test_a_process_ends_with_its_worker_although_a_thread_hangs(folder: Path) -> None:
    (folder / "bot.py").write_text(HANGING)
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*ARGV, cwd=folder, env={}, stdin=pipe, stdout=nothing)
    assert process.stdin is not None
    process.stdin.write(b"call 1 %b\n" % InvokeRequest(question="hang").to_wire())
    await wait_until((folder / "began").exists)
    process.stdin.close()
    async with asyncio.timeout(60):
        await process.wait()


#: Ends its process where it is asked to; answers others once a file is there.
ENDING = """
import asyncio, os, pathlib, signal, sys

async def run(request):
    if request.question.startswith("end"):
        sys.stderr.write(os.environ["KEY"] + " is the last word\\n")
        exec(request.question.removeprefix("end "))
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.01)
    return f"{request.question} {os.getpid()}"
"""


@pytest.mark.parametrize(
    ("question", "how"), [("end os._exit(3)", "exit code 3"), ("end os.kill(os.getpid(), signal.SIGSEGV)", "signal 11")]
)
async def test_a_function_that_ends_its_process_is_told_and_the_process_begins_anew(
    folder: Path, question: str, how: str
) -> None:
    (folder / "go").touch()
    async with started(folder, ENDING, {"KEY": "a-secret-word"}, env_from=["KEY"]) as provider:
        before = await text_of(provider, "q")
        with pytest.raises(ProviderFailure) as caught:
            await ask(provider, question)
        assert await text_of(provider, "q") != before
    failed = caught.value
    assert isinstance(failed.fault, ProviderFailed)
    assert (failed.fault.charged, failed.billing, failed.retryable) == (True, Billing.UNKNOWN, False)
    assert how in failed.fault.message
    assert "is the last word" in failed.fault.message
    assert "a-secret-word" not in failed.fault.message


async def test_calls_that_are_lost_beside_others_are_tried_again_apart(folder: Path) -> None:
    names = ["q1", "q2", "q3", "end os._exit(1)"]
    async with started(folder, ENDING, {"KEY": "k"}, env_from=["KEY"]) as provider:

        def ask_for_call(name: str) -> Awaitable[ProviderAnswer]:
            holder = CallHolder("s", name, "a", "w")
            return provider.answer(InvokeRequest(question=name), timeout_seconds=60, holder=holder)

        first = [ask_for_call(name) for name in names]
        lost = await asyncio.gather(*first, return_exceptions=True)
        assert [(failed.billing, failed.retryable) for failed in lost if isinstance(failed, ProviderFailure)] == [
            (Billing.UNKNOWN, True)
        ] * 4
        (folder / "go").touch()
        second = [ask_for_call(name) for name in names]
        *answers, ended = await asyncio.gather(*second, return_exceptions=True)
        assert [answer.text.split()[0] for answer in answers if isinstance(answer, ProviderAnswer)] == names[:3]
        assert isinstance(ended, ProviderFailure)
        assert (ended.billing, ended.retryable) == (Billing.UNKNOWN, False)
        assert await text_of(provider, "q4") != ""


async def test_a_function_has_the_environment_of_programs(folder: Path) -> None:
    code = "import json, os\ndef run(r): return json.dumps(dict(os.environ))"
    env = {"PATH": "/bin", "KEY": "secret", "OTHER": "secret", "QUINTAIN_BROKER_URL": "amqp://"}
    async with started(folder, code, env, env={"OWN": "1"}, env_from=["KEY"]) as provider:
        seen = await text_of(provider, "q")
    assert all(f'"{name}"' in seen for name in ("PATH", "KEY", "OWN"))
    assert not any(f'"{name}"' in seen for name in ("OTHER", "QUINTAIN_BROKER_URL"))
    with pytest.raises(ConfigError, match=r"targets\.it: env_from: GONE"):
        make_provider(folder, code, env, env_from=["GONE"])
    (folder / "bot.py").write_text("import os\nX, Y = os.environ['KEY'], os.environ['OTHER']\ndef run(r): return X")
    target = PythonTarget(provider="python", callable="bot:run", env_from=["KEY"])
    (warning,) = check_program("it", target, ProviderContext(folder, env), set())
    assert "reads OTHER, which it will not get" in warning


#: What a function prints is no answer, and the worker's lines are not its to read.
PRINTS = """
import os, sys
def run(request):
    print("answer 1 {}", flush=True)
    os.write(1, b"answer 1 {}\\n")
    return repr(sys.stdin.read())
"""


async def test_a_text_is_carried_exactly_and_what_a_function_prints_is_none(folder: Path) -> None:
    texts = ["\n\r\u2028 \x00 é 🜁", "half \ud800 of a pair"]
    async with started(folder, ANY) as provider:
        assert [await text_of(provider, f"def run(r): return {text!a}") for text in texts] == texts
        assert await text_of(provider, PRINTS) == "''"


async def test_an_answer_that_is_no_json_is_named(folder: Path) -> None:
    named = {"text='x', body={'a': object()}": "body", "text='x', ask_bill=run": "ask_bill", "text=5": "text"}
    code = "from quintain_worker.providers.provider import ProviderAnswer\ndef run(r): return ProviderAnswer({})"
    failed = await failures_of(folder, [code.format(fields) for fields in named])
    for each, name in zip(failed.values(), named.values(), strict=True):
        assert isinstance(each.fault, ProviderFailed)
        assert (each.billing, each.fault.charged, each.retryable) == (Billing.BILLED, True, False)
        assert f": {name}: " in each.fault.message


async def test_a_failure_that_is_no_json_is_named(folder: Path) -> None:
    named = {
        "failure.ask_bill = run": "ask_bill",
        "failure.rates = 5": "rates",
        "failure.fault.steps = [5]": "steps.0",
        "failure.fault.code = 'mine'": "fault",
    }
    code = """
from quintain.errors import ProviderFailed
from quintain_worker.providers.provider import Billing, ProviderFailure

def run(request):
    failure = ProviderFailure(ProviderFailed("why"), Billing.UNKNOWN)
    {}
    raise failure
"""
    failed = await failures_of(folder, [code.format(change) for change in named])
    for each, name in zip(failed.values(), named.values(), strict=True):
        assert isinstance(each.fault, ProviderFailed)
        assert (each.billing, each.fault.charged, each.retryable) == (Billing.BILLED, True, False)
        assert f": {name}: " in each.fault.message


async def test_an_answer_that_is_too_large_is_named_and_its_neighbours_are_answered(folder: Path) -> None:
    code = "def run(r): return 'x' * (33 * 1024**2 if r.question == 'large' else 1)"
    async with started(folder, code) as provider:
        large, small = await asyncio.gather(ask(provider, "large"), ask(provider, "small"), return_exceptions=True)
    assert isinstance(large, ProviderFailure)
    assert isinstance(large.fault, ReplyTooLarge)
    assert large.billing is Billing.BILLED
    assert isinstance(small, ProviderAnswer)


async def test_a_process_that_cannot_begin_anew_is_unavailable_until_it_can(folder: Path) -> None:
    provider = make_provider(folder, "raise RuntimeError('not today')")
    failed = await failure(provider)
    assert isinstance(failed.fault, TargetUnavailable)
    assert (failed.billing, failed.retryable) == (Billing.UNBILLED, False)
    assert "RuntimeError" in failed.fault.message
    (folder / "bot.py").write_text("def run(r): return 'today'")
    assert (await answer_of(provider)).text == "today"


async def test_a_function_that_takes_its_request_for_text_is_warned_of_when_it_is_started(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "bot.py").write_text("def run(prompt): return prompt.upper()")
    context = ProviderContext(folder, {})
    target = PythonTarget(provider="python", callable="bot:run", processes=2)
    assert check_provider("it", target, context, is_started=True) == []
    provider = build_provider("it", target, context)
    assert isinstance(provider, PythonProvider)
    try:
        await provider.start()
    finally:
        await provider.close()
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("callable_", "says"),
    [
        ("nowhere:run", "targets.it.callable: nowhere cannot be imported: ModuleNotFoundError"),
        ("broken:run", "targets.it.callable: broken cannot be imported: ZeroDivisionError"),
        ("ending:run", "targets.it.callable: exit code 3"),
        ("fine:walk", "targets.it.callable: fine has no function walk"),
        ("fine:run", "targets.it.callable: fine has no function run"),
        ("fine:none", "targets.it.callable: fine:none() cannot be called with one argument"),
    ],
)
async def test_a_function_that_cannot_be_had_stops_the_start_and_the_check(
    folder: Path, callable_: str, says: str
) -> None:
    (folder / "broken.py").write_text("1 / 0", encoding="utf-8")
    (folder / "ending.py").write_text("import os; os._exit(3)", encoding="utf-8")
    (folder / "fine.py").write_text("run = 5\ndef none(): return ''", encoding="utf-8")
    target, context = PythonTarget(provider="python", callable=callable_), ProviderContext(folder, {})
    with pytest.raises(ConfigError) as caught:
        check_provider("it", target, context)
    assert caught.value.message.startswith(says)
    provider = build_provider("it", target, context)
    assert isinstance(provider, StartedProvider)
    with pytest.raises(ConfigError) as caught:
        await provider.start()
    assert caught.value.message.startswith(says)
    await provider.close()
