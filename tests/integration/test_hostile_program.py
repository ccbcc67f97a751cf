"""A hostile program in a sandbox: of root, of root for another user, and of another user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import hostile_host
from support.sandbox import sandbox_refusal

#: What the test itself runs in: a hole in the sandbox harms nothing.
_NAMESPACES = ["--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc", "--net", "--ipc", "--uts"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with files that everybody may read, and that only a sandbox hides."""
    with tempfile.TemporaryDirectory(prefix="quintain-test-") as name:
        made = Path(name)
        made.chmod(0o755)
        for path in ("shown/.env", "shown/.git/config", "shown/own/answer", "shown/results/session-token", "secret"):
            (made / path).parent.mkdir(parents=True, exist_ok=True)
            (made / path).write_text("a secret")
        yield made


@pytest.mark.parametrize(
    ("user", "run_as"), [(None, None), (None, "games"), ("games", None)], ids=["root", "run_as", "user"]
)
def test_a_hostile_program_leaves_its_sandbox_in_no_way(folder: Path, user: str | None, run_as: str | None) -> None:
    if (refusal := sandbox_refusal()) is not None:
        pytest.skip(refusal)
    if os.geteuid() != 0 and (user, run_as) != (None, None):
        pytest.skip("only root becomes another user")
    namespaces = _NAMESPACES if os.geteuid() == 0 else ["--user", "--map-current-user", *_NAMESPACES]
    hidden = folder / "shown/own"
    names = ("shown/.env", "shown/.git/config", "shown/own/answer", "shown/results/session-token", "secret")
    asked = {
        "user": user,
        "run_as": run_as,
        "read": str(folder / "shown"),
        "hidden": str(hidden),
        "secrets": [str(folder / name) for name in names],
    }
    finished = subprocess.run(
        ["/usr/bin/unshare", *namespaces, sys.executable, hostile_host.__file__, json.dumps(asked)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout) == []
