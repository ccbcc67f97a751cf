"""What judges need to know of the configured targets."""

from __future__ import annotations

from pathlib import Path

from quintain.config.loader import load_config
from quintain_runner.engine.judges import agents_of, settings_of

CONFIG = """
targets:
  sage:
    provider: openai
    model: m-1
    api_key: ${{ KEY }}
    temperature: 0
    max_tokens: ${{ MOST }}
    settings: {seed: 7, extra_body: {token: "${{ KEY }}"}}
  bot: {provider: mock}
"""


def test_settings_of_judges_have_the_values_of_variables_and_nothing_that_may_be_secret(tmp_path: Path) -> None:
    (tmp_path / "quintain.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "quintain.yaml")
    found = settings_of(config, {"KEY": "hidden", "MOST": "50"})
    assert found == {"sage": {"temperature": 0.0, "max_tokens": 50, "seed": 7}, "bot": {}}
    assert settings_of(None, {}) == {}


def test_the_targets_with_steps_as_a_rule_are_those_that_act_and_can_tell_it(tmp_path: Path) -> None:
    (tmp_path / "quintain.yaml").write_text(
        """
targets:
  model: {provider: openai, model: m-1, api_key: "${{ KEY }}"}
  function: {provider: python, callable: "m:f"}
  agent: {provider: agent, agent: "m:f"}
  coder: {provider: command, preset: codex}
  program: {provider: command, command: [x], output_format: json}
  hosted: {provider: target}
  silent: {provider: http, url: "http://x/", body: {p: "{{ prompt }}"}, answer: /a}
  telling: {provider: http, url: "http://x/", body: {p: "{{ prompt }}"}, answer: /a, steps: /s}
"""
    )
    assert agents_of(load_config(tmp_path / "quintain.yaml")) == {"agent", "coder", "hosted", "telling"}
    assert agents_of(None) == set()
