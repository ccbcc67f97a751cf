"""The state folder: a secret of its own for each user, and a sentence where it cannot be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.errors import ConfigError
from quintain_cli.running_fleet import read_or_create_secret


def test_a_secret_is_made_once_and_read_by_this_user_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "secret"
    secret = read_or_create_secret(path)
    assert secret == read_or_create_secret(path)
    assert [one.stat().st_mode & 0o077 for one in (path, path.parent)] == [0, 0]


def test_a_folder_that_cannot_be_made_is_an_error_with_its_variable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="QUINTAIN_STATE_DIR"):
        read_or_create_secret(tmp_path / "file" / "secret")
