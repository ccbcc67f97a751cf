"""The configuration file: what it may say, and what becomes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quintain.config.loader import Config, find_config, load_config
from quintain.config.targets import MockTarget, card_of
from quintain.errors import ConfigError

FROM_THE_PROTOCOL = """
targets:                      # a map, or AgentV's list of {name: …}
  claude_base:
    provider: anthropic
    model: claude-sonnet-4-20250514
    api_key: ${{ ANTHROPIC_API_KEY }}
    max_concurrency: 8        # in flight at once, over all workers
  gpt4o:
    provider: openai
    model: gpt-4o
    judge_target: claude_base # the default target of graders that judge this one
  local:
    provider: command
    command: ["python", "bot.py", "{prompt_file}", "{system_prompt_file}", "{output_file}"]
    timeout_seconds: 30
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "quintain.yaml"


def load(file: Path, text: str) -> Config:
    file.write_text(text, encoding="utf-8")
    return load_config(file)


def test_the_example_of_the_protocol_loads_in_the_files_order(file: Path) -> None:
    config = load(file, FROM_THE_PROTOCOL)
    assert (config.path, config.folder) == (file, file.parent)
    assert list(config.targets) == ["claude_base", "gpt4o", "local"]
    claude, gpt, local = config.targets.values()
    assert (claude.model, claude.max_concurrency, claude.max_tokens) == ("claude-sonnet-4-20250514", 8, 4096)
    assert (gpt.judge_target, gpt.max_concurrency, gpt.max_tries, gpt.api) == ("claude_base", 64, 3, None)
    assert gpt.apis == ("chat", "responses", "completions", "embeddings")
    assert (local.timeout_seconds, local.output_format) == (30, "text")


def test_loading_needs_no_environment_and_names_every_variable_once(file: Path) -> None:
    config = load(
        file,
        FROM_THE_PROTOCOL
        + """
  other:
    provider: openai
    model: ${{ MODEL:-gpt-4o }}
    api_key: ${{ANTHROPIC_API_KEY}}
    base_url: https://${{ HOST }}/v1/${{ HOST }}
""",
    )
    # gpt4o names no key, so it stands for the vendor's own variable.
    assert config.variable_names == ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "MODEL", "HOST")


def test_resolving_puts_values_in_whole_within_a_text_and_by_default(file: Path) -> None:
    config = load(
        file,
        """
targets:
  it:
    provider: openai
    model: ${{ MODEL:-gpt-4o }}
    api_key: ${{ KEY }}
    base_url: "http://${{ HOST }}:${{ PORT:-80 }}/v1"
    max_concurrency: ${{ AT_ONCE }}
    timeout_seconds: ${{ SECONDS:-2.5 }}
    api: ${{ API:-responses }}
    judge_target: ${{ JUDGE:-it }}
""",
    )
    unresolved = config.targets["it"]
    assert (unresolved.max_concurrency, unresolved.api, unresolved.judge_target) == (64, None, None)

    it = config.resolve({"KEY": "the-key", "HOST": "h", "PORT": " ", "AT_ONCE": "3"}).targets["it"]
    assert (it.model, it.base_url, it.max_concurrency) == ("gpt-4o", "http://h:80/v1", 3)
    assert (it.timeout_seconds, it.apis, it.judge_target) == (2.5, ("responses",), "it")
    assert it.api_key.get_secret_value() == "the-key"


def test_a_value_is_never_searched_for_further_references(file: Path) -> None:
    config = load(file, "targets: {it: {provider: mock, response: '${{ A }}'}}")
    it = config.resolve({"A": "${{ B }}", "B": "no"}).targets["it"]
    assert it.response == "${{ B }}"


def test_all_missing_variables_are_named_in_one_error_each_with_its_place(file: Path) -> None:
    config = load(
        file,
        "targets:\n  a: {provider: openai, model: '${{ MODEL }}'}\n"
        "  b: {provider: command, command: [x, '${{ EMPTY }}']}\n  c: {provider: mock, response: '${{ OK }}'}\n",
    )
    with pytest.raises(ConfigError) as caught:
        config.resolve({"EMPTY": " ", "OK": "1"})
    assert caught.value.message.splitlines() == [
        f"{file}: targets.a.model: the environment variable MODEL is not set",
        f"{file}: targets.a.api_key: the environment variable OPENAI_API_KEY is not set",
        f"{file}: targets.b.command[1]: the environment variable EMPTY is empty",
    ]


