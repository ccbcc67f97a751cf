"""Runs the command that prints a dataset, and stores its output in the results folder.

The command runs once for each results folder, so that a resumed run uses the same cases.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from quintain.contracts.proof import mask_tokens
from quintain.errors import ConfigError
from quintain.programs.processes import run_to_file
from quintain.programs.program import CannotStart, Program, check_rights, program_environment, start_problem
from quintain.programs.sandbox import Confinement
from quintain_runner.dataset.reader import DatasetStats, check_dataset
from quintain_runner.dataset.requirements import CaseRequirement
from quintain_runner.results.atomic_file import atomic_write
from quintain_runner.spec.evaluation import Evaluation

#: The most characters of a failed command's stderr that its error shows.
_MAX_STDERR_CHARACTERS = 300


def open_dataset(
    evaluation: Evaluation,
    results_folder: Path,
    env: Mapping[str, str],
    requirements: Sequence[CaseRequirement] = (),
) -> DatasetStats:
    """Check every row of an evaluation's dataset, and every selected case against ``requirements``; if the dataset is
    a command without stored output, run the command first.

    ``results_folder`` is where the output is stored, and ``env`` the environment of the command, from which secrets are
    removed. Raises `ConfigError` with all errors of the dataset, or if the command fails.
    """
    spec = evaluation.spec.dataset
    if spec.command is None:
        return check_dataset(spec, evaluation.folder / (spec.file or ""), requirements, evaluation.prompts)
    argv = json.dumps([spec.command, spec.is_csv])
    name = f"dataset-{hashlib.sha256(argv.encode()).hexdigest()[:12]}.{'csv' if spec.is_csv else 'jsonl'}"
    path = results_folder / name
    if path.exists():
        return check_dataset(spec, path, requirements, evaluation.prompts)
    try:
        results_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{results_folder}: cannot be written to ({error.strerror}); give another --output") from None
    program_env = program_environment(env, env_from=spec.env_from, own=spec.env)
    confinement = Confinement(
        run_as=spec.run_as, sandbox=spec.sandbox, read=(evaluation.folder,), hidden=(results_folder,)
    )
    program = Program(argv=spec.command, env=program_env, cwd=evaluation.folder, confinement=confinement)
    problem = start_problem(program)
    if problem is not None:
        raise ConfigError(f"{evaluation.path}: dataset: {problem}")
    try:
        check_rights(program)
    except ConfigError as error:
        raise ConfigError(f"{evaluation.path}: dataset: {error.message}") from None
    _run_command_into(path, program)
    try:
        return check_dataset(spec, path, requirements, evaluation.prompts)
    except ConfigError:
        # Invalid output is not kept, so that the command runs again once it is fixed.
        path.unlink()
        raise


def _run_command_into(path: Path, program: Program) -> None:
    """Run a dataset command and write its stdout to ``path``. Raises `ConfigError` if it fails."""
    with tempfile.TemporaryFile() as errors, atomic_write(path) as file:
        try:
            exit_code = run_to_file(program, stdout=file, stderr=errors)
        except CannotStart as error:
            raise ConfigError(
                f"dataset: its command {program.argv[0]!r} cannot be started in {program.cwd} ({error.reason}); check "
                "the path, and that it may be executed"
            ) from None
        if exit_code != 0:
            raise ConfigError(f"dataset: its command failed (exit code {exit_code}): {_stderr_tail(errors)}")


def _stderr_tail(errors: IO[bytes]) -> str:
    """The end of the command's stderr, with session tokens masked."""
    errors.seek(0)
    text = mask_tokens(errors.read().decode(errors="replace")).strip()[-_MAX_STDERR_CHARACTERS:]
    return text or "it wrote nothing on stderr"
