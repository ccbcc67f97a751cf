"""The example evaluations: they load, and the one without keys is graded as its README says."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType

import pytest

from quintain.config import load_config
from quintain.contracts.invoke import InvokeRequest
from quintain_runner.engine.run import run_evaluation
from quintain_runner.engine.run_setup import RunOptions, RunSetup
from quintain_runner.graders.base import GraderEnvironment
from quintain_runner.plan.dataset import open_dataset
from quintain_runner.plan.trials import choose_targets
from quintain_runner.report.progress_display import NoProgressDisplay
from quintain_runner.report.summary import ExitCode
from quintain_runner.spec.evaluation import load_evaluation
from support.fake_client import FakeClient

EXAMPLES = Path(__file__).parents[3] / "examples"
CAPITALS = EXAMPLES / "capitals"


@pytest.fixture
def bot() -> ModuleType:
    spec = importlib.util.spec_from_file_location("capitals_bot", CAPITALS / "bot.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class GraderProxy(ThreadingHTTPServer):
    """The one path of the proxy API that judge.py calls, with the example's judge behind it."""

    def __init__(self, client: FakeClient, bot: ModuleType) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.client, self.bot = client, bot


class _Handler(BaseHTTPRequestHandler):
    server: GraderProxy

    def do_POST(self) -> None:
        token = self.headers["Authorization"].removeprefix("Bearer ")
        self.server.client.spend(token, 1)
        asked = InvokeRequest.from_wire(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/invoke"
        answer = json.dumps({"rawText": self.server.bot.judge(asked)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def grader_proxy(bot: ModuleType) -> Iterator[GraderProxy]:
    async def answer_judge(request: InvokeRequest) -> str:
        said = getattr(bot, request.target or "")(request)
        assert isinstance(said, str)
        return said

    client = FakeClient(answer_judge, max_calls=100, targets=("scholar", "guesser", "judge"))
    server = GraderProxy(client, bot)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def run_setup(grader_proxy: GraderProxy, output: Path) -> RunSetup:
    return RunSetup(
        options=RunOptions(path=CAPITALS / "eval.yaml", output=output),
        evaluation=load_evaluation(CAPITALS / "eval.yaml"),
        targets=("scholar", "guesser"),
        client=grader_proxy.client,
        read_session_info=grader_proxy.client.read_session_info,
        close_session=grader_proxy.client.close_child,
        grader_environment=GraderEnvironment(f"http://127.0.0.1:{grader_proxy.server_port}"),
        judge_targets={},
        env={"PATH": str(Path(sys.executable).parent)},
        progress=NoProgressDisplay(),
    )


@pytest.mark.parametrize("folder", ["capitals", "real-model"])
def test_an_examples_files_fit_together(folder: str) -> None:
    evaluation = load_evaluation(EXAMPLES / folder / "eval.yaml")
    configured = load_config(EXAMPLES / folder / "quintain.yaml").targets
    assert choose_targets(evaluation, list(configured))
    judges = {getattr(grader, "judge_target", None) for grader in evaluation.spec.graders}
    assert judges - {None} <= configured.keys()
    assert open_dataset(evaluation, EXAMPLES, {}).cases == 12


async def test_the_example_without_keys_is_graded_by_its_judge(tmp_path: Path, grader_proxy: GraderProxy) -> None:
    summary = await run_evaluation(run_setup(grader_proxy, tmp_path))
    scholar, guesser = summary.per_target["scholar"], summary.per_target["guesser"]
    assert (scholar.passed, scholar.mean_score) == (12, 1.0)
    assert (guesser.passed, guesser.mean_score) == (7, 0.625)
    assert (summary.calls, summary.total.calls, summary.exit_code) == (48, 48, ExitCode.PASSED)
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    (chatty,) = (row for row in rows if row["target"] == "guesser" and row["caseId"] == "it")
    assert [chatty["graders"][name]["pass"] for name in ("same", "judged")] == [False, True]
    assert chatty["graders"]["judged"]["calls"] == 1


async def test_a_judge_that_cannot_reach_its_gateway_is_an_error_and_never_a_score(
    tmp_path: Path, grader_proxy: GraderProxy
) -> None:
    nowhere = replace(run_setup(grader_proxy, tmp_path), grader_environment=GraderEnvironment("http://127.0.0.1:1"))
    summary = await asyncio.wait_for(run_evaluation(nowhere), timeout=60)
    assert (summary.total.errors, summary.total.graded, summary.exit_code) == (24, 0, ExitCode.ERRORS)
