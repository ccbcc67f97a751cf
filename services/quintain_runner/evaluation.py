"""Evaluations from a Python program or a notebook: `run` for an evaluation file, `evaluate` for cases and graders.

    import quintain

    result = quintain.evaluate([{"id": "1", "question": "2 + 2?", "expected": "4"}], "claude", ["exact"])
    print(result.mean_score)

They do what `quintain run` does, by `execute_run`: the same files, the same budget, and the same call again asks only
what changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import importlib
import inspect
import json
import os
import shutil
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from quintain.client.client import Client
from quintain.config.yaml_file import write_yaml
from quintain.contracts.money import MAX_COST_USD, MaxCostUsd
from quintain.errors import ConfigError, QuintainError
from quintain.graders import Case, Grader
from quintain.settings import environment, read_settings
from quintain_runner.engine.backend import Backend, connect_backend
from quintain_runner.engine.cost_limit import configured_costs, cost_problems, has_cost_limit
from quintain_runner.engine.recording import open_recording
from quintain_runner.engine.replay import open_replay
from quintain_runner.engine.run import RunListener, run_evaluation
from quintain_runner.engine.run_settings import RunOptions, RunSettings, inspect_evaluation
from quintain_runner.engine.session import RunSessions, local_ledger_url, write_calls
from quintain_runner.files import atomic_write, exclusive_lock
from quintain_runner.graders.factory import FunctionGraders
from quintain_runner.report.headline import headline
from quintain_runner.report.report_files import flat_rows
from quintain_runner.report.run_file import require_same_evaluation
from quintain_runner.report.run_report import RunReport, read_report
from quintain_runner.report.tables import run_tables
from quintain_runner.report.text_table import html_table
from quintain_runner.results.row import Row
from quintain_runner.statistics.analysis import format_score
from quintain_runner.untrusted import plain_line

Returned = TypeVar("Returned")

_COST_LIMIT: TypeAdapter[float] = TypeAdapter(MaxCostUsd)

#: A case: its fields as in a line of a dataset, or a `Case`.
CaseFields = Case | Mapping[str, object]

#: A grader: a function with ``@quintain.grader``, the name of a built-in one, or its fields as in an evaluation file.
GraderFields = Grader[..., Any] | str | Mapping[str, object]


@dataclass(frozen=True)
class EvaluationResult:
    """The results of a run; ``report`` has its statistics and cost.

    ``rows`` are one for each case, target, prompt and repeat, also those with errors. They stay what they are when the
    folder is written again. Its ``repr`` is a table of the targets.

    Example::

        for row in result.rows:
            print(row.case_id, row.target, row.score, row.output)
    """

    report: RunReport
    rows: Sequence[Row] = field(repr=False)

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

    def __repr__(self) -> str:
        """A line for each column: its counts, and its mean score."""
        columns = self.report.summary.per_target
        width = max(map(len, columns), default=0)
        lines = [
            f"{name:{width}}  {counts.passed}/{counts.graded} passed, {counts.errors} errors, "
            f"mean score {format_score(counts.mean_score)}"
            for name, counts in columns.items()
        ]
        return "\n".join([f"{self.folder}: {len(self.rows)} rows, exit code {self.exit_code}", *lines])

    def _repr_html_(self) -> str:
        """What a notebook shows: the result in a sentence, and the table of the targets."""
        result = html.escape(plain_line(headline(self.report.summary, self.report.analysis, self.report.bill).result))
        return f"<p>{result}</p>{html_table(run_tables(self.report)[0].without_empty_columns())}"

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
        columns, rows = flat_rows(self.report, self.rows)
        return pandas.DataFrame(list(rows), columns=columns)


def run(  # noqa: PLR0913 -- what users may say of a run
    path: str | Path,
    *,
    output: str | Path | None = None,
    config: str | Path | None = None,
    max_calls: int | None = None,
    max_cost_usd: float | None = None,
    cache: str | None = None,
    replay: str | Path | None = None,
) -> EvaluationResult:
    """Run an evaluation file as ``quintain run`` does, without output, and return its results.

    - ``output``: the results folder, by default ``runs/<name of the file>``.
    - ``config``: the configuration file, by default ``quintain.yaml`` beside the evaluation file or above.
    - ``max_calls``: the call budget, graders included.
    - ``max_cost_usd``: the most that the calls may cost, in US dollars, graders included.
    - ``cache``: the age of answers that are taken from the cache, such as ``30d``, or ``off``, or a file.
    - ``replay``: a recording, by its file or the folder of its run; nobody is asked then.

    It blocks, also in a notebook. A spent budget and rows with errors are no exception: see ``exit_code``. Raises
    `ConfigError` for wrong files, else a `QuintainError`.

    Example::

        result = quintain.run("eval.yaml", max_calls=200, max_cost_usd=25)
    """
    try:
        cost_limit = None if max_cost_usd is None else _COST_LIMIT.validate_python(max_cost_usd)
    except ValueError:
        raise ConfigError(f"max_cost_usd: an amount of US dollars above 0, at most {MAX_COST_USD:,}") from None
    options = RunOptions(
        path=Path(path),
        output=None if output is None else Path(output),
        config=None if config is None else Path(config),
        max_calls=max_calls,
        max_cost_usd=cost_limit,
        cache=cache,
        replay=None if replay is None else Path(replay),
        command=f"quintain run {path}",
    )
    report = _run_blocking(execute_run(options))
    return EvaluationResult(report, list(report.rows()))


def evaluate(  # noqa: PLR0913 -- what users may say of an evaluation
    cases: Iterable[CaseFields],
    target: str | Sequence[str],
    graders: Iterable[GraderFields] = (),
    *,
    output: str | Path = "runs/evaluate",
    config: str | Path | None = None,
    max_calls: int | None = None,
    max_cost_usd: float | None = None,
    cache: str | None = None,
    replay: str | Path | None = None,
) -> EvaluationResult:
    """Ask a target, or several, about each case, grade the answers, and return the results.

    - ``cases``: mappings such as ``{"id": "1", "question": "2 + 2?", "expected": "4"}``, or `quintain.Case` objects.
    - ``target``: the name of a target of the configuration, or several names.
    - ``graders``: those of every case, beside the ``graders`` of a case: functions with ``@quintain.grader``, names of
      built-in graders such as ``"exact"``, or mappings as in an evaluation file. A function runs in a process of its
      own, so it must be in a module.
    - ``output``: the folder for the results; ``eval.yaml`` and ``cases.jsonl`` are written there, too.
    - ``config``, ``max_calls``, ``max_cost_usd``, ``cache`` and ``replay``: as for `run`.

    The same call again asks and grades only what changed. Raises as `run`, and `ConfigError` for a grader that is
    defined in the main program, in a notebook or inside a function.

    Example::

        cases = [{"id": "1", "question": "2 + 2?", "expected": "4"}]
        result = quintain.evaluate(cases, "claude", ["exact", judges.polite])
    """
    folder = Path(output)
    content: dict[str, object] = {
        "dataset": "cases.jsonl",
        "targets": [target] if isinstance(target, str) else list(target),
    }
    if own := [_grader_fields(grader) for grader in graders]:
        content["graders"] = own
    lines = [json.dumps(_case_fields(case), ensure_ascii=False) for case in cases]
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("eval.yaml", write_yaml(content)), ("cases.jsonl", "\n".join(lines))):
        with atomic_write(folder / name) as file:
            file.write(f"{text}\n".encode(errors="backslashreplace"))
    return run(
        folder / "eval.yaml",
        output=folder,
        config=config,
        max_calls=max_calls,
        max_cost_usd=max_cost_usd,
        cache=cache,
        replay=replay,
    )


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
        return _run_on_some_loop(coroutine)
    except QuintainError as error:
        # The frames of the event loop say nothing of the error, and hide the line that called.
        raise error.with_traceback(None) from None


def _run_on_some_loop(coroutine: Coroutine[Any, Any, Returned]) -> Returned:
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


#: How often the registered targets are read while a run waits for them, in seconds.
READ_SECONDS = 0.5


async def execute_run(options: RunOptions, listener: RunListener | None = None) -> RunReport:
    """Run an evaluation and return its report. Raises as `run_evaluation`, and `ConfigError` with every mistake of the
    files, a line each, before anything is connected.
    """
    listener = listener or RunListener()
    listener.before_files()
    if not options.path.is_file():
        raise ConfigError(f"{options.path}: there is no such file; `quintain init` writes one to start from")
    async with contextlib.AsyncExitStack() as stack:
        options = replace(options, functions=FunctionGraders(stack))
        if options.replay is not None:
            recording = stack.enter_context(open_recording(options.replay))
            if recording.path.parent.resolve() == options.folder.resolve():
                raise ConfigError(f"--replay {options.replay}: the rows need another folder; name another --output")
            options = replace(options, recording=recording)
        # The earlier results are renamed first, because the dataset's command stores its output in the folder.
        with _set_aside(options.folder, listener) if options.is_fresh else contextlib.nullcontext():
            run = await checked_run(options)
        return await execute_checked(run, listener)


async def checked_run(options: RunOptions) -> RunSettings:
    """The settings of a run. Raises `ConfigError` with every mistake of the files, a line each."""
    found = await inspect_evaluation(options, read_settings(environment()), results_folder=options.folder)
    if has_cost_limit(found) and not found.is_on_fleet:
        found.problems.extend(cost_problems(configured_costs(found)))
    return found.checked()


async def execute_checked(run: RunSettings, listener: RunListener | None = None) -> RunReport:
    """Run an evaluation whose files are checked, and return its report. Raises as `run_evaluation`."""
    options, listener = run.options, listener or RunListener()
    if not options.regrades:
        require_same_evaluation(options.folder, run.evaluation)
    ledger_url = local_ledger_url(run)
    with exclusive_lock(options.folder, options.folder / ".lock"):
        async with _open_services(run, ledger_url, listener) as (backend, sessions):
            listener.on_checked(run, backend.location)
            if run.is_on_fleet and options.waits and options.recording is None:
                await _wait_for_first_worker(sessions.client, run, listener)
            summary = await run_evaluation(run, backend, sessions, listener)
            if not run.is_on_fleet:
                await write_calls(options.folder, ledger_url)
            if summary.is_budget_spent:
                parent = await sessions.spent_parent()
                lacks_calls = parent is not None and summary.next_row_usd is None
                cost_limit = None if lacks_calls else await sessions.spent_cost()
                summary = replace(summary, spent_parent=parent, cost_limit=cost_limit)
            await sessions.finish(has_open_trials=summary.has_open_trials)
        report = await asyncio.to_thread(read_report, options.folder, summary)
        await asyncio.to_thread(listener.on_end, report)
        return report


@contextlib.asynccontextmanager
async def _open_services(
    run: RunSettings, ledger_url: str, listener: RunListener
) -> AsyncIterator[tuple[Backend, RunSessions]]:
    """Connect a run to its services, and open its session; to neither where it is replayed."""
    if (recording := run.options.recording) is not None:
        async with open_replay(run, recording) as replayed:
            yield replayed
        return
    folder = str(run.options.folder.absolute())
    async with (
        connect_backend(run, ledger_url=ledger_url, exclusive_path=folder) as backend,
        RunSessions(run, backend, listener.on_new_session) as sessions,
    ):
        yield backend, sessions


async def _wait_for_first_worker(client: Client, run: RunSettings, listener: RunListener) -> None:
    """Wait for the registration of a target, while none is registered at all."""
    loop = asyncio.get_running_loop()
    give_up_at, is_told = loop.time() + run.settings.timings.unknown_target_seconds, False
    while not (info := await client.get_info()).available_targets and loop.time() < give_up_at:
        if not is_told:
            listener.on_waiting(info, run.targets)
            is_told = True
        await asyncio.sleep(READ_SECONDS)


@contextlib.contextmanager
def _set_aside(folder: Path, listener: RunListener) -> Iterator[None]:
    """Rename the earlier results to NAME.previous-N, so that the run starts without any.

    If the block raises, the new folder is removed and the earlier results get their name back: a refused run changes
    nothing.
    """
    if not folder.exists():
        yield
        return
    with exclusive_lock(folder, folder / ".lock"), exclusive_lock(folder, folder):
        number = 1
        while (previous := folder.with_name(f"{folder.name}.previous-{number}")).exists():
            number += 1
        folder.rename(previous)
    try:
        yield
    except BaseException:
        if folder.exists():
            shutil.rmtree(folder)
        previous.rename(folder)
        raise
    listener.on_set_aside(previous)
