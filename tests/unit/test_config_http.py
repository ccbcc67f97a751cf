"""Targets behind HTTP endpoints in the configuration: what is refused by name, and what of them is told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from quintain.config.fingerprint import target_fingerprints
from quintain.config.http_targets import HttpTarget
from quintain.config.loader import Config, load_config
from quintain.config.prices import target_price
from quintain.contracts.money import CostTerms
from quintain.errors import ConfigError
from quintain_worker.cost_bound import CostRule

ENV = {"BOT_KEY": "canary-0123456789", "HOST": "agents.example"}

ASK: Mapping[str, object] = {"url": "https://h/ask", "body": {"q": "{{ prompt }}"}, "answer": "/out"}
BEARER = {"Authorization": "Bearer ${{ BOT_KEY }}"}


def load(folder: Path, **keys: object) -> Config:
    file = folder / "quintain.yaml"
    target = {"provider": "http", **ASK, **keys}
    given = {key: value for key, value in target.items() if value is not ...}
    file.write_text(yaml.safe_dump({"targets": {"bot": given}}))
    return load_config(file)


def resolved(folder: Path, env: Mapping[str, str] = ENV, **keys: object) -> HttpTarget:
    target = load(folder, **keys).resolve(env).targets["bot"]
    assert isinstance(target, HttpTarget)
    return target


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"headers": {"Authorization": "Bearer abc"}}, "headers.Authorization"),
        ({"headers": {"authorization": "Bearer abc ${{ BOT_KEY }}"}}, "headers.authorization"),
        ({"headers": {"Authorization": "Bearer ${{ BOT_KEY:-abc }}"}}, "headers.Authorization"),
        ({"headers": {"X-Api-Key": "abc"}}, "headers.X-Api-Key"),
        ({"headers": {"Cookie": "a=b"}}, "headers.Cookie"),
        ({"headers": {"X-Team": "sk-0123456789abcdefghij"}}, "headers.X-Team"),
        ({"headers": {"X-Team": "{{ prompt }}"}}, "headers"),
        ({"headers": {"Host": "other"}}, "headers"),
        ({"headers": {"X Team": "a"}}, "headers"),
        ({"headers": {"X-Team": "a\r\nX-Other: b"}}, "headers"),
        ({"url": "ftp://h/ask"}, "url"),
        ({"url": "https://user:word@h/ask"}, "url"),
        ({"url": "https://{{ session }}.h/ask"}, "url"),
        ({"url": "https://h/ask#there"}, "url"),
        ({"url": "https://h/{{ sesion }}"}, "url"),
        ({"body": {"q": ["{{ promt }}"]}}, "body"),
        ({"answer": "out"}, "answer"),
        ({"answer": "/a~2"}, "answer"),
        ({"body": {"q": "fixed"}}, "body"),
        ({"method": "GET"}, "body"),
        ({"body": {"q": "{{ prompt }}", "s": "{{ session }}"}}, "session"),
        ({"session": "/s"}, "session"),
        ({"answer": ..., "steps": "/steps"}, "steps"),
        ({"stream": {"text": "/t"}}, "stream"),
        ({"answer": ..., "stream": {"end": "/e"}}, "stream"),
        ({"answer": ..., "stream": {"txt": "/e"}}, "stream"),
        ({"usage": {"input": "/i"}}, "usage"),
        ({"preset": "a2a"}, "body"),
        ({"preset": "a2a", "body": ..., "answer": ..., "url": "https://h/{{ prompt }}"}, "url"),
    ],
)
def test_a_mistake_is_refused_by_name_at_load(tmp_path: Path, keys: dict[str, object], place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, **keys)
    assert f"targets.bot.{place}" in caught.value.message or f"targets.bot: {place}" in caught.value.message
    assert "abc" not in caught.value.message


def test_a_variable_that_makes_a_mistake_is_named_when_it_is_known(tmp_path: Path) -> None:
    url = {"url": "https://${{ HOST }}/ask"}
    assert resolved(tmp_path, **url).url == "https://agents.example/ask"
    for keys, value in (
        (url, {"HOST": "user@h"}),
        (url, {"HOST": "{{ session }}"}),
        ({"headers": BEARER}, {"BOT_KEY": "a\nb"}),
    ):
        config = load(tmp_path, **keys)
        with pytest.raises(ConfigError):
            config.resolve(value)


def test_no_credential_is_shown(tmp_path: Path) -> None:
    target = resolved(tmp_path, headers=BEARER, url="https://h/ask?k=${{ BOT_KEY }}")
    assert ENV["BOT_KEY"] not in f"{target!r} {target.model_dump_json()}"
    assert ENV["BOT_KEY"] in target.secrets
    assert ENV["BOT_KEY"] in resolved(tmp_path, body={"q": "{{ prompt }}", "k": ["x-${{ BOT_KEY }}-y"]}).secrets


@pytest.mark.parametrize(
    ("body", "keeps"),
    [
        ({"q": "{{ prompt }}"}, False),
        ({"q": "{{ messages }}"}, True),
        ({"q": "{{ prompt }}", "c": "{{ conversation_id }}"}, True),
    ],
)
def test_whether_it_keeps_a_conversation(tmp_path: Path, body: object, keeps: bool) -> None:
    assert resolved(tmp_path, body=body).keeps_conversation is keeps


def test_its_fingerprint_has_its_template_and_no_credential(tmp_path: Path) -> None:
    def fingerprint(env: Mapping[str, str] = ENV, **keys: object) -> str:
        return target_fingerprints({"bot": resolved(tmp_path, env, **keys)}, tmp_path, {})["bot"].first

    assert fingerprint(headers=BEARER) == fingerprint({"BOT_KEY": "another-key"}, headers=BEARER)
    others = [
        {},
        {"body": {"q": "Q: {{ prompt }}"}},
        {"answer": "/b"},
        {"headers": {"X-Max-Tokens": "9"}},
        {"url": "http://h"},
    ]
    assert len({fingerprint(**keys) for keys in others}) == len(others)


def test_under_a_limit_in_money_it_needs_a_price_for_each_call(tmp_path: Path) -> None:
    def terms(price: object) -> CostTerms:
        target = resolved(tmp_path, price=price)
        return CostRule.of_target("bot", target, target_price(target)).terms()

    assert "targets.bot.price" in (terms(...).problem or "")
    assert "per_call" in (terms({"input_per_million": 1, "output_per_million": 1}).problem or "")
    assert (terms({"per_call": 0.02}).per_call_usd, terms({"per_call": 0.02}).problem) == (0.02, None)
