"""`quintain.sync` as a plain script uses it: answers, Ctrl-C, threads, and an end that nobody has to arrange."""

from __future__ import annotations

import inspect
import signal
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import quintain
from quintain.contracts.session import OpenSession
from quintain.sync import SyncClient
from support.running_gateway import RunningGateway, run_program
from support.waiting import block_until

UNCLOSED_SCRIPT = """
import quintain
target = quintain.sync.connect()
print(target.invoke("x").raw_text)
"""

INTERRUPTED = """
import quintain
with quintain.sync.connect() as target:
    print("asking", flush=True)
    try:
        target.{asks}
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        raise SystemExit(7)
"""


def connected(env: Mapping[str, str]) -> SyncClient:
    return quintain.sync.connect(env["QUINTAIN_GATEWAY_URL"], env["QUINTAIN_SESSION_TOKEN"])


def test_it_has_the_whole_interface_of_the_asynchronous_one() -> None:
    for name in ("invoke", "send", "invoke_batch", "get_info", "open_child"):
        asynchronous, blocking = getattr(quintain.Client, name), getattr(SyncClient, name)
        assert inspect.signature(asynchronous) == inspect.signature(blocking), name
        assert not inspect.iscoroutinefunction(blocking), name
        assert blocking.__doc__ == asynchronous.__doc__, name


def test_every_method_answers_and_faults_are_raised(gateway: RunningGateway) -> None:
    with connected(gateway.open_session_shell("echo", 4).env) as target:
        assert target.invoke("x", system_prompt="Be brief.").raw_text == "x"
        assert target.send(quintain.InvokeRequest(question="y"), request_id="mine", deadline_seconds=30).raw_text == "y"
        items = target.invoke_batch(["a", {"question": "b", "target": "judge"}])
        assert [item.result and item.result.raw_text for item in items] == ["a", "Paris"]
        assert target.open_child(OpenSession(default_target="echo", max_calls=1)).parent_id
        with pytest.raises(quintain.BudgetExhausted):
            target.invoke("x")
        assert (target.get_info().call_count, target.get_info().max_calls) == (4, 4)


async def test_it_works_inside_a_running_loop(gateway: RunningGateway) -> None:
    with connected(gateway.open_session_shell().env) as target:
        assert target.invoke("as in Jupyter").raw_text == "as in Jupyter"


def test_threads_share_one(gateway: RunningGateway) -> None:
    with connected(gateway.open_session_shell().env) as target, ThreadPoolExecutor(8) as threads:
        texts = list(threads.map(lambda number: target.invoke(str(number)).raw_text, range(24)))
    assert texts == [str(number) for number in range(24)]


def test_what_is_closed_says_so_and_closing_twice_is_nothing(gateway: RunningGateway) -> None:
    target = connected(gateway.open_session_shell().env)
    target.close()
    target.close()
    with pytest.raises(quintain.BusError, match="connect again"):
        target.invoke("x")


def test_closing_ends_what_another_thread_waits_for_and_takes_it_back(gateway: RunningGateway) -> None:
    evaluator = gateway.open_session_shell("slow")
    target = connected(evaluator.env)
    with connected(evaluator.env) as watching, ThreadPoolExecutor(1) as thread:
        asking = thread.submit(target.invoke, "x")
        block_until(lambda: watching.get_info().running == 1)
        target.close()
        with pytest.raises(quintain.BusError, match="closed before the answer came"):
            asking.result(10)
        block_until(lambda: watching.get_info().running == 0)


def test_a_token_that_opens_nothing_leaves_nothing_behind(gateway: RunningGateway) -> None:
    with pytest.raises(quintain.Unauthorized):
        quintain.sync.connect(gateway.url, "no token at all")
    with pytest.raises(quintain.ConfigError):
        quintain.sync.connect("ftp://nowhere", "a token")


def test_what_is_left_open_is_closed_when_the_program_ends(gateway: RunningGateway) -> None:
    ended = run_program([sys.executable, "-c", UNCLOSED_SCRIPT], gateway.open_session_shell().env, gateway.shell.folder)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "x\n", "")


@pytest.mark.parametrize("asks", ['invoke("x")', 'invoke_batch(["x", "y"])'])
def test_ctrl_c_ends_the_wait_and_takes_the_call_back(gateway: RunningGateway, tmp_path: Path, asks: str) -> None:
    evaluator = gateway.open_session_shell("slow")
    (tmp_path / "asks.py").write_text(INTERRUPTED.format(asks=asks))
    running = evaluator.start(program=str(tmp_path / "asks.py"))
    with connected(evaluator.env) as watching:
        block_until(lambda: watching.get_info().running > 0)
        ended = running.stop(signal.SIGINT, seconds=20)
        assert (ended.code, ended.stdout, ended.stderr) == (7, "asking\ninterrupted\n", "")
        block_until(lambda: (watching.get_info().running, watching.get_info().reserved) == (0, 0))
