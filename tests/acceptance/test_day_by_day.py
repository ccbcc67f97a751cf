"""What is given at the command line in place of the files: which cases, which model, which values."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from xml.etree import ElementTree as ET

import pytest

from support.command_line import CommandLine
from support.evaluations import rows_of, totals_of, write_files
from support.function_model import ModelRequest, function_model

CONFIG = """
targets:
  bot: {{provider: openai, model: model-a, base_url: "{url}", api_key: "${{{{ KEY }}}}"}}
"""

EVALUATION = """
dataset: cases.jsonl
graders: [{name: same, builtin: exact, value: model-b}]
"""


def test_cases_that_failed_are_tried_with_another_model_and_the_record_says_so(shell: CommandLine) -> None:
    def answer(asked: ModelRequest) -> str:
        return asked.model

    with function_model(answer) as url:
        write_files(shell.folder, cases=6, quintain_yaml=CONFIG.format(url=url), eval_yaml=EVALUATION)
        env = {"KEY": "k"}
        shell.run("run", "eval.yaml", "--where", "id=case-1", "--where", "id=case-2", env=env)
        words = ("run", "eval.yaml", "--output", "two", "--failing", "--of", "runs/eval", "--sample", "1")
        tried = shell.run(*words, "--model", "model-b", "--set", "threshold=1", env=env)
    assert tried.code == 0
    assert "select   1 of 6 cases: --failing leaves out 4, --sample leaves out 1" in tried.stderr
    assert "set      --model=model-b" in tried.stderr
    assert [row["output"] for row in rows_of(shell.folder / "two")] == ["model-b"]
    record = json.loads((shell.folder / "two" / "run.json").read_text())
    assert record["history"][0]["overrides"] == ["--set threshold=1", "--model=model-b"]
    assert record["history"][0]["selection"]["leftOut"] == {"--failing": 4, "--sample": 1}
    refused = shell.run("check", "eval.yaml", "--model", "model-b", "--set", "treshold=1", code=2, env=env)
    assert "did you mean 'threshold'" in refused.stdout


def test_one_prompt_and_one_grader_are_tried_alone(shell: CommandLine) -> None:
    files = {
        "quintain_yaml": "targets:\n  echo: {provider: mock}\n",
        "eval_yaml": """
