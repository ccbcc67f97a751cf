"""Each prompt × target is a column of its own, in every table and for the same command again."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

from quintain_runner.report.report_files import render_markdown, write_csv, write_junit
from quintain_runner.report.run_report import read_report
from quintain_runner.report.summary import RunSummary
from quintain_runner.report.tables import run_tables
from support.evaluations import EXACT, EvaluationFolder, cases, write_evaluation
from support.fake_client import FakeClient

TARGETS = ("bot", "other")

COLUMNS = ["bot · plain", "bot · brief", "other · plain", "other · brief"]


class World:
    """Two cases, two prompts, two targets that echo, twice each; the first prompt passes, the second one is a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = EvaluationFolder(folder, FakeClient(targets=TARGETS), targets=TARGETS)
        self.rows = cases(2)
        self.prompts: list[object] = [{"name": "plain", "user": "{{ question }}"}, "file://brief.txt"]
        self.brief("Briefly: {{ question }}")

    def brief(self, text: str) -> None:
        (self.folder.path / "brief.txt").write_text(text)

    async def run(self, **settings: object) -> RunSummary:
        write_evaluation(self.folder.path, self.rows, [EXACT], prompts=self.prompts, repeats=2, **settings)
        return await self.folder.run()

    @property
    def asked(self) -> Counter[tuple[str | None, str | None]]:
        return Counter((request.target, request.question) for request in self.folder.asked)


async def test_a_changed_prompt_asks_only_its_columns_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    summary = await world.run()
    questions = [text for n in range(2) for text in (f"q{n}", f"Briefly: q{n}")]
    assert world.asked == {(target, text): 2 for target in TARGETS for text in questions}
    assert len(set(world.folder.client.request_ids)) == 16
    assert {name: (counts.trials, counts.passed) for name, counts in summary.per_target.items()} == dict(
        zip(COLUMNS, [(4, 4), (4, 0)] * 2, strict=True)
    )
    await world.run()
    assert world.asked == {}
    world.brief("Shortly: {{ question }}")
    await world.run()
    assert world.asked == {(target, f"Shortly: q{n}"): 2 for target in TARGETS for n in range(2)}
    world.rows[0]["hint"] = "a field that no prompt names"
    await world.run()
    assert world.asked == {}
    world.prompts.append({"name": "third", "system": "be kind"})
    summary = await world.run()
    assert world.asked == {(target, f"q{n}"): 2 for target in TARGETS for n in range(2)}
    del world.prompts[1:]
    summary = await world.run()
    assert (world.asked, list(summary.per_target), summary.total.graded) == ({}, ["bot · plain", "other · plain"], 8)


async def test_each_prompt_and_target_is_a_column_of_every_table(tmp_path: Path) -> None:
    world = World(tmp_path)
    summary = await world.run()
    out = world.folder.output
    for report in (read_report(out), read_report(out, summary)):
        tables = run_tables(report)
        assert [row[0] for row in tables[0].rows] == COLUMNS
        assert tables[0].title == "2 cases, 2 times each"
        page = render_markdown(report, "quintain run eval.yaml")
        assert all(f"`{name}`" in page for name in COLUMNS)
        write_csv(tmp_path / "rows.csv", report)
        write_junit(tmp_path / "junit.xml", [report])
        with (tmp_path / "rows.csv").open(encoding="utf-8-sig") as file:
            lines = Counter((line["target"], line["prompt"]) for line in csv.DictReader(file))
        assert lines == {(target, prompt): 4 for target in TARGETS for prompt in ("plain", "brief")}
        suites = ET.parse(tmp_path / "junit.xml").getroot().findall("testsuite")
        assert [(suite.get("name"), suite.get("tests"), suite.get("failures")) for suite in suites] == [
            (f"eval.{name}", "4", failures) for name, failures in zip(COLUMNS, "0404", strict=True)
        ]
    record = json.loads((out / "run.json").read_text())
    assert record["configuration"]["prompts"] == ["plain", "brief"]
    assert list(record["targets"]) == list(record["statistics"]["targets"]) == COLUMNS
    assert (record["targets"]["bot · brief"]["target"], record["targets"]["bot · brief"]["prompt"]) == ("bot", "brief")
