"""Evaluations from a Python program or a notebook: `run` for an evaluation file, `evaluate` for cases and graders.

    import quintain

    result = quintain.evaluate([{"id": "1", "question": "2 + 2?", "expected": "4"}], "claude", ["exact"])
    print(result.mean_score)

They do what `quintain run` does: the same files, the same budget, and the same call again asks only what changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import json
import os
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import yaml

from quintain.errors import ConfigError
from quintain.graders import Case, Grader
from quintain.settings import environment
from quintain_runner.engine.execution import execute_run
from quintain_runner.engine.run_settings import RunOptions
from quintain_runner.files import atomic_write
from quintain_runner.report.report_files import flat_rows
from quintain_runner.report.run_report import RunReport
from quintain_runner.results.row import Row

Returned = TypeVar("Returned")

#: A case: its fields as in a line of a dataset, or a `Case`.
CaseFields = Case | Mapping[str, object]

#: A grader: a function with ``@quintain.grader``, the name of a built-in one, or its fields as in an evaluation file.
GraderFields = Grader[..., Any] | str | Mapping[str, object]


@dataclass(frozen=True)
class EvaluationResult:
    """The results of a run; ``report`` has its statistics and cost.

    Example::

        for row in result.rows:
            print(row.case_id, row.target, row.score, row.output)
    """

    report: RunReport

    @property
    def folder(self) -> Path:
        """The results folder, which `quintain report` and `quintain compare` read."""
        return self.report.folder

    @property
    def exit_code(self) -> int:
        """The exit code that `quintain run` would have."""
        return int(self.report.summary.exit_code)

    @property
    def mean_score(self) -> float | None:
        """The mean score of all graded rows, None if there are none. Errors are not in it."""
        return self.report.summary.total.mean_score

    @cached_property
    def rows(self) -> list[Row]:
        """Every row: one for each case, target, prompt and repeat, also those with errors."""
        return list(self.report.rows())

    def to_pandas(self) -> Any:
        """Return the rows as a ``pandas.DataFrame`` with the columns of ``quintain report --csv``.

        Raises `ConfigError` if pandas is not installed.

        Example::

            result.to_pandas().groupby("target")["score"].mean()
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise ConfigError("pandas is not installed: pip install pandas. Without it, use result.rows") from None
        columns, rows = flat_rows(self.report)
        return pandas.DataFrame(list(rows), columns=columns)


def run(
    path: str | Path,
    *,
    output: str | Path | None = None,
    config: str | Path | None = None,
    max_calls: int | None = None,
) -> EvaluationResult:
    """Run an evaluation file as ``quintain run`` does, without output, and return its results.

    - ``output``: the results folder, by default ``runs/<name of the file>``.
    - ``config``: the configuration file, by default ``quintain.yaml`` beside the evaluation file or above.
    - ``max_calls``: the call budget, graders included.

    It blocks, also in a notebook. A spent budget and rows with errors are no exception: see ``exit_code``. Raises
    `ConfigError` for wrong files, else a `QuintainError`.

    Example::

        result = quintain.run("eval.yaml", max_calls=200)
    """
    options = RunOptions(
        path=Path(path),
        output=None if output is None else Path(output),
        config=None if config is None else Path(config),
        max_calls=max_calls,
        command=f"quintain run {path}",
    )
    return EvaluationResult(_run_blocking(execute_run(options)))


def evaluate(
    cases: Iterable[CaseFields],
    target: str | Sequence[str],
    graders: Iterable[GraderFields],
    *,
    output: str | Path = "runs/evaluate",
    config: str | Path | None = None,
    max_calls: int | None = None,
) -> EvaluationResult:
    """Ask a target, or several, about each case, grade the answers, and return the results.

    - ``cases``: mappings such as ``{"id": "1", "question": "2 + 2?", "expected": "4"}``, or `quintain.Case` objects.
    - ``target``: the name of a target of the configuration, or several names.
    - ``graders``: functions with ``@quintain.grader``, names of built-in graders such as ``"exact"``, or mappings as
      in an evaluation file. A function runs in a process of its own, so it must be in a module.
    - ``output``: the folder for the results; ``eval.yaml`` and ``cases.jsonl`` are written there, too.
    - ``config`` and ``max_calls``: as for `run`.

    The same call again asks and grades only what changed. Raises as `run`, and `ConfigError` for a grader that is
    defined in the main program, in a notebook or inside a function.

    Example::

        cases = [{"id": "1", "question": "2 + 2?", "expected": "4"}]
        result = quintain.evaluate(cases, "claude", ["exact", judges.polite])
    """
    folder = Path(output)
    content = {
        "dataset": "cases.jsonl",
        "targets": [target] if isinstance(target, str) else list(target),
        "graders": [_grader_fields(grader) for grader in graders],
    }
    lines = [json.dumps(_case_fields(case), ensure_ascii=False) for case in cases]
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("eval.yaml", yaml.safe_dump(content, sort_keys=False)), ("cases.jsonl", "\n".join(lines))):
        with atomic_write(folder / name) as file:
            file.write(f"{text}\n".encode())
    return run(folder / "eval.yaml", output=folder, config=config, max_calls=max_calls)


def _case_fields(case: CaseFields) -> dict[str, object]:
    if isinstance(case, Mapping):
        return dict(case)
    fields = case.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"metadata"})
    return {**case.metadata, **fields}


def _grader_fields(grader: GraderFields) -> dict[str, object]:
    """The grader as an evaluation file has it. Raises `ConfigError` if its function cannot be imported by name."""
    if isinstance(grader, str):
        return {"name": grader, "builtin": grader}
    if isinstance(grader, Mapping):
        return dict(grader)
    function = inspect.unwrap(grader)
    module, name = function.__module__, function.__qualname__
    file = inspect.getsourcefile(function)
    if module == "__main__" or "." in name or file is None:
        raise ConfigError(
            f"The grader {name} of {module} cannot be imported by the process that runs it: define it at the top of a "
            "module, a file such as judges.py, and import it"
        )
    # The folder from which the module's dotted name leads to its file; a package is a folder with __init__.py.
    depth = module.count(".") + (Path(file).name == "__init__.py")
    python_path = [str(Path(file).absolute().parents[depth]), environment().get("PYTHONPATH", "")]
    return {
        "name": name,
        "function": f"{module}:{name}",
        "env": {"PYTHONPATH": os.pathsep.join(filter(None, python_path))},
    }


def _run_blocking(coroutine: Coroutine[Any, Any, Returned]) -> Returned:
    """Run the coroutine to its end; on a thread of its own where an event loop is running, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []

    async def tracked() -> Returned:
        started.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await coroutine

    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(asyncio.run, tracked())
        try:
            return future.result()
        except BaseException:
            # An interrupt of the notebook's cell: the run writes what it has, and ends.
            for loop, task in started:
                with contextlib.suppress(RuntimeError):
                    if task is not None:
                        loop.call_soon_threadsafe(task.cancel)
            raise
