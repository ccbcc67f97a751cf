"""superred's own suite, with every Controller's target behind `remote_factory`: 561 tests that know nothing of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from support.superred_environment import SuperredEnvironment

SUITE = 561

HERE = Path(__file__).parent

#: The property of a test's report that `remote_plugin` adds where a host ran a target.
RAN_PROPERTY = "ran a target over the bus"

#: What fails where the target lives in another process, and why: each of these reads or counts something on the Python
#: object (or the variable of a closure) that then lives in the other process. The words are those of its assertion.
READS_ITS_OBJECT = {
    "TestControllerInit::test_factory_called_once_per_task": ("a counter in the factory's closure", "assert 0 == 3"),
    "TestControllerRun::test_teardown_called": ("target.torn_down", "torn_down"),
    "TestControllerRun::test_reset_ephemeral_state_called_after_each_run": ("target.reset_count", "reset_count"),
    "TestExceptionSafety::test_target_run_raises_is_contained_per_task": ("target.torn_down", "torn_down"),
    "TestExceptionSafety::test_task_evaluate_raises_is_contained_per_task": ("target.torn_down", "torn_down"),
    "TestExceptionSafety::test_optimizer_on_event_raises_is_contained_per_task": ("target.torn_down", "torn_down"),
    "TestExceptionSafety::test_partial_runs_preserved_when_task_errors_mid_loop": ("target.torn_down", "torn_down"),
    "TestExceptionSafety::test_target_reset_ephemeral_state_invoked_in_finally_after_failed_run": (
        "target.reset_count",
        "reset_count",
    ),
    "TestExceptionSafety::test_target_reset_ephemeral_state_error_treated_as_error": ("target.torn_down", "torn_down"),
    "TestParallelExecution::test_tasks_run_in_parallel_up_to_concurrency": ("a counter of the class", "peak"),
    "TestParallelExecution::test_concurrency_one_is_sequential": ("a counter of the class", "peak"),
    "TestDynamicScopePersistence::test_reused_identity_resumes_without_error": ("target.run_count", "run_count"),
    "TestTargetConfigPerTask::test_config_does_not_bleed_between_tasks": (
        "a list of what each target was configured with",
        "'Confidential: ALPHA' in []",
    ),
    "TestBudgetExhaustionGraceful::test_budget_exhaustion_stops_task_not_evaluation": ("target.run_count", "run_count"),
    "TestBudgetExhaustedStopsTask::test_budget_exhausted_breaks_not_continues": (
        "a counter in the target's closure",
        "assert 0 == 2",
    ),
}


#: It expects four runs of 50 ms to overlap: where leases come one after another, that depends on the machine.
NEEDS_QUICK_LEASES = "TestParallelExecution::test_tasks_run_in_parallel_up_to_concurrency"

#: The files with tests that drive a target.
WITH_TARGETS = tuple(
    f"tests/test_{name}.py"
    for name in (
        *("controller", "controller_errors", "controller_persistence", "dynamic_scope", "integration"),
        *("llm", "mutations", "output_rework_fixes", "reporting"),
    )
)

#: How many of their tests run a target.
RUN_A_TARGET = 151


@dataclass(frozen=True)
class Verdict:
    """What became of the suite: the tests that ran, those whose host ran a target, and what each failure said."""

    ran: set[str]
    ran_a_target: set[str]
    failed: dict[str, str]


def suite_behind_rabbitmq(env: SuperredEnvironment, url: str, host: str, folder: Path, *selection: str) -> Verdict:
    """Run their suite, or this part of it, with targets hosted in this way."""
    report = folder / "report.xml"
    options = ["-q", "-o", "addopts=", "-p", "remote_plugin", "--host", host, "--timeout=60", f"--junitxml={report}"]
    done = env.pytest(
        [*options, *(selection or ["tests"])],
        env.source,
        env={"QUINTAIN_BROKER_URL": url, "PYTHONPATH": f"{HERE}:{HERE.parent}"},
        seconds=1200,
    )
    assert report.exists(), f"pytest ended with {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    cases = {
        f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}": case
        for case in ET.parse(report).iter("testcase")
    }
    failed = {
        name: each.get("message", "")
        for name, case in cases.items()
        for each in case
        if each.tag in {"failure", "error", "skipped"}
    }
    ran_a_target = {
        name for name, case in cases.items() if any(each.get("name") == RAN_PROPERTY for each in case.iter("property"))
    }
    return Verdict(set(cases), ran_a_target, failed)


def require_expected(verdict: Verdict) -> None:
    """All targets ran on hosts, and only those tests failed that read the target's object."""
    assert len(verdict.ran_a_target) == RUN_A_TARGET
    assert verdict.failed.keys() <= READS_ITS_OBJECT.keys(), verdict.failed
    otherwise = {name: said for name, said in verdict.failed.items() if READS_ITS_OBJECT[name][1] not in said}
    assert otherwise == {}, "it fails, and for another reason than the one listed"


@pytest.mark.long
def test_their_whole_suite_with_hosts_in_processes(
    superred_environment: SuperredEnvironment, broker_url: str, tmp_path: Path
) -> None:
    verdict = suite_behind_rabbitmq(superred_environment, broker_url, "process", tmp_path)
    assert len(verdict.ran) == SUITE
    require_expected(verdict)


@pytest.mark.long
def test_those_that_read_the_targets_object_pass_with_a_host_on_a_thread(
    superred_environment: SuperredEnvironment, broker_url: str, tmp_path: Path
) -> None:
    names = " or ".join(name.rpartition("::")[2] for name in READS_ITS_OBJECT)
    verdict = suite_behind_rabbitmq(superred_environment, broker_url, "thread", tmp_path, *WITH_TARGETS, "-k", names)
    assert verdict.ran_a_target >= READS_ITS_OBJECT.keys()
    assert verdict.failed.keys() <= {NEEDS_QUICK_LEASES}, verdict.failed


@pytest.mark.parametrize(
    "suite",
    [
        pytest.param("tests/conformance/test_targets.py", marks=pytest.mark.long, id="in superred's vocabulary"),
        pytest.param("tests/superred/controllers", id="under its controller"),
    ],
)
def test_our_own_suite_holds(superred_environment: SuperredEnvironment, broker_url: str, suite: str) -> None:
    done = superred_environment.pytest(
        ["-q", "-k", "superred", suite],
        HERE.parents[1],
        env={"QUINTAIN_TEST_BROKER_URL": broker_url},
        seconds=600,
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}{done.stderr[-2000:]}"
    assert " skipped" not in done.stdout
