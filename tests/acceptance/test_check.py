"""``quintain check`` and ``quintain schema``: an evaluation looked at before it is run, and completed in an editor."""

from __future__ import annotations

import asyncio
import json

import jsonschema_rs
import pytest
import yaml

from support.command_line import CommandLine
from support.evaluations import copy_capitals, write_files
from support.model_server import ScriptedResponse, model_server
from support.process_fleet import fleet_shell

CONFIG = "targets: {bot: {provider: mock}, judge: {provider: mock, response: '{\"pass\": true}'}}\n"
EVALUATION = """
dataset: cases.jsonl
targets: [bot]
graders:
  - {name: same, builtin: exact}
  - {name: judged, builtin: llm-judge, prompt: judge.md, judge_target: judge}
"""


@pytest.fixture
def evaluation_shell(shell: CommandLine) -> CommandLine:
    """A shell in a folder with an evaluation in which nothing is wrong yet."""
    write_files(shell.folder, quintain_yaml=CONFIG, eval_yaml=EVALUATION, judge_md="Is it right?")
    return shell


def test_an_evaluation_that_is_ready_is_shown_with_what_it_would_take(evaluation_shell: CommandLine) -> None:
    before = sorted(evaluation_shell.folder.iterdir())
    told = evaluation_shell.run("check", "eval.yaml")
    assert sorted(evaluation_shell.folder.iterdir()) == before
    lines = told.stdout.splitlines()
    assert lines[:5] == [
        "dataset   3 cases",
        "targets   bot",
        "grader    same (exact)",
        "grader    judged (llm-judge, may call judge: at most 1 call per row)",
        "calls     3 cases × 1 target × 1 repeat = 3 answers, and 3 by graders: 6",
    ]
    assert "budget    not set: 6 calls, the most this run can need" in lines
    assert lines[-1] == (
        "exit 0: ready. To call each target once: quintain check eval.yaml --probe. To run it: quintain run eval.yaml"
    )
    assert told.stderr == ""
    # The plan holds: that is what the run takes.
    assert (
        evaluation_shell.run("run", "eval.yaml", "--json").json["totals"].items() >= {"calls": 6, "graded": 3}.items()
    )


def test_a_probe_asks_each_target_once_and_says_what_it_cost(evaluation_shell: CommandLine) -> None:
    told = evaluation_shell.run("check", "eval.yaml", "--probe", "--json")
    assert told.stderr == ""
    assert (told.json["exitCode"], told.json["problems"]) == (0, [])
    probes = told.json["probes"]
    assert [(probe["target"], probe["error"], probe["charged"]) for probe in probes] == [
        ("bot", None, True),
        ("judge", None, True),
    ]
    assert probes[0]["tokenUsage"].keys() >= {"input", "output"}
    shown = evaluation_shell.run("check", "eval.yaml", "--probe").stdout
    assert "probe     bot answered in " in shown
    assert "answers as long as in the probe" in shown
    assert shown.splitlines()[-1] == "exit 0: ready. To run it: quintain run eval.yaml"


