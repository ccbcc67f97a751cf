"""What `quintain check` and the start of `quintain run` refuse before a call is spent, each with place and fix."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from quintain.contracts.message import DEFAULT_REQUEST_BYTES
from quintain.settings import read_settings
from quintain_runner.engine.preflight import check_evaluation
from quintain_runner.engine.run_settings import Inspection, RunOptions, inspect_evaluation

Json = dict[str, Any]
EXACT = {"name": "same", "builtin": "exact"}
REGEX = {"name": "found", "builtin": "regex", "pattern": "a"}
CONFIG: dict[str, Json] = {"bot": {"provider": "mock"}}
ON_FLEET = {"QUINTAIN_BROKER_URL": "amqp://127.0.0.1:1/"}
CASES: list[Json] = [{"id": "1", "question": "q", "expected": "q"}]


def write_evaluation(
    folder: Path, *graders: Json, targets: Mapping[str, Json] = CONFIG, cases=CASES, dataset: object = "cases.jsonl"
) -> Path:
    """An evaluation of the target ``bot``, with its configuration and its cases."""
    (folder / "quintain.yaml").write_text(json.dumps({"targets": targets}))
    (folder / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))
    path = folder / "eval.yaml"
    path.write_text(json.dumps({"dataset": dataset, "targets": ["bot"], "graders": list(graders) or [REGEX]}))
    return path


async def inspect(path: Path, *, on_fleet: bool = False, results_folder: Path | None = None) -> Inspection:
    settings = read_settings(ON_FLEET if on_fleet else {})
    return await inspect_evaluation(RunOptions(path=path), settings, results_folder=results_folder)


async def problem_of(path: Path) -> str:
    problems = (await inspect(path)).problems
    assert len(problems) == 1, problems
    return problems[0]


READS_A_KEY = "import os\nprint(os.environ['A_CLOUDS_KEY'], os.environ.get('HOME'), os.getenv('UNSET_HERE'))\n"


@pytest.mark.parametrize("listed", [True, False])
async def test_a_variable_that_a_script_will_not_get_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, listed: bool
) -> None:
    monkeypatch.setenv("A_CLOUDS_KEY", "secret")
    (tmp_path / "reads.py").write_text(READS_A_KEY)
    own = {"env_from": ["A_CLOUDS_KEY"]} if listed else {}
    command = {"command": [sys.executable, "reads.py"], **own}
    path = write_evaluation(tmp_path, {"name": "judge", **command}, targets={"bot": {"provider": "command", **command}})
    warnings = (await inspect(path)).warnings
    assert ["A_CLOUDS_KEY" in warning for warning in warnings] == ([] if listed else [True, True])
    assert not any("secret" in warning for warning in warnings)


JUDGE = {"name": "judged", "builtin": "llm-judge", "instructions": "Is it right?"}


@pytest.mark.parametrize(
    ("grader", "needs_it"),
    [
        (EXACT, True),
        ({"name": "has", "builtin": "contains"}, True),
        ({"name": "near", "builtin": "numeric"}, True),
        ({**JUDGE, "show": ["output", "expected"]}, True),
        (JUDGE, False),
        (REGEX, False),
        ({"name": "form", "builtin": "json-schema", "schema": {}}, False),
        ({"name": "program", "command": ["true"]}, False),
    ],
)
async def test_rows_without_expected_are_named_under_a_grader_that_needs_it(
    tmp_path: Path, grader: Json, needs_it: bool
) -> None:
    cases = [{"id": f"c{n}", "question": "q", "expected": "7"} for n in range(3)]
    cases += [{"id": f"without-{n}", "question": "q"} for n in range(7)]
    found = await inspect(write_evaluation(tmp_path, grader, cases=cases))
    told = "cases.jsonl: no expected in 7 of 10 cases (ids 'without-0', 'without-1'"
    assert [told in problem and f"needed by {grader['name']} (" in problem for problem in found.problems] == (
        [True] if needs_it else []
    )
    if grader["name"] == "near":
        near = await problem_of(write_evaluation(tmp_path, grader, cases=[{**cases[0], "expected": "seven"}]))
        assert "an expected that is not a number in 1 of 1 cases (ids 'c0'): needed by near (numeric);" in near


def judge_that_shows(*show: str) -> Json:
    return {**JUDGE, "show": [*show, "output"]}


async def test_a_section_that_no_case_has_is_refused_with_the_nearest_and_one_that_some_lack_is_a_warning(
    tmp_path: Path,
) -> None:
    cases = [{"id": "a", "question": "q", "rubric": "short"}, {"id": "b", "question": "q"}]
    cases.append({"id": "c", "question": "q", "system_prompt": "s", "customer": {"name": "x"}})
    nearest = {"outptu": "did you mean 'output'?", "rubrik": "did you mean 'rubric'?", "x.y": "known: question"}
    for section, told in nearest.items():
        problem = await problem_of(write_evaluation(tmp_path, judge_that_shows(section), cases=cases))
        assert f"no field {section!r} in 3 of 3 cases" in problem
        assert told in problem
    shown = {**judge_that_shows("rubric", "system_prompt", "customer.name", "question"), "judge_target": "sage"}
    targets = {"bot": {"provider": "mock"}, "sage": {"provider": "mock"}}
    found = await inspect(write_evaluation(tmp_path, shown, cases=cases, targets=targets))
    assert found.problems == []
    said = [warning.partition(": ")[2].partition(" (ids")[0] for warning in found.warnings]
    assert said == [f"no field {name!r} in 2 of 3 cases" for name in ("rubric", "system_prompt", "customer.name")]


TEXT_ONLY: Json = {"provider": "command", "command": ["true"]}
PICTURE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}


@pytest.mark.parametrize("section", ["steps", "tool_calls"])
async def test_a_judge_that_is_to_be_shown_steps_where_there_are_none_is_refused(tmp_path: Path, section: str) -> None:
    shown = {**judge_that_shows(section), "judge_target": "sage"}
    targets = {"bot": TEXT_ONLY, "sage": {"provider": "mock"}}
    assert f"show: {section}: target bot" in await problem_of(write_evaluation(tmp_path, shown, targets=targets))
    targets["bot"] = {**TEXT_ONLY, "output_format": "json"}
    assert (await inspect(write_evaluation(tmp_path, shown, targets=targets))).problems == []


async def test_a_judge_without_images_is_refused_for_cases_with_images_that_it_would_be_shown(tmp_path: Path) -> None:
    judge = {**judge_that_shows("conversation"), "judge_target": "sage"}
    targets = {"bot": {"provider": "mock"}, "sage": TEXT_ONLY}
    cases = [{"id": "1", "messages": [PICTURE]}, {"id": "2", "question": "q"}]
    problem = await problem_of(write_evaluation(tmp_path, judge, targets=targets, cases=cases))
    assert "images or files in 1 of 2 cases (ids '1')" in problem
    assert "sage" in problem
    for fine in ({**judge, "show": ["output"]}, {**judge, "judge_target": "bot"}):
        assert (await inspect(write_evaluation(tmp_path, fine, targets=targets, cases=cases))).problems == []
    # They may fit the target and not the judge.
    url = "data:image/png;base64,"
    picture = {"type": "image_url", "image_url": {"url": url + "A" * (DEFAULT_REQUEST_BYTES - len(url) - 400)}}
    large = [{"id": "1", "messages": [{"role": "user", "content": [picture]}]}]
    bot_judges = {**judge, "judge_target": "bot"}
    problem = await problem_of(write_evaluation(tmp_path, bot_judges, targets=targets, cases=large))
    assert f"of more than {DEFAULT_REQUEST_BYTES:,} bytes" in problem
    assert "(ids '1')" in problem


@pytest.mark.parametrize(
    ("judge_target", "configured", "own"),
    [(None, None, True), ("bot", None, True), ("sage", None, False), (None, "sage", False)],
)
async def test_a_judge_of_its_own_answers_is_a_warning(
    tmp_path: Path, judge_target: str | None, configured: str | None, *, own: bool
) -> None:
    judge = {**JUDGE}
    judge |= {} if judge_target is None else {"judge_target": judge_target}
    bot = {"provider": "mock", **({} if configured is None else {"judge_target": configured})}
    found = await inspect(write_evaluation(tmp_path, judge, targets={"bot": bot, "sage": {"provider": "mock"}}))
    assert found.problems == []
    assert ["(judged): bot " in warning for warning in found.warnings] == ([True] if own else [])
    case = {"id": "1", "question": "q", "graders": [{key: judge[key] for key in judge if key != "name"}]}
    found = await inspect(write_evaluation(tmp_path, cases=[case], targets={"bot": bot, "sage": {"provider": "mock"}}))
    told = [line for line in found.warnings if "judge its own answers" in line]
    assert ["cases.jsonl: graders (llm-judge)" in line for line in told] == ([True] if own else [])


async def test_only_the_cases_that_count_must_have_what_is_needed(tmp_path: Path) -> None:
    cases = [
        {"id": str(n), "question": "q", "set": "a" if n % 2 else "b", **({"expected": "q"} if n % 2 else {})}
        for n in range(40)
    ]
    where = {"file": "cases.jsonl", "where": {"set": "a"}}
    assert (await inspect(write_evaluation(tmp_path, EXACT, cases=cases, dataset=where))).problems == []
    # A field that looks like a feature is told to be data, unless it selects.
    told = [{"id": f"{n}", "question": "q", "conversation": 3} for n in range(2)]
    warnings = (await inspect(write_evaluation(tmp_path, cases=told))).warnings
    assert ["'conversation' of 2 rows" in warning for warning in warnings] == [True]
    where = {"file": "cases.jsonl", "where": {"conversation": 3}}
    assert (await inspect(write_evaluation(tmp_path, cases=told, dataset=where))).warnings == []
    limit = {"file": "cases.jsonl", "limit": 1}
    path = write_evaluation(tmp_path, EXACT, cases=cases, dataset=limit)
    assert "in 1 of 1 cases (ids '0')" in await problem_of(path)


async def test_a_case_is_refused_from_the_first_byte_that_does_not_fit_a_message(tmp_path: Path) -> None:
    envelope = len(b'{"question":"","target":"bot","evalCaseId":"1","attempt":1}')

    def evaluation(question: str) -> Path:
        return write_evaluation(tmp_path, cases=[{"id": "1", "question": question}])

    assert (await inspect(evaluation("x" * (DEFAULT_REQUEST_BYTES - envelope)))).problems == []
    problem = await problem_of(evaluation("x" * (DEFAULT_REQUEST_BYTES - envelope + 1)))
    assert "cases.jsonl: a request of more than 1,048,576 bytes in 1 of 1 cases (ids '1')" in problem
    path = evaluation("x" * DEFAULT_REQUEST_BYTES)
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_body_bytes": 2 * DEFAULT_REQUEST_BYTES}))
    assert (await inspect(path)).problems == []
    # Few characters, and many bytes.
    assert "a request of more than" in await problem_of(evaluation("\x01" * (DEFAULT_REQUEST_BYTES // 6)))
    turns = [{"role": "user", "content": [{"type": "text", "text": "x" * DEFAULT_REQUEST_BYTES}]}]
    in_parts = write_evaluation(tmp_path, cases=[{"id": "1", "messages": turns}])
    assert "a request of more than" in await problem_of(in_parts)


async def test_a_provider_without_its_extra_is_refused_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = "pydantic-ai"
    monkeypatch.setitem(sys.modules, "quintain_worker.providers.pydantic_ai", None)
    target = {"provider": provider, "model": "mistral:m"}
    path = write_evaluation(tmp_path, targets={**CONFIG, "model": target})
    assert f"targets.model: provider {provider} needs: pip install 'quintain[{provider}]'" in await problem_of(path)
    # The fleet's workers have their own: nothing is said of this machine's.
    assert (await inspect(path, on_fleet=True)).problems == []


PROGRAMS: dict[str, tuple[list[str], str]] = {
    "not on PATH": (["no-such-program"], "'no-such-program' is not on PATH"),
    "not there": (["./nowhere"], "there is no program {folder}/nowhere"),
    "not executable": (["./plain"], "{folder}/plain is not executable"),
    "a script that is not there": (["python", "-u", "gone.py"], "there is no file {folder}/gone.py"),
}


@pytest.mark.parametrize(("command", "says"), PROGRAMS.values(), ids=PROGRAMS)
async def test_a_program_that_cannot_be_started_is_refused(tmp_path: Path, command: list[str], says: str) -> None:
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    says = says.format(folder=tmp_path)
    target = {"bot": {"provider": "command", "command": [*command, "{prompt_file}"]}}
    grader = {"name": "program", "command": command}
    for place, path in (
        ("quintain.yaml: targets.bot: ", lambda: write_evaluation(tmp_path, targets=target)),
        ("eval.yaml: graders[0] (program): ", lambda: write_evaluation(tmp_path, grader)),
        ("eval.yaml: dataset: ", lambda: write_evaluation(tmp_path, dataset={"command": command})),
    ):
        problem = await problem_of(path())
        assert (place in problem, says in problem) == (True, True), problem
    # The dataset's command does not run before the rest is mended.
    path = write_evaluation(tmp_path, grader, dataset={"command": ["touch", "ran"]})
    assert len((await inspect(path, results_folder=tmp_path / "results")).problems) == 1
    assert not (tmp_path / "ran").exists()


async def test_a_program_is_found_by_the_targets_own_path_and_in_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "answer"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    target = {"provider": "command", "command": ["answer"], "env": {"PATH": str(tmp_path / "bin")}}
    assert (await inspect(write_evaluation(tmp_path, targets={"bot": target}))).problems == []
    target = {"provider": "command", "command": ["./answer", "--save", "new.py"], "cwd": "bin"}
    assert (await inspect(write_evaluation(tmp_path, targets={"bot": target}))).problems == []
    # One that is not asked need not be there, and one that judges must.
    other = {**CONFIG, "other": {"provider": "command", "command": ["no-such-program"]}}
    assert (await inspect(write_evaluation(tmp_path, targets=other))).problems == []
    judged = write_evaluation(tmp_path, {**JUDGE, "judge_target": "other"}, targets=other)
    assert "targets.other: its command" in await problem_of(judged)
    gone = {"bot": {**target, "cwd": "gone"}}
    assert "its working directory" in await problem_of(write_evaluation(tmp_path, targets=gone))
    missing = {"bot": {"provider": "python", "callable": "no_such_module_here:answer"}}
    problem = await problem_of(write_evaluation(tmp_path, targets=missing))
    assert "targets.bot.callable: no_such_module_here cannot be imported: ModuleNotFoundError" in problem
    assert "facts.txt" in await problem_of(write_evaluation(tmp_path, {**EXACT, "depends_on": ["facts.txt"]}))


async def test_what_cannot_be_checked_from_here_is_said(tmp_path: Path) -> None:
    command = {"provider": "command", "command": ["no-such-program"]}
    options = RunOptions(path=write_evaluation(tmp_path, targets={"bot": command}))
    on_fleet = await check_evaluation(options, read_settings(ON_FLEET))
    assert on_fleet.problems == []
    assert ["workers" in on_fleet.not_checked[0], "--probe" in on_fleet.not_checked[-1]] == [True, True]
    write_evaluation(tmp_path, judge_that_shows("steps"), targets={"bot": command})
    judged = await check_evaluation(options, read_settings(ON_FLEET))
    assert judged.problems == []
    assert len(judged.not_checked) == len(on_fleet.not_checked) + 1
    write_evaluation(tmp_path)
    assert (await check_evaluation(options, read_settings({}))).not_checked == []
    # What the configuration names is what graders must not see: unread, nobody knows what to hide.
    path = write_evaluation(tmp_path, targets={"bot": {"provider": "mock", "envs": {}}})
    (problem,) = (await inspect(path, on_fleet=True)).problems
    assert "unknown key 'envs'" in problem


async def test_a_grader_that_cannot_be_built_makes_no_other_one_call(tmp_path: Path) -> None:
    (tmp_path / "kind.py").write_text("import quintain\n@quintain.grader\ndef polite(output): return True\n")
    graders = [{"name": "typo", "function": "kind:polit"}, {"name": "good", "function": "kind:polite"}]
    graders.append({"name": "bad", "builtin": "json-schema", "schema": "nowhere.json"})
    report = await check_evaluation(RunOptions(path=write_evaluation(tmp_path, *graders)), read_settings({}))
    assert len(report.problems) == 2
    assert "did you mean 'polite'?" in report.problems[0]
    assert [(grader.calls, grader.most_calls) for grader in report.graders] == [([], 0)] * len(graders)


async def test_a_limit_in_money_is_refused_over_an_agent_that_calls_a_target_without_a_bound(tmp_path: Path) -> None:
    model = {"provider": "openai", "model": "m", "base_url": "http://127.0.0.1:1/v1"}
    agent = {"provider": "command", "protocol": "jsonl", "command": ["python"], "child_session": {"targets": ["gpt"]}}
    price = {"input_per_million": 1, "output_per_million": 10}
    for limited, problems in (({}, 1), ({"max_tokens": 9}, 0)):
        targets = {"bot": agent, "gpt": {**model, "price": price, **limited}}
        options = RunOptions(path=write_evaluation(tmp_path, targets=targets), max_cost_usd=0.5)
        report = await check_evaluation(options, read_settings({}))
        assert len(report.problems) == problems, report.problems
        assert all("targets.gpt.max_tokens" in problem for problem in report.problems)
