"""The quotas of a configuration file: who shares which, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.config.loader import Config, load_config
from quintain.config.targets import quota_of
from quintain.contracts.quota import QuotaCard, QuotaTerms
from quintain.errors import ConfigError

TWO = """
quotas:
  team: {requests_per_minute: 5000, tokens_per_minute: 2000000, concurrency: {start: 30}}
targets:
  small: {provider: openai, model: s, api_key: '${{ KEY }}', quota: team}
  large: {provider: openai, model: l, api_key: '${{ KEY }}', quota: team}
"""


def load(folder: Path, text: str) -> Config:
    file = folder / "quintain.yaml"
    file.write_text(text, encoding="utf-8")
    return load_config(file)


def cards(folder: Path, targets: str, **env: str) -> list[QuotaCard | None]:
    config = load(folder, f"targets: {targets}").resolve(env)
    return [quota_of(target, config.quotas) for target in config.targets.values()]


def test_targets_that_name_a_quota_share_its_terms(tmp_path: Path) -> None:
    config = load(tmp_path, TWO).resolve({"KEY": "canary"})
    card = QuotaCard(
        id="team",
        name="team",
        terms=QuotaTerms(requests_per_minute=5000, tokens_per_minute=2_000_000, start=30, min=1, max=256),
    )
    assert [quota_of(target, config.quotas) for target in config.targets.values()] == [card, card]


def test_without_a_name_the_same_provider_url_key_and_model_are_one_quota(tmp_path: Path) -> None:
    a, same, other_model, other_key, other_url = found = cards(
        tmp_path,
        """
  a: {provider: openai, model: a, api_key: '${{ KEY }}'}
  same: {provider: openai, model: a, api_key: '${{ KEY }}', max_concurrency: 3}
  b: {provider: openai, model: b, api_key: '${{ KEY }}'}
  c: {provider: openai, model: a, api_key: '${{ OTHER }}'}
  d: {provider: openai, model: a, api_key: '${{ KEY }}', base_url: 'http://localhost/v1'}
""",
        KEY="canary",
        OTHER="canary2",
    )
    assert None not in found
    assert a == same
    assert len({each.id for each in (a, other_model, other_key, other_url) if each}) == 4
    # The names tell the models, and which of them have one key.
    key, other = (each.name.rpartition(", key ")[2] for each in (a, other_key) if each)
    names = [each.name for each in (a, other_model) if each]
    assert names == [f"openai at api.openai.com, {model}, key {key}" for model in "ab"]
    assert key != other
    assert "canary" not in f"{found}"


def test_an_endpoint_has_the_quota_of_its_url_and_credentials(tmp_path: Path) -> None:
    one, same, other_key, other_url = cards(
        tmp_path,
        """
  a: {provider: http, url: 'http://agent/a', headers: {authorization: '${{ KEY }}'}, body: {question: '{{ prompt }}'}}
  b: {provider: http, url: 'http://agent/a', headers: {authorization: '${{ KEY }}'}, body: {other: '{{ prompt }}'}}
  c: {provider: http, url: 'http://agent/a', headers: {authorization: '${{ OTHER }}'}, body: {a: '{{ prompt }}'}}
  d: {provider: http, url: 'http://agent/b', headers: {authorization: '${{ KEY }}'}, body: {a: '{{ prompt }}'}}
""",
        KEY="canary",
        OTHER="canary2",
    )
    assert one is not None
    assert one == same
    assert len({each.id for each in (one, other_key, other_url) if each}) == 3


def test_programs_mocks_and_targets_that_are_not_adaptive_have_none_unless_they_name_one(tmp_path: Path) -> None:
    found = cards(
        tmp_path,
        "{m: {provider: mock}, c: {provider: command, command: [x]},"
        " o: {provider: openai, model: m, base_url: 'http://h', adaptive: false}}",
    )
    assert found == [None, None, None]
    named = load(tmp_path, "quotas: {one: {}}\ntargets: {m: {provider: mock, quota: one}}")
    card = quota_of(named.targets["m"], named.quotas)
    assert card.id == "one"


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("quotas: [a]", "quotas: a list; it must be a map by name"),
        ("quotas: {a: 5}", "quotas.a: a number; it must be a map such as"),
        ("quotas: {'a b': {}}", "quotas.a b: not a quota's name"),
        ("quotas: {a: {request_per_minute: 5}}", "quotas.a: unknown key 'request_per_minute'; did you mean"),
        ("quotas: {a: {concurrency: {strat: 5}}}", "quotas.a.concurrency: unknown key 'strat'; did you mean 'start'?"),
        ("quotas: {a: {requests_per_minute: 0}}", "quotas.a.requests_per_minute: it must be greater than 0"),
        ("quotas: {a: {requests_per_minute: -5}}", "quotas.a.requests_per_minute: it must be greater than 0"),
        ("quotas: {a: {tokens_per_minute: .nan}}", "quotas.a.tokens_per_minute: it must be a finite number"),
        ("quotas: {a: {tokens_per_minute: .inf}}", "quotas.a.tokens_per_minute: it must be a finite number"),
        ("quotas: {a: {concurrency: {min: 0}}}", "quotas.a.concurrency.min: it must be greater than or equal"),
        ("quotas: {a: {concurrency: {max: 10}}}", "quotas.a.concurrency: min 1, start 20 and max 10 are not in"),
        ("quotas: {open-team: {}}", "targets.it.quota: no quota is named 'openai-team'; did you mean 'open-team'?"),
        ("quotas: {}", "targets.it.quota: no quota is named 'openai-team'"),
    ],
)
def test_a_quota_that_cannot_be_is_refused_at_its_place(tmp_path: Path, text: str, mistake: str) -> None:
    target = "{provider: mock, quota: openai-team}" if "targets.it" in mistake else "{provider: mock}"
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"{text}\ntargets: {{it: {target}}}")
    assert caught.value.message.removeprefix(f"{tmp_path}/quintain.yaml: ").startswith(mistake)


def test_a_target_says_only_once_whether_it_is_adaptive(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"targets\.it: adaptive: of a target that names a quota, write it there"):
        load(
            tmp_path,
            "quotas: {a: {}}\ntargets: {it: {provider: openai, model: m, base_url: 'http://h', quota: a,"
            " adaptive: false}}",
        )
