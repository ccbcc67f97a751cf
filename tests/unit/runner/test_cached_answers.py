"""Which answers a run takes from the cache, over a fake session: by what decides them, and of whom it may."""

from __future__ import annotations

import itertools
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quintain.config.loader import load_configuration
from quintain.contracts.agents import Continuation
from quintain.contracts.invoke import InvokeRequest, Result
from quintain.settings import read_settings
from quintain_runner.engine import answers
from quintain_runner.report.progress import ProgressState
from quintain_runner.report.progress_display import NoProgressDisplay
from quintain_runner.report.summary import ExitCode, RunSummary
from quintain_runner.results.answer_store import AnswerStore
from support.evaluations import EXACT, EvaluationFolder, Json, write_evaluation, write_script
from support.fake_client import FakeClient

JUDGED: Json = {"name": "judged", "builtin": "llm-judge", "judge_target": "judge", "instructions": "Is it so?"}
MODEL: Json = {"provider": "mock"}
FUNCTION: Json = {"provider": "python", "callable": "m:f"}


class Provider(FakeClient):
    """A session of its own for each run. A conversation that its target keeps has turns that say so."""

    keeps_conversation = False

    async def send(self, request: InvokeRequest, **fields: Any) -> Result:
        result = await super().send(request, **fields)
        is_kept = self.keeps_conversation and request.turn is not None and not request.turn.last
        return result.with_fields(continuation=Continuation(state="s")) if is_kept else result


class WarningsOnly(NoProgressDisplay):
    """Keeps the warnings of a run."""

    def start(self, progress_state: ProgressState) -> None:
        self.warnings = progress_state.warnings


class Scene:
    """A cache, and runs of evaluations in fresh folders that use it.

    Each answer of a target is another; a judge gives the ``verdict``. ``fingerprints`` are those that workers report
    and differ from their names.
    """

    summary: RunSummary

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs, self.answers = folder, itertools.count(), itertools.count()
        self.verdict, self.fingerprints, self.keeps_conversation = '{"pass": true}', dict[str, str | None](), False

    async def reply(self, request: InvokeRequest) -> str:
        """Answer a call."""
        return self.verdict if request.target == "judge" else f"answer {next(self.answers)}"

    async def run(self, rows: list[Json], configured: Json | None = None, **options: Any) -> EvaluationFolder:
        """Run an evaluation of these cases by all targets of a configuration but the judge."""
        configured = configured or {"bot": MODEL}
        spec = {"graders": [JUDGED, EXACT], **options.pop("spec", {})}
        place = self.folder / f"run-{next(self.runs)}"
        place.mkdir()
        names = tuple(configured)
        write_evaluation(place, rows, spec.pop("graders"), targets=list(names), **spec)
        (place / "quintain.yaml").write_text(json.dumps({"targets": {"judge": MODEL, **configured}}))
        client = Provider(self.reply, targets=(*names, "judge"))
        client.fingerprints |= self.fingerprints
        client.keeps_conversation = self.keeps_conversation
        progress = options.pop("progress", NoProgressDisplay())
        folder = EvaluationFolder(place, client, targets=names, progress=progress)
        run = folder.settings(cache=str(self.folder / "cache.sqlite3"), **options)
        config = load_configuration(read_settings({}), place / "quintain.yaml", start_folder=place)
        self.summary = await folder.run(replace(run, config=config))
        return folder


def case(name: str, question: str = "q", **fields: object) -> Json:
    return {"id": name, "question": question, "expected": "e", **fields}


def outputs(folder: EvaluationFolder) -> dict[tuple[str, int], str | None]:
    return {(row.case_id, row.repeat): row.output for row in folder.rows()}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def test_equal_requests_have_answers_of_their_own_and_names_decide_nothing(scene: Scene) -> None:
    first = await scene.run([case("a"), case("b")], spec={"repeats": 2})
    assert first.called("bot", "judge") == (4, 4)
    assert len(set(outputs(first).values())) == 4
    second = await scene.run([case("x"), case("y")], spec={"repeats": 2, "threshold": 0.5})
    assert second.called("bot", "judge") == (0, 0)
    names = {"a": "x", "b": "y"}
    assert outputs(second) == {(names[case_id], repeat): said for (case_id, repeat), said in outputs(first).items()}
    # One repeat more, and a prompt that asks the same, ask only what nobody has asked.
    prompt = {"name": "p", "user": "{{ question }}"}
    third = await scene.run([case("x")], spec={"repeats": 3})
    assert third.called("bot", "judge") == (1, 1)
    fourth = await scene.run([case("x")], spec={"repeats": 3, "prompts": [prompt]})
    assert fourth.called("bot", "judge") == (0, 0)


async def test_targets_that_are_configured_alike_have_answers_of_their_own(scene: Scene) -> None:
    scene.fingerprints["twin"] = "fingerprint-of-bot"
    told = []
    for asked in ((1, 1, 2), (0, 0, 0)):
        folder = await scene.run([case("a")], {"bot": MODEL, "twin": MODEL})
        assert folder.called("bot", "twin", "judge") == asked
        told.append({row.target: row.output for row in folder.rows()})
    assert told[0] == told[1]
    assert told[0]["bot"] != told[0]["twin"]


