"""What a grader that a run starts finds in its environment: its session's doors, and nobody's keys."""

from __future__ import annotations

import json
import os

from support.command_line import CommandLine
from support.evaluations import write_files
from support.process_fleet import ADMIN_TOKEN
from support.sandbox import sandbox_refusal

GRADER = """
import json, os
with open("seen.json", "w") as seen:
    json.dump(dict(os.environ), seen)
print('{"score": 1}')
"""

CONFIG = """
targets:
  bot: {provider: mock}
  paid: {provider: command, command: ["true"], env: {KEY: "${{ PROVIDER_KEY }}", URL: "${{ PROVIDER_URL:-none }}"}}
"""

EVALUATION = """
dataset: cases.jsonl
targets: [bot]
graders: [{name: looks, command: [python, grader.py]}]
"""

SECRETS = {"PROVIDER_KEY": "a key of the provider", "PROVIDER_URL": "https://paid.example/v1"}

#: ``docs/protocol/programs.md``: by these a grader finds its session, whatever client it uses.
GRADER_VARIABLES = {
    "AGENTV_PROVIDER_PROXY_TOKEN",
    "AGENTV_PROVIDER_PROXY_URL",
    "AGENTV_TARGET_PROXY_TOKEN",
    "AGENTV_TARGET_PROXY_URL",
    "OPENAI_API_KEY",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_API_KEY",
    "OPENAI_BASE_URL",
    "QUINTAIN_GATEWAY_URL",
    "QUINTAIN_SESSION_TOKEN",
}


def test_a_grader_finds_its_sessions_connection_and_no_key(shell: CommandLine) -> None:
    evaluation = EVALUATION.replace("grader.py]", "grader.py], env_from: [LISTED]")
    write_files(shell.folder, cases=1, quintain_yaml=CONFIG, grader_py=GRADER, eval_yaml=evaluation)
    ledger = f"sqlite://{shell.folder / 'own-ledger.sqlite3'}"
    ran = shell.run(
        *("run", "eval.yaml"),
        env={
            **SECRETS,
            "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN,
            "QUINTAIN_LEDGER_URL": ledger,
            "LISTED": "is kept",
            "AWS_SECRET_ACCESS_KEY": "of a cloud",
        },
    )
    assert "\nrights   grader looks:" in ran.stderr, "whose programs have the user's rights is said first"
    seen = json.loads((shell.folder / "seen.json").read_text())
    hidden = {*SECRETS, "QUINTAIN_ADMIN_TOKEN", "QUINTAIN_BROKER_URL", "QUINTAIN_LEDGER_URL"}
    assert hidden & seen.keys() == set()
    for secret in (*SECRETS.values(), ADMIN_TOKEN):
        assert not [name for name, value in seen.items() if secret in value]
    assert seen["LISTED"] == "is kept"
    assert "AWS_SECRET_ACCESS_KEY" not in seen
    assert seen.keys() >= GRADER_VARIABLES
    assert seen["OPENAI_API_KEY"] == seen["AGENTV_TARGET_PROXY_TOKEN"] == seen["QUINTAIN_SESSION_TOKEN"]
    run_token = (shell.folder / "runs" / "eval" / "session-token").read_text().strip()
    assert run_token not in seen.values(), "a grader has a session of its own"


FUNCTION = """
import pathlib, sys
import quintain

@quintain.grader
async def asks(output, session):
    answer = await session.invoke("and?")
    here = pathlib.Path(__file__).parent
    hidden = not list((here / "runs").glob("*")) and not (here / ".env").is_file()
    return {"score": float(hidden and bool(answer.raw_text))}
"""

READS_A_FILE = """
import json, os, pathlib, sys
json.load(sys.stdin)
hidden = not pathlib.Path("runs/eval/session-token").exists()
print(json.dumps({"score": float(hidden and "QUINTAIN_SESSION_TOKEN" in os.environ)}))
"""


def test_graders_in_a_sandbox_call_their_session_and_see_nothing_of_the_run(shell: CommandLine) -> None:
    evaluation = EVALUATION.replace(
        "graders: [{name: looks, command: [python, grader.py]}]",
        "graders: [{name: asks, function: 'judges:asks', sandbox: bwrap},"
        "{name: reads, command: [python, grader.py], sandbox: {memory_mib: 512}}]",
    )
    write_files(
        shell.folder, cases=1, quintain_yaml=CONFIG, grader_py=READS_A_FILE, judges_py=FUNCTION, eval_yaml=evaluation
    )
    (shell.folder / ".env").write_text("KEY=secret")
    if sandbox_refusal() is not None:
        # Never without it: the run is refused.
        shell.run("run", "eval.yaml", code=2, env=SECRETS)
        return
    if os.geteuid() == 0:
        # Root's sandbox runs as another user, who must be allowed to read the folder.
        refused = shell.run("run", "eval.yaml", code=2, env=SECRETS).stderr
        assert "'nobody'" in refused
        assert str(shell.folder) in refused
        shell.folder.chmod(0o755)
    ran = shell.run("run", "eval.yaml", env=SECRETS)
    assert "rights" not in ran.stderr
    (row,) = (json.loads(line) for line in (shell.folder / "runs" / "eval" / "results.jsonl").read_text().splitlines())
    assert [(verdict["score"], verdict.get("error")) for verdict in row["graders"].values()] == [(1.0, None)] * 2
