"""The configuration file: what is refused, and in which words."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from quintain.config.loader import Config, load_config
from quintain.config.targets import TARGET_MODELS
from quintain.errors import ConfigError
from quintain_runner.spec.evaluation import load_evaluation

KNOWN = ", ".join(TARGET_MODELS)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "quintain.yaml"


def load(file: Path, text: str) -> Config:
    file.write_text(text, encoding="utf-8")
    return load_config(file)


def config_errors(file: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(file, text)
    return caught.value.message.replace(str(file), "quintain.yaml").splitlines()


def config_error(file: Path, text: str) -> str:
    mistakes = config_errors(file, text)
    assert len(mistakes) == 1, mistakes
    return mistakes[0]


def target_error(file: Path, fields: str) -> str:
    """The one mistake of a configuration whose only target says this."""
    return config_error(file, f"targets: {{it: {fields}}}")


def test_a_list_whose_targets_have_no_name_or_the_same_is_refused(file: Path) -> None:
    assert config_errors(file, "targets: [{provider: mock}, {name: a, provider: mock}, 5, {name: a}]") == [
        "quintain.yaml: targets[0]: missing key 'name'",
        "quintain.yaml: targets[2]: a number; it must be a map",
        "quintain.yaml: targets[3]: the name 'a' is given twice",
    ]


@pytest.mark.parametrize("text", ["", "targets:", "targets: {}", "targets: []", "# nothing\n"])
def test_no_target_at_all_is_refused_with_the_mend(file: Path, text: str) -> None:
    assert "no target is configured; add one, such as" in config_error(file, text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[a, b]", "the file holds a list; it must be a map with targets:"),
        ("targets: mock", "targets: a text; it must be a map, or a list of {name: …}"),
        ("targets: {a: mock}", "targets.a: a text; it must be a map with provider:"),
        ("targets: {1: {provider: mock}}", "targets.1: a target's name is text; put it in quotes"),
        ("targets: {a b: {provider: mock}}", "targets.a b: not a target's name; letters"),
        ('targets: {"a\\n": {provider: mock}}', "targets.a"),
        ("targets: {it: {provider: mock}}\nmetrics: 1", "unknown key 'metrics'; known: targets"),
        ("target: {it: {provider: mock}}\ntargets: {it: {provider: mock}}", "did you mean 'targets'?"),
    ],
)
def test_a_file_of_another_shape_is_refused(file: Path, text: str, says: str) -> None:
    assert says in "\n".join(config_errors(file, text))


def test_an_unknown_key_names_the_file_the_place_and_the_nearest_known_one(file: Path) -> None:
    assert config_error(file, "targets: {gpt4o: {provider: openai, model: x, modle: y}}") == (
        "quintain.yaml: targets.gpt4o: unknown key 'modle'; did you mean 'model'?"
    )
    assert config_error(file, "targets: {m: {provider: mock, token_usage: {inptu: 1}}}") == (
        "quintain.yaml: targets.m.token_usage: unknown key 'inptu'; did you mean 'input'?"
    )
    assert "unknown key 'input_per_milion'; did you mean 'input_per_million'?" in config_error(
        file,
        "targets: {m: {provider: mock, price: {per_call: 1, tiers: "
        "[{above_input_tokens: 9, input_per_million: 1, output_per_million: 1, input_per_milion: 1}]}}}",
    )
    assert target_error(file, "{provider: mock, zzz: 1}").startswith(
        "quintain.yaml: targets.it: unknown key 'zzz'; known: judge_target, max_concurrency,"
    )


def test_an_unknown_provider_is_refused_with_the_nearest_and_the_list(file: Path) -> None:
    assert target_error(file, "{provider: opnai, model: x}") == (
        f"quintain.yaml: targets.it.provider: unknown provider 'opnai'; did you mean 'openai'? Known: {KNOWN}"
    )
    assert target_error(file, "{model: x}").startswith("quintain.yaml: targets.it: missing key 'provider'; known: ")


def test_all_mistakes_of_a_file_come_in_one_error_a_line_each(file: Path) -> None:
    mistakes = config_errors(
        file,
        """
extra: 1
targets:
  a: {provider: openai, temperature: warm}
  b: {provider: command, command: 'echo hi', cwdd: .}
  c: {provider: mock, judge_target: a, judge_target: dd}
  d: {provider: nonsense}
