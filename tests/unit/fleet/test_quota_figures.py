"""What the Fleet page and `quintain status` say of quotas, and what is wrong with their providers."""

from __future__ import annotations

import pytest

from quintain.contracts.fleet import QuotaCut, QuotaList, QuotaState
from quintain.contracts.fleet_figures import FleetFigures, QuotaCondition, QuotaStatus
from quintain.contracts.quota import FailureCause, TryFailure
from quintain.fleet.tables import amount, duration, errors, fleet_tables, quota_table
from quintain_cli.commands.doctor import check_services
from quintain_metadata.fleet_model import FleetModel, FleetRows

NOW_MS = 1_700_000_000_400


def quota(**fields: object) -> QuotaState:
    """A quota whose provider answers."""
    return QuotaState(id="team", name="openai-team", targets=["small", "large"], limit=20).model_copy(update=fields)


def figures_of(*states: QuotaState) -> FleetFigures:
    """The figures of a fleet with these quotas, and nothing else."""
    rows = FleetRows(targets=[], workers=[], lost=[], budgets=[], now=NOW_MS)
    return FleetModel("m").figures(rows, QuotaList(quotas=list(states), now=NOW_MS), {}, 0.0)


@pytest.mark.parametrize(
    ("fields", "condition"),
    [
        ({}, QuotaCondition.OPEN),
        ({"out_targets": {"small": 5000}}, QuotaCondition.OPEN),
        ({"paused_ms": 1000}, QuotaCondition.PAUSED),
        ({"paused_ms": 1000, "out_ms": 10}, QuotaCondition.OUT),
        ({"out_ms": 10, "refused": True}, QuotaCondition.REFUSED),
    ],
)
def test_a_quota_has_the_worst_of_its_conditions(fields: dict[str, object], condition: QuotaCondition) -> None:
    assert QuotaStatus.of(quota(**fields), NOW_MS).condition is condition


def test_times_are_told_to_the_second_so_that_figures_of_the_same_state_are_equal() -> None:
    before = QuotaStatus.of(quota(last_cut=QuotaCut(ago_ms=7_000, cause="rate"), out_ms=9_000), NOW_MS)
    after = QuotaStatus.of(quota(last_cut=QuotaCut(ago_ms=7_050, cause="rate"), out_ms=9_050), NOW_MS + 50)
    assert before == after
    assert (before.last_cut_at, before.out_since) == (1_699_999_993_000, 1_699_999_991_000)


def test_of_providers_only_those_that_do_not_answer_are_warned_of() -> None:
    (warning,) = figures_of(quota(), quota(id="b", name="b", paused_ms=5), quota(id="c", name="c", out_ms=5)).warnings
    assert "quota c" in warning.lower()
    (warning,) = figures_of(quota(refused=True)).warnings
    assert "openai-team" in warning


def test_different_limits_of_workers_are_warned_of() -> None:
    (warning,) = figures_of(quota(differs=True), quota(id="b", name="b")).warnings
    assert "openai-team" in warning


def test_a_row_tells_the_limits_who_waits_and_why() -> None:
    state = quota(
        in_flight=12,
        waiting=412,
        throttled=7,
        requests_per_minute=600.04,
        estimated_seconds=41.2,
        out_ms=60_000,
        out_targets={"small": 40_000, "large": 50_000},
        last_cut=QuotaCut(ago_ms=120_000, cause="in_flight"),
    )
    (row,) = quota_table(figures_of(state).quotas).rows
    texts = [cell.text for cell in row.cells]
    assert (row.key, row.cells[0].under) == ("team", "large, small")
    assert texts[:1] + texts[2:] == [
        "openai-team",
        "12 of 20",
        "412, 41.2 s",
        "600",
        "-",
        "7",
        "calls in flight, 22:11:20 UTC",
    ]
    assert texts[1] == "no answer since 22:12:20 UTC, next try 22:14:00 UTC"


@pytest.mark.parametrize(
    "fields", [{"out_ms": 10, "out_targets": {"small": 5}}, {"refused": True}, {"paused_ms": 5000}]
)
def test_a_row_and_a_warning_have_the_reason_for_which_calls_wait(fields: dict[str, object]) -> None:
    failures = {"large": TryFailure(words="HTTP 500"), "small": TryFailure(words="http://x/v1, Connection refused")}
    told = figures_of(quota(failures=failures if "out_ms" in fields else {"small": failures["small"]}, **fields))
    (row,) = quota_table(told.quotas).rows
    assert row.cells[1].under == "http://x/v1, Connection refused"
    assert all("Connection refused" in warning for warning in told.warnings)
    (quiet,) = quota_table(figures_of(quota(failures=failures)).quotas).rows
    assert quiet.cells[1].under == ""


@pytest.mark.parametrize(
    ("cause", "fields", "mend"),
    [
        (FailureCause.NOT_TAKEN, {"out_ms": 10, "out_targets": {"small": 5}}, "base_url"),
        (FailureCause.WRONG_ADDRESS, {"out_targets": {"small": 5}}, "base_url"),
        (FailureCause.NOT_FOUND, {}, "/v1"),
        (None, {"refused": True}, "key"),
    ],
)
def test_the_doctor_names_a_provider_in_trouble_with_its_url_and_the_mend(
    cause: FailureCause | None, fields: dict[str, object], mend: str
) -> None:
    failures = {"small": TryFailure(words="it said so (http://x, HTTP 404)", cause=cause)}
    found = [
        check for check in check_services(figures_of(quota(failures=failures, **fields))) if check.what == "provider"
    ]
    (check,) = found
    assert (check.verdict, "http://x, HTTP 404" in check.says) == ("warn", True)
    assert mend in (check.mend or "")


def test_a_target_that_failed_once_is_no_trouble() -> None:
    failures = {"small": TryFailure(words="HTTP 500"), "large": TryFailure(words="no", cause=FailureCause.NOT_TAKEN)}
    assert figures_of(quota(failures=failures)).warnings == []


def test_the_quotas_are_a_table_of_the_fleet() -> None:
    assert "Quotas" in [table.title for table in fleet_tables(figures_of(quota()))]


# Values in words, as the Fleet page and `quintain status` show them.


def test_values_in_words() -> None:
    assert [duration(value) for value in (None, 12.4, 1500, 90_000)] == ["-", "12 ms", "1.5 s", "1.5 min"]
    assert [amount(value) for value in (None, 9999, 12_000, 2_500_000)] == ["-", "9999", "12.0 k", "2.5 M"]
    assert errors({"a": 1, "b": 3, "c": 2, "d": 1, "e": 1}) == "3 × b, 2 × c, 1 × a, 2 others"
