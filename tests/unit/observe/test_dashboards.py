"""The dashboard and the alerts name metrics that are there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.metric_names import SERIES_PATTERN, SERIES_SUFFIXES, metric_kinds, series_names

REPOSITORY = Path(__file__).parents[3]
DASHBOARD = json.loads((REPOSITORY / "deploy" / "grafana" / "quintain.json").read_text())
RULES = yaml.safe_load((REPOSITORY / "deploy" / "prometheus" / "alerts.yaml").read_text())
SCRAPE = yaml.safe_load((REPOSITORY / "deploy" / "prometheus" / "prometheus.yaml").read_text())


def queries() -> Iterator[tuple[str, str]]:
    """Every panel's title with each of its expressions."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


@pytest.mark.parametrize(("title", "expression"), list(queries()))
def test_a_panel_asks_for_series_that_are_there(title: str, expression: str) -> None:
    named = set(SERIES_PATTERN.findall(expression))
    assert named, title
    assert named <= series_names()


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_series_that_are_there_and_says_what_to_do(rule: dict[str, Any]) -> None:
    named = set(SERIES_PATTERN.findall(rule["expr"]))
    assert named
    assert named <= series_names()
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(rule["annotations"]) == {"summary", "action"}


def test_the_names_are_prometheus() -> None:
    for name, kind in metric_kinds().items():
        assert re.fullmatch(r"quintain_[a-z_]+[a-z]", name)
        if kind == "histogram":
            assert name.endswith(("_seconds", "_size"))
    assert set(metric_kinds().values()) <= set(SERIES_SUFFIXES)


def test_the_scrape_example_scrapes_every_service() -> None:
    assert [job["job_name"] for job in SCRAPE["scrape_configs"]] == ["metadata", "worker", "host", "gateway"]
    assert SCRAPE["rule_files"] == ["alerts.yaml"]