async def test_a_comparison_is_counted_once_although_two_rows_have_it(scene: Scene) -> None:
    scene.verdict = '{"better": "first", "reason": "r"}'
    arena: Json = {"name": "arena", "builtin": "pairwise", "against": "all", "judge_target": "judge"}
    for cached in (0, 2 + 2):
        configured = {"bot": MODEL, "other": MODEL}
        folder = await scene.run([case("a")], configured, spec={"graders": [arena, EXACT]})
        assert scene.summary.total.cached == cached
        assert sum(folder.called("bot", "other", "judge")) == 4 - cached


async def test_another_target_and_another_question_are_asked(scene: Scene) -> None:
    await scene.run([case("a")])
    folder = await scene.run([case("a", "other")])
    assert folder.called("bot", "judge") == (1, 1)
    scene.fingerprints["bot"] = "another"
    folder = await scene.run([case("a")])
    assert folder.called("bot", "judge") == (1, 1)
    scene.fingerprints = {"judge": None}
    for _ in range(2):
        # One whose worker reports no fingerprint is always asked.
        folder = await scene.run([case("a")])
        assert folder.called("bot", "judge") == (0, 1)


async def test_functions_are_asked_unless_they_are_cacheable_and_know_their_case(scene: Scene) -> None:
    for configured, asked in ((FUNCTION, 1), (FUNCTION, 1), ({**FUNCTION, "cacheable": True}, 1)):
        folder = await scene.run([case("a")], {"bot": configured})
        assert folder.called("bot") == (asked,)
    folder = await scene.run([case("a")], {"bot": {**FUNCTION, "cacheable": True}})
    assert folder.called("bot") == (0,)
    folder = await scene.run([case("b")], {"bot": {**FUNCTION, "cacheable": True}})
    assert folder.called("bot") == (1,)
    folder = await scene.run([case("a")], {"bot": {**MODEL, "cacheable": False}})
    assert folder.called("bot") == (1,)


async def test_a_program_that_is_cacheable_is_not_run_again(scene: Scene) -> None:
    source = "import json, pathlib; open(pathlib.Path(PATH), 'a').write('x'); print(json.dumps({'score': 0.5}))"
    ran = scene.folder / "ran"
    command = write_script(scene.folder, "grade.py", source.replace("PATH", repr(str(ran))))
    program: Json = {"name": "own", "command": [command[0], str(scene.folder / command[1])]}
    for cacheable, times in ((False, 1), (False, 2), (True, 3), (True, 3)):
        folder = await scene.run([case("a")], spec={"graders": [{**program, "cacheable": cacheable}]})
        assert [row.score for row in folder.rows()] == [0.5]
        assert len(ran.read_text()) == times


async def test_a_reply_that_is_no_verdict_and_a_failure_are_asked_again(scene: Scene) -> None:
    scene.verdict = "hm"
    await scene.run([case("a")])
    scene.verdict = '{"pass": true}'
    folder = await scene.run([case("a")])
    assert (folder.called("bot", "judge"), scene.summary.total.cached) == ((0, 1), 1)


async def test_the_turns_of_a_conversation_are_found_but_not_where_its_target_keeps_it(scene: Scene) -> None:
    talk = case("a", turns=["and?"])
    for asked in ((2, 1), (0, 0)):
        folder = await scene.run([talk])
        assert folder.called("bot", "judge") == asked
    scene.fingerprints["bot"], scene.keeps_conversation = "keeps", True
    for _ in range(2):
        folder = await scene.run([talk])
        assert folder.called("bot") == (2,)


async def test_a_run_without_content_has_no_store(scene: Scene) -> None:
    for _ in range(2):
        folder = await scene.run([case("a")], keeps_content=False)
        assert folder.called("bot", "judge") == (1, 1)
        assert not [file.name for file in folder.output.glob("answers*")]
    assert not (scene.folder / "cache.sqlite3").exists()


async def test_a_cache_that_another_process_holds_is_told_once_and_the_run_goes_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "open_cache", lambda path: AnswerStore.open(path, lock_seconds=0))
    AnswerStore.open(scene.folder / "cache.sqlite3").close()
    progress = WarningsOnly()
    with closing(sqlite3.connect(scene.folder / "cache.sqlite3")) as other:
        other.execute("BEGIN IMMEDIATE")
        folder = await scene.run([case("a"), case("b"), case("c")], progress=progress)
        assert (folder.called("bot"), scene.summary.exit_code) == ((3,), ExitCode.PASSED)
    assert [warning.partition(": ")[2] for warning in progress.warnings] == [
        "another process holds it; the run goes on without the cache"
    ]


async def test_a_row_says_what_the_cache_had(scene: Scene) -> None:
    await scene.run([case("a")])
    folder = await scene.run([case("a")])
    row = folder.rows()[0]
    assert (row.cached, row.calls, row.token_usage.input, scene.summary.total.cached) == (2, 0, 0, 2)
    assert row.answer.token_usage is not None