def test_every_mistake_of_every_file_is_told_at_once(evaluation_shell: CommandLine) -> None:
    (evaluation_shell.folder / "cases.jsonl").write_text('{"id": "1"}\n')
    (evaluation_shell.folder / "judge.md").unlink()
    (evaluation_shell.folder / "judges.py").write_text("import quintain\n\ndef polite(output): ...\n")
    (evaluation_shell.folder / "quintain.yaml").write_text(
        CONFIG.replace("provider: mock}", "provider: mock, response: '${{ NOT_SET }}'}", 1)
    )
    (evaluation_shell.folder / "eval.yaml").write_text(
        EVALUATION.replace("judge_target: judge", "judge_target: juge")
        + "  - {name: polite, function: 'judges:polite'}\n"
        + "  - {name: gone, command: [python, gone.py]}\n"
    )
    told = evaluation_shell.run("check", "eval.yaml", "--probe", code=2)
    errors = [line.removeprefix("error     ") for line in told.stdout.splitlines() if line.startswith("error")]
    says = [
        "quintain.yaml: targets.bot.response: the environment variable NOT_SET is not set",
        "eval.yaml: graders[1] (judged): ",
        "eval.yaml: graders[2] (polite): function judges:polite: judges:polite is not a grader",
        "eval.yaml: graders[3] (gone): its command: there is no file ",
        "eval.yaml: graders[1].judge_target: unknown target 'juge'; did you mean 'judge'?",
        "cases.jsonl: line 1: give one of question",
    ]
    assert len(errors) == len(says), errors
    for error, sentence in zip(errors, says, strict=True):
        assert sentence in error
    assert told.stdout.splitlines()[-1] == "exit 2: 6 errors to fix. Then: quintain check eval.yaml"
    assert "probe     " not in told.stdout
    problems = evaluation_shell.run("check", "eval.yaml", "--json", code=2).json["problems"]
    assert problems == errors
    # A run refuses the same before it begins.
    assert evaluation_shell.run("run", "eval.yaml", code=2).stderr.removeprefix("error  ").splitlines() == errors
    assert not (evaluation_shell.folder / "runs").exists()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("eval.yaml", "dataset: [", "eval.yaml: line 1, column "),
        ("eval.yaml", None, "eval.yaml: cannot be read"),
        ("quintain.yaml", None, "there is no quintain.yaml"),
        ("quintain.yaml", "targets: {}", "no target is configured"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_of_the_mistakes(
    evaluation_shell: CommandLine, name: str, text: str | None, says: str
) -> None:
    path = evaluation_shell.folder / name
    path.unlink() if text is None else path.write_text(text)
    told = evaluation_shell.run("check", "eval.yaml", "--json", code=2).json
    assert isinstance(told["problems"], list)
    assert any(says in problem for problem in told["problems"]), told


def test_on_a_fleet_a_probe_tells_whether_a_target_is_served(broker_url: str) -> None:
    services = ("metadata", "worker")
    with fleet_shell(broker_url, CONFIG, targets=["bot", "judge"], services=services) as shell:
        write_files(shell.folder, eval_yaml=EVALUATION, judge_md="Is it right?")
        (shell.folder / "quintain.yaml").unlink()
        assert "--probe checks whether this fleet serves them" in shell.run("check", "eval.yaml").stdout
        shell.run("check", "eval.yaml", "--probe")
        words = ("check", "eval.yaml", "--probe", "--target", "bot")
        assert "set QUINTAIN_ADMIN_TOKEN" in shell.run(*words, env={"QUINTAIN_ADMIN_TOKEN": ""}, code=2).stdout
        (shell.folder / "eval.yaml").write_text(EVALUATION.replace("[bot]", "[bot, nobody]"))
        told = shell.run("check", "eval.yaml", "--probe", code=1).stdout
        assert "probe     nobody failed: no worker serves it; served are: bot, judge" in told


def test_the_schemas_allow_the_example_and_refuse_a_mistake_in_it(shell: CommandLine) -> None:
    copy_capitals(shell.folder)
    for words, name in ((("schema", "eval"), "eval.yaml"), (("schema", "config"), "quintain.yaml")):
        schema = json.loads(shell.run(*words).stdout)
        assert json.loads(shell.run(*words, "--json").stdout) == schema
        validator = jsonschema_rs.validator_for(schema)
        content = yaml.safe_load((shell.folder / name).read_text())
        validator.validate(content)
        assert not validator.is_valid({**content, "a key of nobody's": 1})


def test_a_case_larger_than_its_quotas_tokens_per_minute_is_named(evaluation_shell: CommandLine) -> None:
    config = (
        "quotas: {team: {tokens_per_minute: 100}}\n"
        "targets: {bot: {provider: mock, quota: team}, judge: {provider: mock}}\n"
    )
    (evaluation_shell.folder / "quintain.yaml").write_text(config)
    cases = [{"id": "short", "question": "x", "expected": "y"}, {"id": "long", "question": "x " * 300, "expected": "y"}]
    (evaluation_shell.folder / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))
    told = evaluation_shell.run("check", "eval.yaml", code=2)
    assert all(word in told.stdout for word in ("'long'", "team", "tokens_per_minute"))
    assert "'short'" not in told.stdout


#: One endpoint that refuses, one that nobody listens for, and one that answers.
ENDPOINTS = """
targets:
  model: {{provider: openai, model: m, base_url: "{url}/v1", api_key: "${{{{ KEY }}}}", max_tries: 1}}
  closed: {{provider: openai, model: m, base_url: "http://127.0.0.1:9/v1", api_key: "${{{{ KEY }}}}", max_tries: 1}}
  echo: {{provider: mock}}
"""
EXACT = "dataset: cases.jsonl\ngraders: [{name: same, builtin: exact}]\n"


async def test_a_probe_tells_the_providers_own_words_and_the_address_that_was_not_reached(shell: CommandLine) -> None:
    async with model_server() as server:
        write_files(shell.folder, quintain_yaml=ENDPOINTS.format(url=server.url), eval_yaml=EXACT)
        for status in (401, 404):
            error = {"message": "Wrong key", "type": "invalid_request_error"}
            server.set_responses(ScriptedResponse(status=status, body={"error": error}))
            words = ("check", "eval.yaml", "--probe", "--target", "model", "--target", "closed", "--target", "echo")
            told = await asyncio.to_thread(shell.run, *words, code=1, env={"KEY": "sk-test"})
            probes = {line.split()[1]: line for line in told.stdout.splitlines() if line.startswith("probe ")}
            assert "model failed: target_unavailable: " in probes["model"]
            # What is said of a wrong key may repeat it: only the code is kept.
            assert ('the provider says: "Wrong key"' in probes["model"]) is (status != 401)
            assert "127.0.0.1:9" in probes["closed"]
            assert "echo answered in " in probes["echo"]
            assert "sk-test" not in told.stdout + told.stderr
