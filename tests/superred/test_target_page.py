"""The programs of docs/targets.md that need superred, run as printed: over hosts started as the page says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from quintain.contracts.credentials import SessionToken
from support.command_line import command_line
from support.pages import python_blocks, shell_blocks
from support.superred_environment import SuperredEnvironment

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "targets.md"

#: The target of the page: the desk, of superred's types where superred is.
DESK = (REPOSITORY / "examples" / "targets" / "desk.py").read_text().replace("class Desk(", "class SupportBot(")

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
    local, remote, without_package, _, child = python_blocks(PAGE)
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


def test_the_programs_of_the_page_run_over_a_host(
    superred_environment: SuperredEnvironment, broker_url: str, tmp_path: Path
) -> None:
    shutil.copy(REPOSITORY / "examples" / "targets" / "sweep.py", tmp_path)
    (tmp_path / "bots.py").write_text(bots())
    (tmp_path / "program.py").write_text(program_of_the_page())
    (_, serve) = next(block for block in shell_blocks(PAGE) if len(block) == 2 and "serve host" in block[1])
    env = {
        "QUINTAIN_BROKER_URL": broker_url,
        "QUINTAIN_SESSION_TOKEN": SessionToken.mint().text,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    with command_line(tmp_path, env) as shell:
        host = shell.start(*serve.split()[1:])
        host.wait_for(lambda one: "ready  host" in one.stderr)
        done = subprocess.run(
            [str(superred_environment.python), "program.py"],
            cwd=tmp_path, env=shell.env, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert [line for line in done.stdout.splitlines() if line.startswith("[")] == ["[True]"] * 3
        assert host.stop().code == 0
