"""The settings of judges that rows name."""

from __future__ import annotations

from pathlib import Path

from quintain.config.loader import load_config
from quintain_runner.engine.judges import settings_of

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


def test_they_are_the_configured_ones_with_the_values_of_variables_and_without_what_may_be_secret(
    tmp_path: Path,
) -> None:
    (tmp_path / "quintain.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "quintain.yaml")
    found = settings_of(config, {"KEY": "hidden", "MOST": "50"})
    assert found == {"sage": {"temperature": 0.0, "max_tokens": 50, "seed": 7}, "bot": {}}
    assert settings_of(None, {}) == {}
