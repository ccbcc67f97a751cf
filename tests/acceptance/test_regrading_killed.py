"""A re-grading that is killed with SIGKILL, at any moment, leaves no row that says what it is not."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from quintain_runner.results.row import Row
from quintain_runner.results.store import all_current_rows
from support.command_line import CommandLine
from support.evaluations import write_files

CASES = 12

BOT = "cat; echo . >> asked.txt\n"

#: Says which version of itself it is. As the grading of this number it kills the run, which started it.
GRADER = """
cat > /dev/null
echo . >> graded.txt
if [ "$(wc -l < graded.txt)" -eq "$(cat kill_at.txt)" ]; then kill -9 $PPID; fi
echo '{{"score": {score}, "reason": "version {score}"}}'
"""

EVALUATION = {
    "dataset": "cases.jsonl",
    "graders": [
        {"name": "same", "builtin": "exact"},
        {"name": "script", "command": ["sh", "grade.sh"], "target": {"max_calls": 0}},
    ],
}


def write_grader(folder: Path, score: float, *, kill_at: int) -> None:
    write_files(folder, cases=CASES, grade_sh=GRADER.format(score=score), eval_yaml=json.dumps(EVALUATION), bot_sh=BOT)
    (folder / "quintain.yaml").write_text("targets: {bot: {provider: command, command: [sh, bot.sh]}}\n")
    (folder / "kill_at.txt").write_text(str(kill_at))
    (folder / "graded.txt").write_text("")


def rows(shell: CommandLine) -> list[Row]:
    return list(all_current_rows(shell.folder / "runs" / "eval"))


def test_a_re_grading_that_is_killed_at_any_moment_leaves_true_rows(shell: CommandLine) -> None:
    write_grader(shell.folder, 0.0, kill_at=-1)
    shell.run("run", "eval.yaml")
    first = {row.case_id: row for row in rows(shell)}
    version_of = {first["case-1"].graders["script"].fingerprint: 0.0}
    for kill_at in (1, 3, 5):
        write_grader(shell.folder, 1.0, kill_at=kill_at)
        ended = shell.start("run", "eval.yaml", "--concurrency", "1", "--graders", "1").wait()
        assert ended.code == -signal.SIGKILL, ended
        found = rows(shell)
        assert len(found) == CASES
        for row in found:
            script = row.graders["script"]
            version = version_of.setdefault(script.fingerprint, 1.0)
            assert (script.score, script.reason, row.score) == (version, f"version {version}", (1.0 + version) / 2)
            assert (row.counts, row.output) == (version == 1.0, first[row.case_id].output)
    write_grader(shell.folder, 1.0, kill_at=-1)
    shell.run("run", "eval.yaml")
    last = rows(shell)
    assert {row.graders["script"].score for row in last} == {1.0}
    assert [(row.counts, row.calls) for row in last] == [(True, 1)] * CASES
    assert len(version_of) == 2
    assert (shell.folder / "asked.txt").read_text().count("\n") == CASES
