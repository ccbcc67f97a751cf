"""superred with hosted targets: its own suite, ours in its types and under its controller, and a page's programs.

superred has an environment of its own, made at test time: its litellm pins an older openai than the one this
environment has. It is kept with those of tests/clients, and used again while what it is made of stays the same.
superred's tests come from its source distribution on PyPI, and are never copied into this repository. All of this is in
one file, so that one process alone imports litellm for the first time, which takes long.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from generate.checkout import copy_tracked
from quintain.contracts.credentials import SessionToken
from quintain.settings import environment
from support.client_tools import cache_folder
from support.command_line import CommandLine, clean_environment, command_line
from support.pages import python_blocks, shell_blocks

REPOSITORY, HERE = Path(__file__).parents[2], Path(__file__).parent

#: A folder with the metadata of this checkout, as it is installed here, and nothing else.
METADATA = Path(sys.prefix) / "metadata"

#: The first of them makes the environment, on its own time.
pytestmark = pytest.mark.timeout(1500)

SUPERRED = "superred==0.3.0"

#: What its tests and ours need beside it, as pinned for this environment.
TOOLS = [f"{name}=={version(name)}" for name in ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis")]

#: A target that somebody else published for superred.
CHATBOT = "superred-target-chatbot"

#: Installing is 360 MB of downloads, the first time.
INSTALL_SECONDS = 900


@dataclass(frozen=True)
class SuperredEnvironment:
    """An interpreter that has superred and all that this checkout needs, and superred's unpacked source."""

    python: Path
    source: Path

    @property
    def variables(self) -> dict[str, str]:
        """What lets it import this checkout, with its metadata; and litellm fetch no price map from the network."""
        return {
            "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY / "shared", REPOSITORY / "services", METADATA))),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }

    def pytest(
        self, args: Sequence[str], folder: Path, *, path: Sequence[Path] = (), url: str, seconds: float
    ) -> subprocess.CompletedProcess[str]:
        """pytest in that environment with a broker and more folders to import from, to its end."""
        variables = self.variables
        more = os.pathsep.join([*map(str, path), variables["PYTHONPATH"]])
        urls = {"QUINTAIN_BROKER_URL": url, "QUINTAIN_TEST_BROKER_URL": url}
        return subprocess.run(
            [str(self.python), "-m", "pytest", "-p", "no:cacheprovider", *args],
            cwd=folder,
            env={**clean_environment(), **variables, **urls, "PYTHONPATH": more},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )


@pytest.fixture(scope="session")
def superred_environment() -> SuperredEnvironment:
    """An environment that has superred; made, where there is none that fits. Two that want one wait for each other."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    packages = [SUPERRED, CHATBOT, *TOOLS, *project["dependencies"], *project["optional-dependencies"]["postgres"]]
    recipe = hashlib.sha256(json.dumps([*packages, sys.version]).encode()).hexdigest()
    home = cache_folder(environment()) / f"superred-{recipe[:16]}"
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / "superred.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / ".ready").exists():
            create_environment(home, packages)
            (home / ".ready").touch()
    METADATA.mkdir(exist_ok=True)
    for folder in Path(sysconfig.get_path("purelib")).glob("quintain-*.dist-info"):
        if not (METADATA / folder.name).exists():
            (METADATA / folder.name).symlink_to(folder)
    return SuperredEnvironment(home / "bin" / "python", home / "source" / SUPERRED.replace("==", "-"))


def create_environment(home: Path, packages: Sequence[str]) -> None:
    """Make an environment with these packages in this folder, and unpack superred's source in it."""
    shutil.rmtree(home, ignore_errors=True)
    run_step([sys.executable, "-m", "venv", "--without-pip", str(home)], "making an environment for superred")
    source = home / "source"
    # Without isolation: only the metadata is made, by the hatchling of this environment.
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    download = [*pip, "download", "--no-deps", "--no-build-isolation", "--no-binary", "superred"]
    run_step([*download, "--dest", str(source), SUPERRED], f"downloading the source of {SUPERRED}")
    with tarfile.open(next(source.glob("*.tar.gz"))) as archive:
        archive.extractall(source, filter="data")
    install = [str(REPOSITORY / "deploy" / "install"), str(home / "bin" / "python")]
    run_step([*install, *packages], f"installing {SUPERRED}")


def run_step(args: list[str], description: str) -> None:
    """Run a step of the making; says what it needs where it fails."""
    done = subprocess.run(args, env=environment(), capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode != 0:
        raise AssertionError(
            f"{description} failed: these tests need PyPI (or an index that PIP_INDEX_URL names) the first time.\n"
            f"{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )


# superred's own suite, and ours in superred's types.

SUITE = 561

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
        path=(HERE, HERE.parent),
        url=url,
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
        url=broker_url,
        seconds=600,
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}{done.stderr[-2000:]}"
    assert " skipped" not in done.stdout


# The programs of the page.

PAGE, EXAMPLES = REPOSITORY / "docs" / "agents.md", REPOSITORY / "examples" / "targets"

#: The target of the page: the desk, of superred's types where superred is.
DESK = (EXAMPLES / "desk.py").read_text().replace("class Desk(", "class SupportBot(")

#: The rest of a controller's settings, and what is done with one.
BEFORE = """
import asyncio
import itertools

from superred.core import SecurityClaim
from superred.core.controller import run_all
from sweep import Ask, Keep

numbers = itertools.count()

def rest():
    return dict(
        optimizer_factory=Ask, security_claim=SecurityClaim.from_tasks([Keep("mellon")]), max_runs_per_task=1,
        results_dir=f"results/{next(numbers)}", attacker_label="ask", target_label="bot", claim_label="keep",
    )

def drive(controller):
    (result,) = asyncio.run(run_all([controller], concurrency=1))
    print([task.success for task in result.task_results])
"""


def bots() -> str:
    """The module of the target: superred's types where superred is, as in the controller's process; else ours."""
    types = re.search(r"^from quintain.target import \((.*?)^\)$", DESK, re.DOTALL | re.MULTILINE)
    assert types is not None
    names = types[1]
    either = (
        f"try:\n    from superred.core import (\n{names}    )\n"
        f"except ImportError:\n    from quintain.target import (\n{names}    )"
    )
    return DESK.replace(types[0], either)


def program_of_the_page() -> str:
    """The programs one after the other, each controller with the rest of its settings, and run."""
    local, remote, without_package, _, child, _ = python_blocks(PAGE)
    inside, after = "    # and the rest of its settings\n", ")  # and the rest of its settings\n"
    assert (local.count(inside), remote.count(inside), without_package.count(after)) == (1, 1, 1)
    local, remote = (block.replace(inside, "    **rest(),\n") for block in (local, remote))
    without_package = without_package.replace(after, ", **rest())\n")
    assert without_package.count("# the controller runs\n") == 1
    without_package = without_package.replace("# the controller runs\n", "drive(controller)\n")
    driven = f"{local}drive(controller)\n{remote}drive(controller)\n"
    # A program that ends here has given its leases back; this one goes on, and the host has four slots.
    driven += "controller._target_factory.close()\n"
    return f"{BEFORE}{driven}{without_package}{child}remote.close()\n"


def run_in(env: SuperredEnvironment, shell: CommandLine, *words: str) -> list[str]:
    """Run a program of the shell's folder with superred's interpreter; the lines that it printed."""
    command = [str(env.python), *words]
    done = subprocess.run(
        command, cwd=shell.folder, env=shell.env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_programs_of_the_page_run_over_a_host(
    superred_environment: SuperredEnvironment, broker_url: str, tmp_path: Path
) -> None:
    shutil.copy(EXAMPLES / "sweep.py", tmp_path)
    (tmp_path / "bots.py").write_text(bots())
    (tmp_path / "program.py").write_text(program_of_the_page())
    (_, serve) = next(block for block in shell_blocks(PAGE) if len(block) == 2 and "serve host" in block[1])
    env = {
        "QUINTAIN_BROKER_URL": broker_url,
        "QUINTAIN_SESSION_TOKEN": SessionToken.mint().text,
        **superred_environment.variables,
    }
    with command_line(tmp_path, env) as shell:
        host = shell.start(*serve.split()[1:])
        host.wait_for(lambda one: "ready  host" in one.stderr)
        printed = run_in(superred_environment, shell, "program.py")
        assert [line for line in printed if line.startswith("[")] == ["[True]"] * 3
        assert host.stop().code == 0


# The example's sweep as a user runs it: superred in its environment, over two hosts that know nothing of superred.


@pytest.mark.long
def test_the_examples_sweep_runs_over_two_hosts_and_leaves_superreds_tree(
    superred_environment: SuperredEnvironment, broker_url: str, tmp_path: Path
) -> None:
    copy_tracked(EXAMPLES, tmp_path)
    env = {"QUINTAIN_BROKER_URL": broker_url, **superred_environment.variables}
    with command_line(tmp_path, env) as shell:
        hosts = [shell.start("serve", "host", "desk:Desk", "--name", "desk", "--slots", "2") for _ in range(2)]
        for host in hosts:
            host.wait_for(lambda one: "ready  host" in one.stderr)
        printed = run_in(superred_environment, shell, "sweep.py", "results")
        assert printed[-2:] == ["4 of 4 secrets told"] * 2
        assert [host.stop().code for host in hosts] == [0, 0]
    manifests = [json.loads(path.read_text()) for path in (tmp_path / "results").glob("*/manifest.json")]
    assert {(one["status"], one["summary"]["n_completed"], one["summary"]["asr"]) for one in manifests} == {
        ("complete", 4, 1.0)
    }
    trajectories = list((tmp_path / "results").glob("*/tasks/*/trajectories/run_*.json"))
    assert len(trajectories) == 8
    assert (tmp_path / "results" / "experiments.json").is_file()
