"""Which revision an evaluation was run from."""

from __future__ import annotations

import subprocess
from pathlib import Path

from quintain_runner.report.run_file import revision_of
from support.command_line import clean_environment


def git(folder: Path, *words: str) -> str:
    env = {**clean_environment(), "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", *who, *words], cwd=folder, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_it_is_the_commit_and_whether_tracked_files_differ(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "eval.yaml").write_text("one\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "results.jsonl").write_text("nobody tracks this\n")
    found = revision_of(tmp_path)
    assert found is not None
    assert found.model_dump() == {"commit": commit, "dirty": False}
    (tmp_path / "eval.yaml").write_text("two\n")
    changed = revision_of(tmp_path)
    assert changed is not None
    assert (changed.commit, changed.dirty) == (commit, True)


def test_outside_a_repository_and_before_its_first_commit_there_is_none(tmp_path: Path) -> None:
    assert revision_of(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert revision_of(tmp_path) is None