def test_a_value_that_does_not_fit_is_refused_when_resolved_and_not_shown(file: Path) -> None:
    config = load(file, "targets: {it: {provider: mock, max_tries: '${{ TRIES }}', judge_target: '${{ JUDGE }}'}}")
    with pytest.raises(ConfigError, match=r"targets\.it\.max_tries: it must be a valid integer") as bad:
        config.resolve({"TRIES": "canary", "JUDGE": "it"})
    assert "canary" not in bad.value.message
    with pytest.raises(ConfigError, match=r"targets\.it\.judge_target: no target is named") as nobody:
        config.resolve({"TRIES": "3", "JUDGE": "canary"})
    assert "canary" not in nobody.value.message


def test_printing_or_dumping_shows_the_reference_and_never_the_value(file: Path) -> None:
    config = load(
        file,
        """
targets:
  a: {provider: openai, model: m, base_url: 'http://h/v1', api_key: '${{ KEY }}'}
  b: {provider: command, command: [curl, '-H', 'X: ${{ KEY }}'], env: {TOKEN: '${{ KEY }}'}}
  c: {provider: anthropic, model: m}
""",
    ).resolve({"KEY": "canary", "ANTHROPIC_API_KEY": "canary"})
    for shown in (
        repr(config),
        str(config.targets["a"]),
        json.dumps([target.model_dump() for target in config.targets.values()]),
        "".join(target.model_dump_json() for target in config.targets.values()),
    ):
        assert "canary" not in shown
        assert "${{ KEY }}" in shown
    assert "${{ ANTHROPIC_API_KEY }}" in repr(config)


def test_agentvs_list_of_targets_is_a_map_of_them(file: Path) -> None:
    config = load(
        file, "targets:\n- {name: b, provider: mock}\n- {name: a, provider: mock, judge_target: b, delay_ms: 5}\n"
    )
    assert list(config.targets) == ["b", "a"]
    assert config.targets["a"] == MockTarget(provider="mock", judge_target="b", delay_ms=5).with_raw(
        {"provider": "mock", "judge_target": "b", "delay_ms": 5}
    )


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_vendors_key_is_not_asked_for_where_another_host_is_named(file: Path, provider: str) -> None:
    there = load(file, f"targets: {{it: {{provider: {provider}, model: m, base_url: 'http://h'}}}}")
    assert there.variable_names == ()
    assert there.resolve({}).targets["it"].api_key is None
    at_home = load(file, f"targets: {{it: {{provider: {provider}, model: m}}}}")
    assert at_home.variable_names == (f"{provider.upper()}_API_KEY",)


def test_the_nearest_configuration_is_found_upwards_and_ours_comes_first(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "quintain.yaml").touch()
    assert find_config(deep) == tmp_path / "quintain.yaml"
    (tmp_path / "a" / "agentv.config.yaml").touch()
    assert find_config(deep) == tmp_path / "a" / "agentv.config.yaml"
    (tmp_path / "a" / "quintain.yaml").touch()
    assert find_config(deep) == tmp_path / "a" / "quintain.yaml"


def test_where_there_is_no_configuration_none_is_found(tmp_path: Path) -> None:
    # A folder of that name is no configuration.
    (tmp_path / "quintain.yaml").mkdir()
    assert find_config(tmp_path) is None


def test_a_card_says_what_the_fleet_may_know(file: Path) -> None:
    config = load(file, FROM_THE_PROTOCOL)
    assert card_of("gpt4o", config.targets["gpt4o"]).model_dump() == {
        "name": "gpt4o",
        "provider": "openai",
        "model": "gpt-4o",
        "judge_target": "claude_base",
        "worker_concurrency": None,
        "max_concurrency": 64,
        "fingerprint": None,
        "timeout_seconds": None,
        "quota": None,
        "cost": None,
    }
    assert card_of("local", config.targets["local"]).model is None


@pytest.mark.parametrize(
    ("target", "is_agent", "keeps_conversation"),
    [
        ({"provider": "mock"}, False, True),
        ({"provider": "command", "command": ["model"]}, False, True),
        ({"provider": "command", "command": ["agent"], "protocol": "jsonl"}, True, True),
        ({"provider": "command", "preset": "codex"}, True, True),
        ({"provider": "agent", "agent": "desk:agent"}, True, True),
        ({"provider": "http", "url": "https://desk.example/", "body": "{{ prompt }}"}, True, False),
        ({"provider": "target"}, False, False),
    ],
)
def test_what_may_act_and_what_keeps_a_conversation_is_known_by_the_kind(
    file: Path, target: dict[str, object], is_agent: bool, keeps_conversation: bool
) -> None:
    bot = load(file, json.dumps({"targets": {"bot": target}})).targets["bot"]
    assert (bot.is_agent, bot.keeps_conversation) == (is_agent, keeps_conversation)
    assert card_of("bot", bot).keeps_conversation is keeps_conversation
