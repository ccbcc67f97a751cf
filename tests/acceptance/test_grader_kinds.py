"""Every kind of grader and of dataset, as a user writes them."""

from __future__ import annotations

from support.command_line import CommandLine
from support.evaluations import rows_of, totals_of, write_files

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

#: Judges the answer as its words say.
SAGE = r"""
import json, re

def judge(request):
    (output,) = re.findall(r"<data-\w+ output>\n(.*?)\n</", request.question, re.DOTALL)
    if output == "q3":
        return "I would rather not say"
    return json.dumps({"pass": output != "q2", "reason": f"it says {output}"})
"""

EVALUATION = """
dataset: cases.jsonl
targets: [bot]
graders:
  - {name: same, builtin: exact}
  - {name: numbered, builtin: contains}
  - {name: short, builtin: regex, pattern: "^q[0-9]+$"}
  - {name: polite, function: "judges:polite"}
  - {name: asks, function: "judges:asks", target: {max_calls: 1}}
  - {name: asks too, function: "judges:asks_too", target: {max_calls: 2}}
  - {name: lines, command: [python, lines.py], batch: stdin-lines}
  - {name: judged, builtin: llm-judge, prompt: judge.md, judge_target: sage}
"""


def test_every_kind_of_grader_grades(shell: CommandLine) -> None:
    write_files(
        shell.folder,
        cases=4,
        judges_py=JUDGES,
        lines_py=LINES,
        sage_py=SAGE,
        judge_md="Is it right?",
        quintain_yaml=CONFIG,
        eval_yaml=EVALUATION,
    )
    ended = shell.run("run", "eval.yaml", "--graders", "1", code=1)
    rows = {str(row["caseId"]): row for row in rows_of(shell.folder / "runs" / "eval")}
    first = rows["case-1"]["graders"]
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
