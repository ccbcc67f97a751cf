"""A dataset that a program prints: run once, and what it printed is kept beside the results, so that a run that is
taken up again has the same cases without asking for them again."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from quintain.contracts.token import mask
from quintain.errors import ConfigError
from quintain.process import executable_of
from quintain_runner.atomic import replacing
from quintain_runner.dataset import DatasetFacts, check_dataset
from quintain_runner.doors import scrubbed
from quintain_runner.evaluation import Evaluation

#: How much of what a failed program wrote on stderr its error tells, in characters.
_TOLD = 300


def open_dataset(evaluation: Evaluation, kept_in: Path, env: Mapping[str, str]) -> DatasetFacts:
    """The dataset of an evaluation, every row checked; ``kept_in`` is the results' folder.

    Raises `ConfigError` with every mistake, and where its program fails.
    """
    spec = evaluation.spec.dataset
    if spec.command is None:
        return check_dataset(spec, evaluation.folder / (spec.file or ""))
    argv = json.dumps([spec.command, spec.is_csv])
    name = f"dataset-{hashlib.sha256(argv.encode()).hexdigest()[:12]}.{'csv' if spec.is_csv else 'jsonl'}"
    path = kept_in / name
    if path.exists():
        return check_dataset(spec, path)
    try:
        kept_in.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{kept_in}: cannot be written to ({error.strerror}); give another --output") from None
    programs = scrubbed(env, ())
    _print_into(path, spec.command, evaluation.folder, programs)
    try:
        return check_dataset(spec, path)
    except ConfigError:
        # What cannot be used is not kept: the program is run again when it is mended.
        path.unlink()
        raise


def _print_into(path: Path, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
    program, *rest = command
    with tempfile.TemporaryFile() as errors, replacing(path) as file:
        try:
            done = subprocess.run(  # noqa: S603 -- the operator's own program
                [executable_of(program, env), *rest],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=errors,
                check=False,
            )
        except OSError as error:
            raise ConfigError(
                f"dataset: its command {program!r} cannot be started in {folder} ({error.strerror}); check the path, "
                "and that it may be executed"
            ) from None
        if done.returncode != 0:
            raise ConfigError(f"dataset: its command failed (exit code {done.returncode}): {_end_of(errors)}")


def _end_of(errors: IO[bytes]) -> str:
    errors.seek(0)
    said = mask(errors.read().decode(errors="replace")).strip()[-_TOLD:]
    return said or "it wrote nothing on stderr"
