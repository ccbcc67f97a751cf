"""Every kind of grader and of dataset, as a user writes them; in memory, and on a fleet whose run is killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from support.command_line import CommandLine, command_line
from support.evaluations import rows_by_trial, rows_of, totals_of, write_files
from support.process_fleet import ADMIN_TOKEN, process_fleet

#: A grader in five lines.
JUDGES = """
import quintain

@quintain.grader
def polite(case, output):
    return "q" in output

@quintain.grader
def asks(case, output, session):
    return {"pass": session.invoke(output).raw_text == "yes", "reason": f"asked about {case.id}"}

@quintain.grader
async def asks_too(given: quintain.GraderInput, session: quintain.Client):
    results = await session.invoke_batch([given.output, "again"], deadline_seconds=30)
    return sum(item.result.raw_text == "yes" for item in results) / 2
"""

LINES = """
import json, os, sys
from urllib.request import Request, urlopen

for line in sys.stdin:
    given = json.loads(line)
    env = given["env"]
    body = json.dumps({"question": given["output"]}).encode()
    headers = {"Authorization": "Bearer " + env["AGENTV_TARGET_PROXY_TOKEN"], "Content-Type": "application/json"}
    with urlopen(Request(env["AGENTV_TARGET_PROXY_URL"] + "/invoke", body, headers)) as response:
        said = json.load(response)["rawText"]
    print(json.dumps({"score": float(said == "yes"), "details": {"pid": os.getpid()}}), flush=True)
"""

CONFIG = """
targets:
  bot: {provider: mock, judge_target: judge}
  judge: {provider: mock, response: "yes"}
  sage: {provider: python, callable: "sage:judge"}
"""

#: Judges the answer as its words say; counts what it was asked.
SAGE = r"""
import json, re
from pathlib import Path

def judge(request):
    (output,) = re.findall(r"<data-\w+ output>\n(.*?)\n</", request.question, re.DOTALL)
    with (Path(__file__).parent / "judged.txt").open("a") as judged:
        judged.write(output + "\n")
    if output == "q3":
        return "I would rather not say"
    return json.dumps({"pass": output != "q2", "reason": f"it says {output}"})
"""

EVALUATION = """
dataset: cases.jsonl
targets: [bot]
graders:
  - {name: same, builtin: exact}
  - {name: numbered, builtin: numeric}
  - {name: short, builtin: regex, pattern: "^q[0-9]+$"}
  - {name: polite, function: "judges:polite"}
  - {name: asks, function: "judges:asks", target: {max_calls: 1}}
  - {name: asks too, function: "judges:asks_too", target: {max_calls: 2}}
  - {name: lines, command: [python, lines.py], batch: stdin-lines}
  - {name: judged, builtin: llm-judge, prompt: judge.md, judge_target: sage}
"""


def write(folder: Path, *, cases: int = 4, evaluation: str = EVALUATION) -> None:
    write_files(
        folder,
        cases=cases,
        judges_py=JUDGES,
        lines_py=LINES,
        sage_py=SAGE,
        judge_md="Is it right?",
        quintain_yaml=CONFIG,
        eval_yaml=evaluation.replace("numbered, builtin: numeric", "numbered, builtin: contains"),
    )


def test_every_kind_of_grader_grades(shell: CommandLine) -> None:
    write(shell.folder)
    ended = shell.run("run", "eval.yaml", code=1)
    rows = {str(row["caseId"]): row for row in rows_of(shell.folder / "runs" / "eval")}
    first = rows["case-1"]["graders"]
    assert isinstance(first, dict)
    assert {name: grade["score"] for name, grade in first.items()} == dict.fromkeys(first, 1.0)
    assert {name: grade["calls"] for name, grade in first.items()} == {
        "same": 0, "numbered": 0, "short": 0, "polite": 0, "asks": 1, "asks too": 2, "lines": 1, "judged": 1,
    }  # fmt: skip
    assert first["judged"]["reason"] == "it says q1"
    assert rows["case-2"]["score"] == 7 / 8
    # A reply that is no verdict is an error, and no score of 0.
    assert (rows["case-3"]["status"], rows["case-3"]["score"]) == ("error", None)
    assert "error: case-3 · bot: grader judged: The judge gave no verdict" in ended.stderr
    assert totals_of(shell.folder / "runs" / "eval")["calls"] == 4 * 6


def test_a_judge_is_asked_once_per_row_also_when_the_run_is_killed(broker_url: str) -> None:
    evaluation = "dataset: cases.jsonl\ntargets: [bot]\ngraders:" + EVALUATION.rpartition("graders:")[2]
    with process_fleet(broker_url, CONFIG, targets=["bot", "judge", "sage"]) as fleet:
        write(fleet.folder, cases=12, evaluation=evaluation)
        fleet.start_service("metadata")
        fleet.start_service("worker")
        env = {"QUINTAIN_BROKER_URL": broker_url, "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}
        with command_line(fleet.folder, env) as shell:
            output = shell.folder / "runs" / "eval"
            words = ("run", "eval.yaml", "--concurrency", "3", "--graders", "2")
            running = shell.start(*words)
            running.wait_for(lambda _: len(rows_of(output)) >= 2, seconds=60)
            running.kill()
            kept = {str(row["caseId"]) for row in rows_of(output)}
            assert len(kept) < 12
            shell.run(*words, code=1)
            rows = rows_by_trial(output)
            assert len(rows) == 12
            judged = Counter((shell.folder / "judged.txt").read_text().split())
            # What was judged and not yet written is answered from the ledger.
            assert {answer: times for answer, times in judged.items() if times > 1 and answer != "q3"} == {}
            assert rows["case-2", "bot"]["score"] == 7 / 8
