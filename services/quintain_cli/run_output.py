"""What a run prints on a terminal, while it goes on and at its end, and the files that it writes."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import urlsplit

import typer

from quintain.config.secrets import redact_secrets
from quintain.contracts.session import Info
from quintain.errors import ConfigError
from quintain.fleet.tables import format_count
from quintain.runtime.lazy_module import LazyModule
from quintain.settings import environment
from quintain_cli.console import (
    EXIT_BELOW_THRESHOLD,
    EXIT_INTERRUPTED,
    EXIT_OK,
    escape_for_terminal,
    print_json,
    print_stderr,
    print_stdout,
    run_command,
    stderr_console,
    stdout_console,
)
from quintain_cli.running_fleet import missing_workers, print_missing
from quintain_runner.dry_run import plan_run
from quintain_runner.engine.rerun_plan import RerunPlan
from quintain_runner.engine.run import RunListener
from quintain_runner.engine.run_settings import RunOptions, RunSettings
from quintain_runner.engine.session import NewSession
from quintain_runner.evaluation import execute_run
from quintain_runner.graders.program import unconfined_programs
from quintain_runner.report.headline import headline
from quintain_runner.report.notes import account_lines, parked_target_notes
from quintain_runner.report.progress_display import progress_display
from quintain_runner.report.report_files import write_csv, write_junit, write_markdown
from quintain_runner.report.run_report import RunReport, question_text
from quintain_runner.report.summary import exit_line
from quintain_runner.report.tables import run_tables
from quintain_runner.report.text_table import TextTable, rich_tables
from quintain_runner.results.row import Row, column_name
from quintain_runner.untrusted import plain_line

if TYPE_CHECKING:
    from urllib import request as urllib_request
else:
    urllib_request = LazyModule("urllib.request")

ConfigOption = Annotated[
    Path | None, typer.Option(help="Configuration file; default: quintain.yaml beside the evaluation file or above.")
]
ModelOption = Annotated[str | None, typer.Option(metavar="NAME", help="A model in place of that of the one target.")]
PromptOption = Annotated[
    list[str] | None, typer.Option(help="Ask only under this prompt; repeatable. Other rows stay as they are.")
]
GraderOption = Annotated[
    list[str] | None, typer.Option(help="Grade only by this grader; repeatable. Verdicts of others stay in their rows.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a key of a file, such as targets.gpt.temperature=0."),
]
ConcurrencyOption = Annotated[int, typer.Option(min=1, help="The number of concurrent trials per target.")]
GradersOption = Annotated[int, typer.Option(min=1, help="The number of concurrent grader processes.")]


Result = TypeVar("Result")


def run_and_report(options: RunOptions, files: OutputFiles, *, as_json: bool) -> int:
    """Run an evaluation, print its results, write the files and return the exit code."""
    resume_command = options.resume_command or options.command
    executed = execute_run(options, Terminal(options, files, quiet=as_json))
    report = run_resumable(executed, resume_command, as_json=as_json)
    if as_json:
        print_json(report_to_json(report))
    else:
        print_report(report, resume_command)
    if options.regrades and (waiting := report.summary.total.waiting):
        trials = format_count(waiting, "trial")
        print_stderr(f"next     {trials} without a row, such as of a rescore that was killed: {resume_command}")
    return int(report.summary.exit_code)


def run_resumable(executed: Coroutine[Any, Any, Result], resume_command: str, *, as_json: bool) -> Result:
    """Execute runs, and say after an interrupt how they go on."""
    try:
        return run_command(executed, as_json=as_json, service="run")
    except typer.Exit as exit_request:
        if exit_request.exit_code == EXIT_INTERRUPTED:
            print_stderr(f"next   the rows written are kept; this command resumes: {resume_command}")
        raise


def show_plan(options: RunOptions, *, as_json: bool) -> int:
    """Print what a run would ask, and which rows fall out, and return the exit code."""
    plan = run_command(plan_run(options), as_json=as_json, service="run")
    left_out = [[key.case_id, column_name(key.target, key.prompt)] for key in plan.left_out_keys]
    if as_json:
        columns = {name: count for name, count in plan.pending.items() if count}
        print_json({**plan.to_wire(), "trials": columns, "firstLeftOut": left_out})
        return 0
    lines = [*plan.lines()] or [f"{plan.new:,} new"]
    lines += [f"{count:,} trials of {name}" for name, count in plan.pending.items() if count]
    lines += [f"{case} · {column} falls out" for case, column in left_out]
    lines += plan.warnings()
    for line in lines:
        typer.echo(escape_for_terminal(f"plan     {line}"))
    typer.echo(_calls_line(plan))
    return 0


def _calls_line(plan: RerunPlan) -> str:
    answers, most = plan.calls_left.answers, plan.calls_left.most
    return f"calls    {answers:,}" + (f" to {most:,}" if most > answers else "")


class Terminal(RunListener):
    """Prints how a run goes on, on standard error, and writes its files; ``quiet`` prints neither plan nor progress."""

    def __init__(self, options: RunOptions, files: OutputFiles, *, quiet: bool) -> None:
        self._options, self._files, self._is_quiet = options, files, quiet
        if not quiet:
            self.progress = progress_display(stderr_console(), environment())

    def before_files(self) -> None:
        """Check that the files can be written."""
        self._files.check_writable()

    def on_set_aside(self, previous: Path) -> None:
        """Say where the earlier results are."""
        print_stderr(f"fresh    the earlier results are in {previous}")

    def on_checked(self, run: RunSettings, location: str) -> None:
        """Print what is run, with which budget, and where."""
        if not self._is_quiet:
            _print_settings(run, location)

    def on_new_session(self, session: NewSession) -> None:
        """Say why there is a new session, and its limit."""
        calls = format_count(session.max_calls, "call")
        print_stderr(
            f"budget   the earlier session {session.ended}; this run continues in a new one, with what is left: {calls}"
        )

    def on_waiting(self, info: Info, targets: tuple[str, ...]) -> None:
        """Say which workers are missing."""
        if (missing := missing_workers(info, targets)) is not None:
            print_missing(missing)

    def on_plan(self, plan: RerunPlan) -> None:
        """Print what becomes of earlier rows, and how many calls that takes."""
        if not self._is_quiet:
            _print_plan(plan)

    def on_end(self, report: RunReport) -> None:
        """Write the files."""
        self._files.write(report, self._options.resume_command or self._options.command, environment())


def _print_plan(plan: RerunPlan) -> None:
    for line in plan.lines():
        print_stderr(escape_for_terminal(f"plan     {line}"))
    for warning in plan.warnings():
        print_stderr(escape_for_terminal(f"warning  {warning}"))
    print_stderr(_calls_line(plan))


def _print_settings(run: RunSettings, location: str) -> None:
    evaluation, options = run.evaluation, run.options
    graders = ", ".join([*(grader.name for grader in evaluation.graders), *run.dataset.own_graders.limits])
    prompts = [prompt.name for prompt in evaluation.asked_prompts if prompt.name is not None]
    size_text = format_size(run.cases, prompts, run.targets, evaluation.spec.repeats)
    trials_text = format_count(evaluation.trials_of(run.cases, targets=len(run.targets)), "trial")
    print_stderr(escape_for_terminal(f"run      {evaluation.name}: {size_text} = {trials_text}, graders {graders}"))
    if left_out := [f"{name} leaves out {count:,}" for name, count in run.selection.left_out.items()]:
        print_stderr(f"select   {run.cases:,} of {format_count(run.dataset.cases, 'case')}: {', '.join(left_out)}")
    for what, chosen, known in (
        ("prompt", evaluation.only_prompts, evaluation.prompt_names),
        ("grader", evaluation.only_graders, [grader.name for grader in evaluation.spec.graders]),
    ):
        if chosen:
            others = [name for name in known if name not in chosen]
            print_stderr(escape_for_terminal(f"select   --{what} leaves out {', '.join(others) or 'nothing'}"))
    for option in run.overrides:
        print_stderr(escape_for_terminal(f"set      {redact_secrets(option)}"))
    own = run.own_max_calls
    budget_text = "what the trials can need" if own is None else format_count(own, "call")
    print_stderr(f"budget   {budget_text}, graders included")
    print_stderr(
        f"where    {location}; {options.concurrency} trials at once per target, {options.grader_concurrency} graders"
    )
    print_stderr(f"results  {options.folder}")
    for warning in run.warnings:
        print_stderr(escape_for_terminal(f"warning  {warning}"))
    if options.sessionless is None and (programs := unconfined_programs(evaluation)):
        print_stderr(
            escape_for_terminal(f"rights   {', '.join(programs)}: with your rights; run_as or sandbox limits them")
        )


#: The maximum width of a table if there is no terminal, in characters.
_MAX_TABLE_WIDTH = 400

#: How much of a text of a failed answer is printed, and how much of it is looked at for that, in characters.
_MAX_SHOWN_CHARACTERS, _MAX_RAW_CHARACTERS = 160, 4_000

#: The variable with the path of a GitHub job's summary; the report is appended to that file.
STEP_SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"

JunitOption = Annotated[Path | None, typer.Option(help="Write JUnit XML here: a suite per target, a case per row.")]
MarkdownOption = Annotated[
    Path | None,
    typer.Option(help="Write tables and failed rows as Markdown here; $GITHUB_STEP_SUMMARY is appended to."),
]
NotifyOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Post the closing lines to this URL, as the JSON that Slack and others take."),
]
CsvOption = Annotated[Path | None, typer.Option(help="Write a CSV line per row here, for a spreadsheet.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFiles:
    """The paths of the report files to write, and the URL that is told the result; None for what was not requested."""

    junit: Path | None = None
    markdown: Path | None = None
    csv: Path | None = None
    notify: str | None = None

    @property
    def requested(self) -> dict[str, Path]:
        """The paths of the requested files, by option."""
        paths = {"junit": self.junit, "markdown": self.markdown, "csv": self.csv}
        return {option: path for option, path in paths.items() if path is not None}

    def check_writable(self) -> None:
        """Check before the first call that the files can be written, and the URL is one. Raises `ConfigError`."""
        if self.notify is not None and (
            urlsplit(self.notify).scheme not in {"http", "https"} or not _host(self.notify)
        ):
            raise ConfigError("--notify: it is no URL; write it as https://host/path")
        for option, path in self.requested.items():
            check_writable(option, path)

    def write(self, report: RunReport, command: str, env: Mapping[str, str]) -> None:
        """Write the requested files of a run, which ``command`` resumes. Raises `QuintainError` on failure."""
        self.write_all([report], command, env)
        if self.csv is not None:
            write_csv(self.csv, report)

    def write_all(self, reports: Sequence[RunReport], command: str, env: Mapping[str, str]) -> None:
        """Write the files that may have several runs, JUnit and Markdown. Raises `QuintainError` on failure."""
        if self.junit is not None:
            write_junit(self.junit, reports)
        if self.markdown is not None:
            # Other steps of the job write to the summary too.
            is_shared = str(self.markdown) == env.get(STEP_SUMMARY_VARIABLE)
            for number, report in enumerate(reports):
                write_markdown(self.markdown, report, command, append=is_shared or number > 0)
        if self.notify is not None:
            for report in reports:
                _notify(self.notify, report, command)


#: How long the receiver of a result may take, in seconds.
_NOTIFY_SECONDS = 10.0


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _notify(url: str, report: RunReport, command: str) -> None:
    """Post the closing lines as JSON whose ``text`` chats show; what goes wrong is said, and changes no exit code.

    The URL may be a secret: of it only the host is printed.
    """
    result = headline(report.summary, report.analysis, report.bill)
    text = "\n".join(filter(None, (*result, exit_line(report.summary, command))))
    body = {"text": text, "exitCode": int(report.summary.exit_code), "folder": str(report.folder)}
    request = urllib_request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib_request.urlopen(request, timeout=_NOTIFY_SECONDS):
            pass
    except (OSError, HTTPException) as error:
        reason = escape_for_terminal(plain_line(str(error)))
        print_stderr(f"warning  --notify: {escape_for_terminal(_host(url))} did not take the result: {reason}")


def check_writable(option: str, path: Path) -> None:
    """Check that the file of an option can be written. Raises `ConfigError`."""
    if path.is_dir():
        raise ConfigError(f"--{option} {path}: it is a folder; name a file")
    folder = path.absolute().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Tried by writing, because a folder's mode does not tell whether its file system is writable.
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(
            f"--{option} {path}: its folder cannot be written to ({error.strerror}); name another file"
        ) from None


def format_size(cases: int, prompts: Sequence[str], targets: Sequence[str], repeats: int) -> str:
    """The size of an evaluation, such as ``3 cases × 2 targets × 1 repeat``."""
    counts = [(cases, "case"), (len(prompts), "prompt"), (len(targets), "target"), (repeats, "repeat")]
    return " × ".join(format_count(count, what) for count, what in counts if what != "prompt" or count)


def print_report(report: RunReport, command: str) -> None:
    """Print the result in a sentence, its tables, the cost and the exit line; ``command`` resumes the run."""
    print_paragraph(" ".join(filter(None, headline(report.summary, report.analysis, report.bill))))
    for table in run_tables(report):
        print_table(table)
    summary = report.summary
    notes = (
        *account_lines(summary.total, summary.per_target, report.bill),
        *parked_target_notes(summary),
    )
    for line in (*notes, *_reading_lines(report), exit_line(summary, command)):
        print_stdout(line)


def _reading_lines(report: RunReport) -> Iterator[str]:
    """Below the threshold the answers with the lowest scores; after errors, the command that shows the run.

    After a run that passed, or that is below its threshold, the last line names that command.
    """
    exit_code = report.summary.exit_code
    if exit_code == EXIT_BELOW_THRESHOLD:
        for row in report.worst_rows():
            yield from _failed_row_lines(row)
    elif exit_code != EXIT_OK:
        yield plain_line(f"to read every answer: quintain view {shlex.quote(str(report.folder))}", max_length=1_000)


def _failed_row_lines(row: Row) -> Iterator[str]:
    score = "-" if row.score is None else f"{row.score:.2f}"
    yield plain_line(f"failed   {row.case_id} · {row.column}, score {score}")
    expected = None if row.case is None else row.case.expected
    shown = expected if expected is None or isinstance(expected, str) else json.dumps(expected, ensure_ascii=False)
    for name, text in (("question", question_text(row) or None), ("expected", shown), ("answer", row.output)):
        if text is not None:
            # Cut before it is cleaned: an answer may have megabytes.
            yield f"  {name:8} {plain_line(text[:_MAX_RAW_CHARACTERS], max_length=_MAX_SHOWN_CHARACTERS)}"


def print_table(text_table: TextTable) -> None:
    """Print a table and its notes; without a terminal the table is as wide as its contents."""
    console = stdout_console()
    if not console.is_terminal:
        console.width = _MAX_TABLE_WIDTH
    for table in rich_tables(text_table, console.width):
        console.print(table)
    for line in text_table.notes:
        print_paragraph(line)


def print_paragraph(text: str) -> None:
    """Print a line that breaks between words where a terminal is narrower."""
    console = stdout_console()
    console.print(plain_line(text, max_length=1_000), markup=False, highlight=False, soft_wrap=not console.is_terminal)


def report_to_json(report: RunReport) -> dict[str, object]:
    """Return a report as a JSON object: totals, statistics and cost."""
    return report.run.with_summary(report.summary).with_fields(statistics=report.analysis).counts_to_json()