""",
    )
    assert mistakes == [
        "quintain.yaml: line 6: the key 'judge_target' is given twice",
        "quintain.yaml: unknown key 'extra'; known: targets, quotas",
        "quintain.yaml: targets.a: missing key 'model'",
        "quintain.yaml: targets.a.temperature: it must be a valid number, unable to parse string as a number",
        'quintain.yaml: targets.b.command: a list, not a text, as no shell reads it; write ["program", "argument"]',
        "quintain.yaml: targets.b: unknown key 'cwdd'; did you mean 'cwd'?",
        "quintain.yaml: targets.d.provider: unknown provider 'nonsense'. Known: " + KNOWN,
        "quintain.yaml: targets.c.judge_target: no target is named 'dd'; did you mean 'd'?",
    ]


@pytest.mark.parametrize(
    ("says", "mistake"),
    [
        ("{provider: openai}", "targets.it: missing key 'model'"),
        ("{provider: openai, model: 4}", "targets.it.model: not a text; put it in quotes"),
        ("{provider: openai, model: m, api: both}", "targets.it.api[0]: it must be 'chat', 'responses'"),
        ("{provider: openai, model: m, max_tokens: 0}", "targets.it.max_tokens: it must be greater than 0"),
        ("{provider: openai, model: m, base_url: h}", "targets.it.base_url: not a URL"),
        ("{provider: openai, model: m, base_url: 'http://u:p@h'}", "targets.it.base_url: a URL holds no cred"),
        ("{provider: mock, max_concurrency: 0}", "targets.it.max_concurrency: it must be greater than or"),
        ("{provider: mock, max_concurrency: 10001}", "targets.it.max_concurrency: it must be less than or"),
        ("{provider: mock, max_tries: 11}", "targets.it.max_tries: it must be less than or equal to 10"),
        ("{provider: mock, timeout_seconds: 0}", "targets.it.timeout_seconds: it must be greater than 0"),
        (
            "{provider: mock, timeout_seconds: 43201}",
            "targets.it.timeout_seconds: a call lasts 43200 s (12 hours) at most",
        ),
        ("{provider: mock, timeout_seconds: .inf}", "targets.it.timeout_seconds: it must be a finite"),
        ("{provider: mock, fail_rate: 1.5}", "targets.it.fail_rate: it must be less than or equal to 1"),
        ("{provider: mock, judge_target: him}", "targets.it.judge_target: no target is named 'him'"),
        ("{provider: command}", "targets.it: missing key 'command'"),
        ("{provider: command, command: []}", "targets.it.command: List should have at least 1 item"),
        ("{provider: command, command: ['']}", "targets.it.command: its first item is the program, and is e"),
        ("{provider: command, command: [a, 1]}", "targets.it.command[1]: not a text; put it in quotes"),
        ("{provider: command, command: [a], env: {PORT: 1}}", "targets.it.env.PORT: not a text; put it in qu"),
        ("{provider: command, command: [a, '{prompt}']}", "targets.it.command: unknown placeholder {prompt}"),
        ("{provider: python}", "targets.it: missing key 'callable'"),
        ("{provider: python, callable: bot.run}", "targets.it.callable: write it as module:name"),
        ("{provider: python, callable: 'a.b:c.d'}", "targets.it.callable: write it as module:name"),
        ("{provider: mock, response: '${{ env.X }}'}", "targets.it.response: not a reference; write ${{ NAM"),
    ],
)
def test_a_target_that_cannot_work_is_refused_at_its_place(file: Path, says: str, mistake: str) -> None:
    assert target_error(file, says).startswith(f"quintain.yaml: {mistake}")


SECRETS = [
    "sk-proj-abcdefghijklmnop",
    "before sk-ant-0123456789abcdef after",
    "AIzaSyA0123456789abcdefghijk",
    "ghp_0123456789abcdefghij",
    "xoxb-0123456789-abcdef",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_what_looks_like_a_key_is_refused_anywhere_and_never_shown(file: Path, secret: str) -> None:
    mistake = config_error(file, f"targets: {{a: {{provider: command, command: [x, {secret!r}]}}}}")
    assert mistake.startswith("quintain.yaml: targets.a.command[1]: a secret is written out here; put it into")
    assert secret not in mistake


def test_an_api_key_in_plain_text_is_refused_whatever_it_looks_like(file: Path) -> None:
    mistake = target_error(file, "{provider: openai, model: m, api_key: hunter2}")
    assert mistake == (
        "quintain.yaml: targets.it.api_key: a secret is written out here;"
        " put it into an environment variable and write ${{ API_KEY }}"
    )


@pytest.mark.parametrize("innocent", ["task-runner-with-a-long-name", "risk-assessment-for-evaluations", "sk-short"])
def test_ordinary_words_are_not_taken_for_keys(file: Path, innocent: str) -> None:
    config = load(file, f"targets: {{it: {{provider: openai, model: {innocent}}}}}")
    assert config.targets["it"].model == innocent


def test_what_is_not_yaml_is_refused_with_file_line_and_column(file: Path) -> None:
    assert config_error(file, "targets:\n  a: [1\n") == (
        "quintain.yaml: line 3, column 1: not YAML: expected ',' or ']', but got '<stream end>'"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("targets: !!python/object/apply:os.system [ls]", "line 1, column 10: not YAML: could not determine a con"),
        ("targets: &a [*a]", "an anchor contains itself"),
        ("targets: 012", "line 1: 012 cannot be read as int; put it in quotes"),
        ("targets: {a: 1}\n---\nb: 1", "line 2, column 1: not YAML: but found another document"),
        ("targets: \x07", "not YAML: unacceptable character"),
    ],
)
def test_only_one_plain_document_is_read(file: Path, text: str, says: str) -> None:
    assert says in "\n".join(config_errors(file, text))


def test_aliases_that_stand_for_more_than_a_file_may_hold_are_refused_while_they_are_counted(file: Path) -> None:
    levels = [f"{name}: &{name} [{','.join(['*' + before] * 9)}]" for before, name in pairwise("abcdefghij")]
    text = "\n".join(["a: &a [x,x,x,x,x,x,x,x,x]", *levels])
    assert len(text) < 500
    assert config_error(file, text) == (
        "quintain.yaml: line 6, column 4: with aliases expanded it has more than 100,000 values; use fewer or "
        "smaller aliases, or for cases JSON lines"
    )
    with pytest.raises(ConfigError, match=r"eval\.yaml: line 6, column 4: .* more than 100,000 values"):
        load_evaluation(file.rename(file.with_name("eval.yaml")))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 101 + "]" * 101, "line 1, column 101: nested too deeply: more than 100 levels"),
        (
            "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 101))]),
            "line 98, column 6: nested too deeply",
        ),
        ("a: &a {b: [*a]}", "line 1, column 4: an anchor contains itself; write the value out"),
    ],
    ids=["written out", "by aliases", "without end"],
)
def test_what_is_nested_too_deeply_is_refused_with_the_place_and_the_bound(file: Path, text: str, says: str) -> None:
    assert says in config_error(file, text)


def test_aliases_within_the_bounds_are_read(file: Path) -> None:
    config = load(file, "targets:\n  a: &a {provider: mock, response: x}\n  b: *a\n  c: {<<: *a, response: y}\n")
    assert {name: target.model_dump()["response"] for name, target in config.targets.items()} == {
        "a": "x",
        "b": "x",
        "c": "y",
    }


def test_a_file_that_cannot_be_read_is_refused_by_name(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"quintain\.yaml: cannot be read: No such file"):
        load_config(file)
    file.write_bytes(b"targets: \xff")
    with pytest.raises(ConfigError, match=r"quintain\.yaml: line 1: it is not UTF-8 text"):
        load_config(file)


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("{}", ": missing key 'targets'"),
        ("{targets: []}", ".targets: List should have at least 1 item"),
        ("{targets: [a/b]}", ".targets"),
        ("{targets: [model], max_calls: 0}", ".max_calls: "),
        ("{targets: [model], calls: 3}", ": unknown key 'calls'; did you mean 'max_calls'?"),
        ("{targets: [model], x: 3}", ": unknown key 'x'; known: targets, max_calls"),
    ],
)
def test_a_child_session_names_its_targets_and_bounds_its_calls(file: Path, says: str, words: str) -> None:
    text = f"targets:\n  agent: {{provider: target, child_session: {says}}}\n"
    assert f"targets.agent.child_session{words}" in config_error(file, text)


def test_a_tab_is_answered_with_spaces(file: Path) -> None:
    mistake = config_error(file, "targets:\n\techo: {provider: mock}\n")
    assert mistake.startswith("quintain.yaml: line 2, column 1: ")
    assert "spaces" in mistake
