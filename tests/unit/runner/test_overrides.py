"""Values that a command sets in place of those of its files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quintain.errors import ConfigError
from quintain.settings import read_settings
from quintain_runner.engine.run_settings import Inspection, RunOptions, RunSettings, inspect_evaluation
from support.evaluations import EXACT, cases, write_evaluation

CONFIGURATION = """
targets:
  gpt-4.1: {provider: openai, model: gpt-4.1, temperature: 1, api_key: "${{ ABSENT }}"}
  bot: {provider: mock}
"""


async def inspected(folder: Path, *texts: str, model: str | None = None, fleet: bool = False) -> Inspection:
    (folder / "quintain.yaml").write_text(CONFIGURATION)
    path = write_evaluation(folder, cases(4), [EXACT, {"builtin": "contains"}], targets=["gpt-4.1"])
    options = RunOptions(path=path, overrides=texts, model=model)
    return await inspect_evaluation(options, read_settings({"QUINTAIN_BROKER_URL": "amqp://there"} if fleet else {}))


async def checked(folder: Path, *texts: str, model: str | None = None) -> RunSettings:
    found = await inspected(folder, *texts, model=model)
    # The key of the target is not set here.
    found.problems = [problem for problem in found.problems if "ABSENT" not in problem]
    return found.checked()


async def test_values_of_a_command_stand_in_place_of_those_of_both_files(tmp_path: Path) -> None:
    texts = ["targets.gpt-4.1.temperature=0", "repeats=2", "graders.contains.weight=2", "graders[0].weight=3"]
    run = await checked(tmp_path, *texts, "dataset.limit=3", model="gpt-5")
    assert run.config.raw_targets["gpt-4.1"]["temperature"] == 0
    assert run.config.raw_targets["gpt-4.1"]["model"] == "gpt-5"
    assert [grader.weight for grader in run.evaluation.spec.graders] == [3, 2]
    assert (run.evaluation.spec.repeats, run.cases) == (2, 3)
    assert run.overrides[-1] == "--model=gpt-5"
    assert (await checked(tmp_path, "targets=[bot]")).targets == ("bot",)
    assert (await checked(tmp_path)).overrides == ()


@pytest.mark.parametrize(
    ("texts", "model", "problem"),
    [
        (["repeat=2"], None, "--set repeat: unknown key 'repeat'; did you mean 'repeats'"),
        (["dataset.limt=2"], None, "--set dataset.limt: dataset: unknown key 'limt'; did you mean 'limit'"),
        (["repeats=no"], None, "--set repeats: repeats: "),
        (["targets.gpt-4.temperature=0"], None, "--set targets.gpt-4.temperature: .*did you mean 'gpt-4.1'"),
        (["targets.gpt-4.1.temprature=0"], None, "--set .*: targets.gpt-4.1: unknown key 'temprature'; did you mean"),
        (["targets.gpt-4.1.temperature=hot"], None, "--set targets.gpt-4.1.temperature: targets.gpt-4.1.temperature: "),
        (["targets.gpt-4.1.api_key=sk-1234"], None, "--set .*: targets.gpt-4.1.api_key: "),
        (["graders.same2.weight=2"], None, "--set .*: graders has no 'same2'; did you mean 'same'"),
        (["repeats.x=2"], None, "--set repeats.x: repeats"),
        (["repeats=2", "repeats=3"], None, "--set repeats: it is given twice"),
        (["targets.gpt-4.1.model=a"], "b", "--model: --set targets.gpt-4.1.model "),
        (["targets=[gpt-4.1, bot]"], "b", "--model: there are 2 targets"),
        (["repeats"], None, "--set repeats: write KEY=VALUE"),
    ],
)
async def test_a_wrong_value_of_a_command_is_refused_by_the_name_of_its_option(
    tmp_path: Path, texts: list[str], model: str | None, problem: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{problem}") as refused:
        await checked(tmp_path, *texts, model=model)
    assert "sk-1234" not in refused.value.message


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("targets.bot.delay_ms=${{ ABSENT }}", "--set targets.bot.delay_ms: .* ABSENT is not set"),
        ("targets.bot.timeout_seconds=${{ HERE:-soon }}", "--set targets.bot.timeout_seconds: targets.bot.timeout_"),
    ],
)
async def test_a_wrong_value_of_a_variable_is_refused_by_the_option_that_named_it(
    tmp_path: Path, text: str, problem: str
) -> None:
    found = await inspected(tmp_path, text, "targets.gpt-4.1.api_key=${{ PATH }}")
    assert [one for one in found.problems if re.match(problem, one)]


async def test_on_a_fleet_only_keys_of_the_evaluation_can_be_set(tmp_path: Path) -> None:
    found = await inspected(tmp_path, "targets.gpt-4.1.temperature=0", fleet=True)
    assert [problem for problem in found.problems if problem.startswith("--set targets.gpt-4.1.temperature: ")]
    assert not (await inspected(tmp_path, "repeats=2", fleet=True)).problems
