"""The example's sweep as a user runs it: superred in its environment, over two hosts that know nothing of superred."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from generate.checkout import copy_tracked
from support.command_line import command_line
from support.superred_environment import SuperredEnvironment

EXAMPLES = Path(__file__).parents[2] / "examples" / "targets"


@pytest.mark.long
def test_the_examples_sweep_runs_over_two_hosts_and_leaves_superreds_tree(
    superred_environment: SuperredEnvironment, broker_url: str, tmp_path: Path
) -> None:
    copy_tracked(EXAMPLES, tmp_path)
    env = {"QUINTAIN_BROKER_URL": broker_url, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with command_line(tmp_path, env) as shell:
        hosts = [shell.start("serve", "host", "desk:Desk", "--name", "desk", "--slots", "2") for _ in range(2)]
        for host in hosts:
            host.wait_for(lambda one: "ready  host" in one.stderr)
        done = subprocess.run(
            [str(superred_environment.python), "sweep.py", "results"],
            cwd=tmp_path,
            env=shell.env,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-2:] == ["4 of 4 secrets told"] * 2
        assert [host.stop().code for host in hosts] == [0, 0]
    manifests = [json.loads(path.read_text()) for path in (tmp_path / "results").glob("*/manifest.json")]
    assert {(one["status"], one["summary"]["n_completed"], one["summary"]["asr"]) for one in manifests} == {
        ("complete", 4, 1.0)
    }
    trajectories = list((tmp_path / "results").glob("*/tasks/*/trajectories/run_*.json"))
    assert len(trajectories) == 8
    assert (tmp_path / "results" / "experiments.json").is_file()
