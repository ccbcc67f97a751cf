"""Weights, tags and reducers: computed from the kept rows, without a call."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ConfigError
from quintain_runner.plan.scoring import tags_of
from quintain_runner.report.report_files import render_markdown
from quintain_runner.report.run_report import read_report
from quintain_runner.report.summary import RunSummary
from quintain_runner.report.tables import run_tables
from quintain_runner.report.text_table import TextTable
from quintain_runner.spec.evaluation import load_evaluation
from quintain_runner.statistics.frame import MAX_TAGS, OTHER_TAGS, build_tagged_frames
from support.evaluations import EXACT, EvaluationFolder, Json, write_evaluation
from support.fake_client import FakeClient
from support.results_folder import graded_row

SAME: Json = {**EXACT}

LETTER: Json = {"name": "letter", "builtin": "regex", "pattern": "^q"}


class World:
    """Three cases, each twice: the first passes both times, the second once, the third never; ``letter`` always."""

    def __init__(self, folder: Path) -> None:
        self.folder = EvaluationFolder(folder, FakeClient(self.answer))
        self.folder.concurrency = 1
        self.rows: list[Json] = [
            {"id": "a", "question": "qa", "expected": "qa", "topic": "easy", "tags": ["x", "y"]},
            {"id": "b", "question": "qb", "expected": "qb", "topic": "easy", "tags": ["y"]},
            {"id": "c", "question": "qc", "expected": "other"},
        ]
        self.repeat: dict[str, Iterator[int]] = {row["question"]: itertools.count() for row in self.rows}

    async def answer(self, request: InvokeRequest) -> str:
        question = request.question or ""
        return "q wrong" if question == "qb" and next(self.repeat[question]) else question

    async def run(self, graders: list[Json], **settings: object) -> RunSummary:
        write_evaluation(self.folder.path, self.rows, graders, repeats=2, **settings)
        return await self.folder.run()

    def tables(self, summary: RunSummary | None = None) -> list[TextTable]:
        return run_tables(read_report(self.folder.output, summary))


async def test_a_changed_weight_recomputes_the_scores_and_makes_no_call(tmp_path: Path) -> None:
    world = World(tmp_path)
    first = await world.run([SAME, LETTER])
    assert (first.total.mean_score, first.total.passed) == (pytest.approx(0.75), 3)
    fingerprints = [row.graders["same"].fingerprint for row in world.folder.rows()]
    second = await world.run([{**SAME, "weight": 3}, LETTER])
    assert (second.total.mean_score, second.total.passed) == (pytest.approx(0.625), 3)
    third = await world.run([{**SAME, "weight": 0}, LETTER])
    assert (third.total.mean_score, third.total.passed, third.total.graded) == (1.0, 6, 6)
    assert world.folder.asked == []
    assert [row.graders["same"].fingerprint for row in world.folder.rows()] == fingerprints
    report = read_report(world.folder.output)
    assert report.analysis.targets["bot"].graders["same"].score.value == 0.5
    record = world.folder.record
    assert [entry["plan"]["recomputed"] for entry in record["history"]] == [0, 6, 6]


async def test_the_results_are_shown_by_the_values_of_a_field(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.run([SAME])
    assert len(world.tables()) == 1
    summary = await world.run([SAME], by=["topic", "tags"])
    assert world.folder.asked == []
    for tables in (world.tables(), world.tables(summary)):
        shown = {table.title: [(*row[:4], row[5]) for row in table.rows] for table in tables}
        assert shown["By topic"] == [("(none)", "bot", "2", "0 %", "0.000"), ("easy", "bot", "4", "75 %", "0.750")]
        assert shown["By tags"] == [
            ("(none)", "bot", "2", "0 %", "0.000"),
            ("x", "bot", "2", "100 %", "1.000"),
            ("y", "bot", "4", "75 %", "0.750"),
        ]
    assert "### By topic" in render_markdown(read_report(world.folder.output), "quintain run eval.yaml")
    record = world.folder.record
    assert record["statistics"]["by"]["topic"]["easy"]["bot"]["score"]["value"] == 0.75
    await world.run([SAME], by=["topic"])
    assert [table.title for table in world.tables()][1:] == ["By topic"]


async def test_reduced_repeats_are_in_every_table_with_the_reducers_name(tmp_path: Path) -> None:
    world = World(tmp_path)
    graders = [{**SAME, "reduce": "pass^2"}, LETTER]
    summary = await world.run(graders, reduce="pass@2", by=["topic"])
    for tables in (world.tables(), world.tables(summary)):
        targets, by_grader, by_topic = tables
        at = targets.columns.index("pass@2")
        assert [row[at] for row in targets.rows] == ["0.667"]
        assert [row[-2] for row in by_grader.rows] == ["pass^2 0.333", "pass@2 1.000"]
        assert (by_topic.columns[-2], [row[-2] for row in by_topic.rows]) == ("pass@2", ["0.000", "1.000"])
    await world.run(graders, reduce="majority")
    assert world.folder.asked == []
    assert "majority" in world.tables()[0].columns
    (world.folder.output / "results.jsonl").write_bytes(b"".join(row.to_line() for row in world.folder.rows()[1:]))
    unfinished = world.folder.record
    unfinished["configuration"]["reduce"] = {"row": "pass@2"}
    (world.folder.output / "run.json").write_text(json.dumps({**unfinished, "statistics": None}))
    reduced = read_report(world.folder.output).analysis.targets["bot"].row
    assert (reduced.reduced.left_out, reduced.reduced.estimate.cases) == (1, 2)
    assert len(world.tables()[0].notes) == 1


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"graders": [{**SAME, "weight": -1}]}, "graders[0].weight"),
        ({"reduce": "pass@3"}, "reduce"),
        ({"reduce": "best"}, "reduce"),
        ({"graders": [{**SAME, "reduce": "pass^3"}]}, "reduce"),
        ({"graders": [SAME, SAME]}, "graders: named twice: same"),
        ({"by": [""]}, "by[0]"),
    ],
)
def test_what_cannot_be_scored_is_refused(tmp_path: Path, settings: Json, place: str) -> None:
    write_evaluation(tmp_path, World(tmp_path).rows, [SAME])
    whole = {"dataset": "cases.jsonl", "graders": [SAME], "repeats": 2, **settings}
    (tmp_path / "eval.yaml").write_text(json.dumps(whole))
    with pytest.raises(ConfigError) as refused:
        load_evaluation(tmp_path / "eval.yaml")
    assert place in str(refused.value)


def test_a_value_is_a_tag_and_a_list_is_several() -> None:
    assert [tags_of(value) for value in (None, "", [])] == [["(none)"]] * 3
    assert [tags_of(value) for value in ("a", 1, True, {"b": 1})] == [["a"], ["1"], ["true"], ['{"b": 1}']]
    assert tags_of(["a", "a", 2, None]) == ["a", "2", "(none)"]


def test_tags_beyond_the_most_are_counted_together() -> None:
    rows = [graded_row(str(n), 1.0).with_fields(tags={"n": [str(n)]}) for n in range(MAX_TAGS + 5)]
    by_tag = build_tagged_frames(rows, ["bot"], repeats=1).by_tag["n"]
    assert len(by_tag) == MAX_TAGS + 1
    assert len(by_tag[OTHER_TAGS]["bot"].trial_hashes) == 5
