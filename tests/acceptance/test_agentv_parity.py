"""AgentV's own command and ``quintain run`` on the same cases, the same target and the same graders: the same scores.

The graders are programs as AgentV's users write them: they read what both put on stdin, print AgentV's result, and one
of them calls a model by the variables it finds. AgentV 4.42.4 starts no proxy of its own for it, so that there it finds
our gateway's, as `quintain snippet` prints them. Another one keeps what it read, and that is compared field by field.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import CommandLine, command_line
from support.evaluations import Json, rows_of
from support.running_gateway import run_gateway, run_program

CASES = [{"id": f"c{n}", "question": f"Item {n}: which way?", "expected": "north east south"} for n in (1, 2, 4)]

#: The target: says as many directions as the item's number has it.
BOT = """
import re, sys
prompt, answer = sys.argv[1:3]
number = int(re.search(r"Item (\\d+)", open(prompt).read())[1])
open(answer, "w").write("I see: " + " ".join(["north", "east", "south", "west"][: number % 5]))
"""

WORDS = """
import json, sys
case = json.load(sys.stdin)
(expected,) = case["expected_output"]
said = case["output"].split()
assertions = [{"text": f"it says {word}", "passed": word in said} for word in expected["content"].split()]
print(json.dumps({"score": sum(one["passed"] for one in assertions) / len(assertions), "assertions": assertions}))
"""

#: Leaves the score to whoever started it: the share of what passed.
JUDGED = """
import json, os, sys, urllib.request
case = json.load(sys.stdin)
body = json.dumps({"question": case["output"], "evalCaseId": case["criteria"]}).encode()
ask = urllib.request.Request(os.environ["AGENTV_TARGET_PROXY_URL"] + "/invoke", data=body, headers={
    "Authorization": "Bearer " + os.environ["AGENTV_TARGET_PROXY_TOKEN"], "Content-Type": "application/json"})
with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(ask, timeout=60) as response:
    said = json.load(response)["rawText"]
print(json.dumps({"assertions": [{"text": word, "passed": word in said} for word in ("north", "west")]}))
"""

#: Keeps what it reads, in the folder of whoever runs it.
KEEPS = """
import json, os, sys
case = json.load(sys.stdin)
name = case["trace"]["metadata"]["eval_case_id"] + ".json"
with open(os.path.join("theirs" if os.environ.get("OF_AGENTV") else "ours", name), "w") as kept:
    json.dump(case, kept)
print('{"score": 1, "assertions": [{"text": "kept", "passed": true}]}')
"""

#: What no two programs say alike: how long it took and when, and what the row has beside it.
THEIR_OWN = {"duration_ms", "start_time", "end_time", "metadata"}

#: The same judge for both: it repeats what it is shown.
CONFIG = """
targets:
  candidate: {provider: command, command: [python3, bot.py, "{prompt_file}", "{output_file}"], timeout_seconds: 60}
  judge: {provider: mock}
"""
AGENTV_TARGETS = (
    'targets: [{name: candidate, provider: cli, command: "python3 bot.py {PROMPT_FILE} {OUTPUT_FILE}", '
    "timeout_seconds: 60}]\n"
)

GRADERS = ("words", "judged", "keeps")
SCRIPTS = {"bot.py": BOT, "words.py": WORDS, "judged.py": JUDGED, "keeps.py": KEEPS}

pytestmark = pytest.mark.timeout(700)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One folder for both: the target, the graders, and each one's own files about them."""
    for name, text in {**SCRIPTS, "quintain.yaml": CONFIG}.items():
        (tmp_path / name).write_text(text)
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    (tmp_path / "cases.jsonl").write_text("".join(f"{json.dumps(case)}\n" for case in CASES))
    graders = [{"name": name, "command": ["python3", f"{name}.py"], "judge_target": "judge"} for name in GRADERS]
    evaluation = {"dataset": "cases.jsonl", "targets": ["candidate"], "graders": graders}
    (tmp_path / "eval.yaml").write_text(json.dumps(evaluation))
    (tmp_path / ".agentv").mkdir()
    (tmp_path / ".agentv" / "targets.yaml").write_text(AGENTV_TARGETS)
    assertions = [{"name": one["name"], "type": "code-grader", "command": one["command"]} for one in graders]
    tests = [
        {
            "id": case["id"],
            "criteria": case["expected"],
            "input": case["question"],
            "expected_output": case["expected"],
            "assertions": assertions,
        }
        for case in CASES
    ]
    agentv = {"description": "the same", "execution": {"target": "candidate"}, "tests": tests}
    (tmp_path / "it.eval.yaml").write_text(json.dumps(agentv))
    return tmp_path


def test_agentvs_command_and_ours_give_the_same_scores(agentv: Path, folder: Path) -> None:
    with command_line(folder) as shell:
        shell.run("run", "eval.yaml")
    ours = {str(row["caseId"]): grader_scores(row["graders"]) for row in rows_of(folder / "runs" / "eval")}
    scores = {str(row["caseId"]): row["score"] for row in rows_of(folder / "runs" / "eval")}

    rows = agentvs_rows(agentv, folder)
    theirs = {str(row["test_id"]): grader_scores({one["name"]: one for one in row["scores"]}) for row in rows}
    assert ours == theirs
    assert scores == pytest.approx({str(row["test_id"]): row["score"] for row in rows})
    assert len(set(map(str, ours.values()))) == len(CASES), "the graders tell cases apart"
    for case in CASES:
        read, theirs_read = (
            json.loads((folder / whose / f"{case['id']}.json").read_text()) for whose in ("ours", "theirs")
        )
        assert read.keys() >= theirs_read.keys()
        assert common_fields(read, theirs_read) == common_fields(theirs_read, theirs_read)


def agentvs_rows(agentv: Path, folder: Path) -> list[Json]:
    """What AgentV wrote, started in an environment that knows our gateway."""
    (folder / "door").mkdir()
    with run_gateway(folder / "door", "targets: {judge: {provider: mock}}\n") as door:
        evaluator = door.open_session_shell("judge", len(CASES))
        variables = evaluator.run("snippet", "agentv", "--json").json["variables"]
        assert isinstance(variables, dict)
        env = {**agentv_environment(evaluator), **variables, "HOME": str(folder / "home"), "OF_AGENTV": "1"}
        ended = run_program([str(agentv), "eval", "run", "it.eval.yaml", "--output", "out"], env, folder)
        index = folder / "out" / "index.jsonl"
        assert index.exists(), ended
        assert evaluator.run("info", "--json").json["callCount"] == len(CASES)
        return [json.loads(line) for line in index.read_text().splitlines()]


def agentv_environment(shell: CommandLine) -> dict[str, str]:
    """The environment of a shell that never heard of us."""
    return {name: value for name, value in shell.env.items() if not name.startswith("QUINTAIN_")}


def common_fields(read: Json, like: Json) -> Json:
    """What both programs say of a case, from what a grader read: the fields that the other has."""
    fields = {name: read[name] for name in like.keys() - THEIR_OWN}
    for name in ("trace", "trace_summary"):
        own, other = read[name], like[name]
        fields[name] = {key: own[key] for key in other.keys() - THEIR_OWN}
    return fields


def grader_scores(graders: object) -> dict[str, object]:
    """Each grader's score and checks, whoever wrote them."""
    found: dict[str, object] = {}
    for name, said in graders.items():
        checks = said.get("checks", said.get("assertions"))
        passes = [(check["text"], check.get("pass", check.get("passed"))) for check in checks]
        found[name] = (round(float(said["score"]), 9), passes)
    return found