dataset: cases.jsonl
prompts: [{name: plain, user: "{{ question }}"}, {name: long, user: "{{ question }} please"}]
graders: [{name: same, builtin: exact}, {name: within, builtin: contains}]
""",
    }
    write_files(shell.folder, **files)
    words = ("eval.yaml", "--prompt", "long", "--grader", "within")
    checked = json.loads(shell.run("check", *words, "--json").stdout)
    assert (checked["prompts"], [grader["name"] for grader in checked["graders"]]) == (["long"], ["within"])
    tried = shell.run("run", *words)
    assert "select   --prompt leaves out plain" in tried.stderr
    assert "select   --grader leaves out same" in tried.stderr
    rows = rows_of(shell.folder / "runs" / "eval")
    assert [(row["prompt"], row["output"], row["score"]) for row in rows] == [
        ("long", f"q{number} please", 1.0) for number in (1, 2, 3)
    ]
    record = json.loads((shell.folder / "runs" / "eval" / "run.json").read_text())
    assert record["history"][0]["selection"] == {"prompts": ["long"], "graders": ["within"]}
    counts = json.loads(shell.run("run", "eval.yaml", "--json").stdout)
    assert (counts["totals"]["graded"], counts["totals"]["calls"]) == (6, 6)
    for option, name, nearest in (("--prompt", "lon", "'long'"), ("--grader", "sane", "'same'")):
        assert f"did you mean {nearest}" in shell.run("run", "eval.yaml", option, name, code=2).stderr


GATED = """
dataset: cases.jsonl
by: [topic]
threshold: {{score: 0.5, pass_rate: {pass_rate}, graders: {{same: 0.5}}, by: {{topic: {{law: {law}}}}}}}
graders: [{{name: same, builtin: exact, value: model-a}}, {{name: there, builtin: contains, value: model}}]
"""


def write_gated(shell: CommandLine, url: str, *, cases: int = 12, pass_rate: float = 1, law: float = 1) -> None:
    write_files(
        shell.folder, quintain_yaml=CONFIG.format(url=url), eval_yaml=GATED.format(pass_rate=pass_rate, law=law)
    )
    rows = ({"id": f"{n}", "question": f"q{n}", "topic": ("law", "tax")[n % 2]} for n in range(cases))
    (shell.folder / "cases.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_a_run_fails_where_a_gate_or_the_comparison_with_its_baseline_does(shell: CommandLine) -> None:
    def answer(asked: ModelRequest) -> str:
        return "model-x" if asked.question == "q2" else asked.model

    env = {"KEY": "k"}
    with function_model(answer) as url:
        write_gated(shell, url, pass_rate=0.9, law=0.9)
        passed = shell.run("run", "eval.yaml", "--output", "main", env=env)
        assert "pass rate 0.917, threshold 0.9" in passed.stdout
        write_gated(shell, url, pass_rate=0.95, law=0.95)
        failed = shell.run("run", "eval.yaml", "--output", "main", "--junit", "junit.xml", "--json", code=3, env=env)
        gates = json.loads(failed.stdout)["gates"]
        assert [(gate["name"], gate["passed"], gate.get("least")) for gate in gates] == [
            ("pass rate", False, 0.95),
            ("mean score of grader same", True, 0.5),
            ("mean score of topic law", False, 0.95),
        ]
        suite = ET.parse(shell.folder / "junit.xml").getroot()[-1]
        assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("eval.gates", "4", "2")
        write_gated(shell, url, cases=14, pass_rate=0, law=0)
        same = shell.run("run", "eval.yaml", "--output", "same", "--baseline", "main", env=env)
        assert "not significantly worse than in main" in same.stdout
        assert "2 rows left out" in same.stdout
        words = ("run", "eval.yaml", "--output", "next", "--baseline", "main", "--model", "model-b")
        worse = shell.run(*words, "--set", "threshold=0", code=3, env=env)
        assert "bot is significantly worse than in main: pass rate -92 %" in worse.stdout
        shown = shell.run("report", "next", "--json")
        assert [gate["passed"] for gate in json.loads(shown.stdout)["gates"]] == [False]
        calls = totals_of(shell.folder / "next")["calls"]
        (shell.folder / "eval.yaml").write_text(GATED.format(pass_rate=0, law=0).replace("contains", "exact"))
        refused = shell.run(*words[:-2], code=2, env=env)
        assert "--baseline: main and next differ in their graders" in refused.stderr
        assert "--baseline: absent: " in shell.run("run", "eval.yaml", "--baseline", "absent", code=2, env=env).stderr
    assert totals_of(shell.folder / "next")["calls"] == calls


def test_a_gate_of_an_unknown_grader_or_tag_is_an_error_of_check(shell: CommandLine) -> None:
    write_gated(shell, "http://there")
    for right, wrong, nearest in (
        ("{same: 0.5}", "{sane: 0.5}", "'same'"),
        ("{law: 1}", "{lav: 1}", "'law'"),
        ("{topic: {", "{topik: {", "'topic'"),
    ):
        text = GATED.format(pass_rate=1, law=1)
        (shell.folder / "eval.yaml").write_text(text.replace(right, wrong))
        refused = shell.run("check", "eval.yaml", code=2, env={"KEY": "k"})
        assert f"did you mean {nearest}" in refused.stdout


CHOICES = [
    {"id": "fr", "question": "The capital of France?", "choices": ["Rome", "Paris", "Lima"], "expected": "Paris"},
    {"id": "pe", "question": "The capital of Peru?", "choices": ["Rome", "Paris", "Lima"], "expected": "C"},
    {"id": "it", "question": "The capital of Italy?", "choices": ["Rome", "Paris", "Lima"], "expected": ["A", "Rome"]},
]

CHOOSING = """
dataset: {{file: cases.jsonl, choices_seed: {seed}}}
prompts: [{{name: plain, system: Be brief.}}, {{name: own, user: "{{{{ question }}}} {{{{ choices | join(', ') }}}}"}}]
graders: [{{name: chosen, builtin: choice}}]
"""


def test_multiple_choice_is_shuffled_read_and_its_positions_are_told(shell: CommandLine) -> None:
    def answer(asked: ModelRequest) -> str:
        return "**B**" if asked.question.endswith("Answer with the letter of one choice.") else "Perhaps Rome or Lima"

    with function_model(answer) as url:
        cases = "".join(f"{json.dumps(case)}\n" for case in CHOICES)
        write_files(
            shell.folder,
            cases_jsonl=cases,
            quintain_yaml=CONFIG.format(url=url),
            eval_yaml=CHOOSING.format(seed="null"),
        )
        env = {"KEY": "k"}
        told = json.loads(shell.run("run", "eval.yaml", "--json", env=env).stdout)
        kept = shell.run("run", "eval.yaml", env=env)
        (shell.folder / "eval.yaml").write_text(CHOOSING.format(seed=3))
        shell.run("run", "eval.yaml", "--output", "shuffled", env=env)
    plain, own = (told["statistics"]["choices"]["chosen"][f"bot · {name}"] for name in ("plain", "own"))
    assert plain == {
        "answers": 3,
        "unread": 0,
        "positions": {
            "A": {"chosen": 0, "right": 1, "hit": 0},
            "B": {"chosen": 3, "right": 1, "hit": 1},
            "C": {"chosen": 0, "right": 1, "hit": 0},
        },
    }
    assert (own["answers"], own["unread"]) == (3, 3)
    assert "By position" in kept.stdout
    rows = {row["caseId"]: row for row in rows_of(shell.folder / "shuffled")}
    assert any(row["case"]["choices"] != ["Rome", "Paris", "Lima"] for row in rows.values())
    for case, right in (("fr", "Paris"), ("pe", "Lima"), ("it", "Rome")):
        row = rows[case]
        assert row["case"]["expected"] in (right, [right, right])
        assert row["graders"]["chosen"]["choice"]["right"] == [row["case"]["choices"].index(right)]
    for change, place in (
        ({"expected": "Oslo"}, "expected"),
        ({"choices": ["one"]}, "choices"),
        ({"choices": ["Rome", "rome", "Paris"]}, "choices"),
        ({"choices": None}, "choices"),
    ):
        (shell.folder / "cases.jsonl").write_text(json.dumps({**CHOICES[0], **change}))
        assert place in shell.run("run", "eval.yaml", "--output", "refused", code=2, env=env).stderr


def test_several_evaluations_have_one_budget_one_table_and_one_exit_code(shell: CommandLine) -> None:
    write_files(
        shell.folder,
        one_yaml="dataset: cases.jsonl\ngraders: [{builtin: exact}]\n",
        two_yaml="dataset: cases.jsonl\ngraders: [{builtin: exact}]\nthreshold: {pass_rate: 1}\n",
        three_yaml='dataset: cases.jsonl\ngraders: [{builtin: contains, value: "2"}]\nthreshold: 0.9\n',
        quintain_yaml="targets: {echo: {provider: mock}}\n",
    )
    files = ("one.yaml", "two.yaml", "three.yaml")
    spent = json.loads(shell.run("run", *files, "--max-calls", "4", "--output", "all", "--json", code=4).stdout)
    outcomes = [(one["folder"], one["totals"]["graded"], one["exitCode"]) for one in spent["evaluations"]]
    assert outcomes == [("all/one", 3, 0), ("all/two", 1, 4), ("all/three", 0, 4)]
    # The budget is of the command: what earlier ones made is not in it.
    words = ("run", *files, "--output", "all", "--junit", "junit.xml", "--markdown", "page.md")
    failed = shell.run(*words, "--max-calls", "5", code=3)
    assert "exit 3: 2 of 3 evaluations passed" in failed.stdout
    assert [totals_of(shell.folder / "all" / name)["calls"] for name in ("one", "two", "three")] == [3, 3, 3]
    root = ET.parse(shell.folder / "junit.xml").getroot()
    assert [suite.get("name") for suite in root] == [
        "one.echo", "two.echo", "two.gates", "three.echo", "three.gates"
    ]  # fmt: skip
    assert (root.get("tests"), root.get("failures")) == ("11", "3")
    assert (shell.folder / "page.md").read_text().count("\n## ") == 2
    (shell.folder / "two.yaml").write_text("dataset: cases.jsonl\ngraders: [{builtin: exactly}]\n")
    assert "two.yaml" in shell.run("run", *files, code=2).stderr
    assert not (shell.folder / "runs").exists()
    (shell.folder / "more").mkdir()
    (shell.folder / "more" / "one.yaml").write_text("dataset: ../cases.jsonl\ngraders: [{builtin: exact}]\n")
    assert "one.yaml and more/one.yaml" in shell.run("run", "one.yaml", "more/one.yaml", code=2).stderr
    assert "--csv" in shell.run("run", "one.yaml", "three.yaml", "--csv", "rows.csv", code=2).stderr


@pytest.mark.parametrize(("status", "told"), [(200, ""), (500, "warning  --notify: 127.0.0.1 did not take the result")])
def test_the_result_is_posted_and_the_url_is_in_no_report(shell: CommandLine, status: int, told: str) -> None:
    posted = list[bytes]()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    write_files(shell.folder, cases=2, quintain_yaml="targets: {bot: {provider: mock}}", eval_yaml=EVALUATION)
    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/a-secret-path"
        done = shell.run("run", "eval.yaml", "--notify", url, "--markdown", "page.md", code=None)
    body = json.loads(posted[0])
    assert (body["exitCode"], body["folder"]) == (done.code, "runs/eval")
    assert body["text"].splitlines()[-1] in done.stdout
    assert told in done.stderr
    files = [path.read_bytes() for path in shell.folder.rglob("*") if path.is_file()]
    assert b"a-secret-path" not in b"".join([*files, done.stdout.encode(), done.stderr.encode()])
    refused = shell.run("run", "eval.yaml", "--notify", "a-secret-path", code=2)
    assert "a-secret-path" not in refused.stderr


@pytest.mark.parametrize(("limit", "answered"), [("0.0000012", [3, 0]), ("0.0000016", [3, 1]), ("1", [3, 3])])
def test_several_evaluations_cost_no_more_than_the_command_may(
    shell: CommandLine, limit: str, answered: list[int]
) -> None:
    price = "{per_call: 0.0000004}"
    write_files(shell.folder, cases=3, quintain_yaml=f"targets: {{bot: {{provider: mock, price: {price}}}}}")
    for name in ("one", "two"):
        (shell.folder / f"{name}.yaml").write_text(EVALUATION)
    done = shell.run("run", "one.yaml", "two.yaml", "--max-cost-usd", limit, "--json", code=None)
    evaluations = done.json["evaluations"]
    assert [each["totals"]["graded"] for each in evaluations] == answered  # type: ignore[index, attr-defined]
    assert done.code == (0 if answered == [3, 3] else 4)
