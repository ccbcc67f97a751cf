"""The page of a case whose answer judges of its own have judged: what each was sent is beside its verdict."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from quintain.contracts.invoke import InvokeRequest
from quintain_view.case_page import CaseOrigin, ShownVerdict, case_page
from quintain_view.html_report import write_html_report
from quintain_view.index_writer import update_index
from quintain_view.reading import read_case_page
from quintain_view.text import shown as shown_text
from quintain_view.text import shown_messages
from support.evaluations import EXACT, EvaluationFolder, Json, cases, write_evaluation
from support.fake_client import FakeClient
from support.html_reports import cards_of

JURY: Json = {"builtin": "llm-judge", "judge_targets": ["sage", "owl"], "instructions": "Is {{ it }} short?"}
RUBRIC: Json = {"builtin": "llm-judge", "judge_target": "sage", "rubric": [{"id": "kind", "text": "It is kind."}]}


async def answer(request: InvokeRequest) -> str:
    criteria = {"kind": {"score": 1}} if "is kind" in (request.system_prompt or "") else {}
    return "yes" if request.target == "bot" else json.dumps({"pass": True, "criteria": criteria})


def judgements(verdicts: list[ShownVerdict]) -> Iterator[ShownVerdict]:
    """The verdicts that one judge gave, also in juries and lists."""
    for verdict in verdicts:
        yield from [verdict] if verdict.judge else judgements(verdict.votes)


async def test_what_a_cases_own_judges_were_sent_is_shown_also_of_those_in_lists(tmp_path: Path) -> None:
    client = FakeClient(answer, targets=("bot", "sage", "owl"))
    folder, rows = EvaluationFolder(tmp_path, client), cases(2)
    rows[0]["graders"] = [JURY, {**RUBRIC, "not": True}, {"any": [{"all": [RUBRIC]}, {"builtin": "exact"}]}]
    write_evaluation(tmp_path, rows, [EXACT, {**JURY, "name": "shared", "instructions": "Is it short?"}])
    await folder.run()
    update_index(folder.output)
    replies = {shown_text(json.dumps({"pass": True, "criteria": one})) for one in ({}, {"kind": {"score": 1}})}
    for case_id, count in (("case-0", 6), ("case-1", 2)):
        page, _ = read_case_page(folder.output, case_id)
        assert {verdict.reply for verdict in judgements(page.answers[0].verdicts)} <= replies
        shown = [verdict.prompt() for verdict in judgements(page.answers[0].verdicts)]
        sent = [one for one in client.requests if one.target != "bot" and one.eval_case_id == case_id]
        assert len(shown) == len(sent) == count
        for request in sent:
            assert shown_messages(request.conversation()) in shown
    # Of a judge that nothing is recorded of nobody knows what it was sent.
    rows = folder.rows_by_case()
    page = case_page("case-1", [rows["case-1"]], CaseOrigin("e", "f"))
    assert [verdict.prompt() for verdict in judgements(page.answers[0].verdicts)] == [[], []]
    write_html_report(tmp_path / "report.html", [folder.output])
    assert all("criteria" in card for card in cards_of((tmp_path / "report.html").read_text()).values())
