"""What the list of runs shows. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from quintain.fleet.tables import duration
from quintain_runner.report.run_file import RunFile
from quintain_runner.report.text_table import TextTable
from quintain_runner.statistics.analysis import PassAndScore, format_score, format_share, format_share_interval
from quintain_runner.statistics.inference import Interval
from quintain_view.plots import TrendPoint, trend_points

EXIT_WORDS = {1: "errors", 3: "below threshold", 4: "budget spent"}


@dataclass(frozen=True, slots=True)
class RunSource:
    """A run by its name in addresses, with its record; ``problem`` says why it has none.

    A folder that has only the trajectories of hosted targets has neither. ``counted`` are the graded and the passed
    trials of a run that has not ended, as its rows have them: the record is older.
    """

    name: str
    folder: str
    run: RunFile | None
    problem: str = ""
    counted: tuple[int, int] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is a run that has not ended."""
        return self.run is not None and self.run.ended_at is None


@dataclass(frozen=True, slots=True)
class RunLine:
    """One line of the list: a run, the run of its evaluation before it, and texts; of what is no run there are few."""

    source: RunSource
    status: str
    searched: str
    earlier: RunSource | None = None
    graded: str = ""
    passed: str = ""
    interval: str = ""
    duration: str = ""
    changes: str = ""


#: How many trends stand above the list.
MAX_TRENDS = 4


def run_list(sources: Iterable[RunSource]) -> list[RunLine]:
    """The lines of the list, the newest run first; what is no run stands at the end with its reason."""
    ordered = sorted(
        sources, key=lambda source: (source.run.started_at if source.run else "", source.name), reverse=True
    )
    lines = []
    for number, source in enumerate(ordered):
        earlier = next((other for other in ordered[number + 1 :] if _is_same_evaluation(source, other)), None)
        lines.append(_run_line(source, earlier))
    return lines


def status_of(run: RunFile) -> str:
    """The status of a run in a few words."""
    if run.ended_at is None:
        return "not ended"
    if run.exit_code == 0:
        threshold = run.configuration.threshold
        return "ended" if threshold is None else f"mean {format_score(run.totals.mean_score)}, threshold {threshold}"
    return EXIT_WORDS.get(-1 if run.exit_code is None else run.exit_code, "ended")


def _is_same_evaluation(source: RunSource, other: RunSource) -> bool:
    return source.run is not None and other.run is not None and source.run.name == other.run.name


def _run_line(source: RunSource, earlier: RunSource | None) -> RunLine:
    run = source.run
    if run is None:
        status = "not readable" if source.problem else "trajectories"
        return RunLine(source, status, f"{source.name} {status}".casefold())
    graded, passed = source.counted or (run.totals.graded, run.totals.passed)
    return RunLine(
        source,
        status_of(run),
        " ".join([source.name, status_of(run), run.name, *run.configuration.targets]).casefold(),
        earlier,
        graded=f"{graded:,}/{run.totals.trials:,}",
        passed=f"{100 * passed / graded:.0f} %" if graded else "-",
        interval=_interval(run) if source.counted is None else "-",
        duration=_duration(run),
        changes="" if earlier is None or earlier.run is None else _changes(earlier.run, run),
    )


def with_words(lines: Iterable[RunLine], words: Iterable[str]) -> list[RunLine]:
    """The lines with all of these words in the name of the run, of its evaluation or of a target, or in the status."""
    return [line for line in lines if all(word in line.searched for word in words)]


def trends(lines: Sequence[RunLine], found: Iterable[RunLine]) -> dict[str, list[TrendPoint]]:
    """The line of pass rates of each evaluation of the lines that were found, over its runs that have ended."""
    names = [line.source.run.name for line in found if line.source.run is not None]
    shares: dict[str, list[tuple[str, float, Interval | None]]] = {name: [] for name in names}
    for line in reversed(lines):
        run = line.source.run
        if run is not None and run.ended_at and run.totals.graded and run.name in shares:
            share = run.totals.passed / run.totals.graded
            shares[run.name].append((f"{line.source.name}, {run.started_at[:10]}: {100 * share:.0f} %", share, None))
    lasting = [(name, runs) for name, runs in shares.items() if len(runs) > 1]
    return {name: trend_points(runs) for name, runs in lasting[:MAX_TRENDS]}


def columns_over_time(lines: Sequence[RunLine], name: str) -> tuple[TextTable, dict[str, list[TrendPoint]]]:
    """The pass rate of each column in all runs of the evaluation of this run: a table, and the points of each line."""
    asked = next(line.source for line in lines if line.source.name == name)
    sources = [line.source for line in reversed(lines) if _is_same_evaluation(line.source, asked)]
    runs = [
        (source.name, source.run.started_at[:16].replace("T", " "), _rates(source.run))
        for source in sources
        if source.run
    ]
    columns = dict.fromkeys(column for _, _, rates in runs for column in rates)
    points = {
        column: trend_points(
            [
                (f"{run}: {_rate_text(rates[column])}", rates[column].passed.value, rates[column].passed.interval)
                for run, _, rates in runs
                if column in rates
            ]
        )
        for column in columns
    }
    rows = [(run, started, *(_rate_text(rates.get(column)) for column in columns)) for run, started, rates in runs]
    return TextTable("Passed, with 95 % intervals", ("run", "started", *columns), rows), points


def _rates(run: RunFile) -> dict[str, PassAndScore]:
    """What the record of a run that has ended says of each column."""
    targets = {} if run.statistics is None else run.statistics.targets
    return {column: one.row for column, one in targets.items() if one.row is not None}


def _rate_text(rate: PassAndScore | None) -> str:
    return "-" if rate is None else f"{format_share(rate.passed)} ({format_share_interval(rate)})"


def _interval(run: RunFile) -> str:
    """The 95 % interval of the pass rate of the run's only column; of several there is none in the record."""
    columns = run.configuration.columns
    return format_share_interval(_rates(run).get(columns[0]) if len(columns) == 1 else None)


def _duration(run: RunFile) -> str:
    try:
        ended = datetime.fromisoformat(run.ended_at or "")
        return duration(max(0.0, 1000 * (ended - datetime.fromisoformat(run.started_at)).total_seconds()))
    except (ValueError, TypeError):
        return "-"


def _changes(before: RunFile, after: RunFile) -> str:
    """What differs between two runs of one evaluation: datasets, graders, targets, and the pass rate."""
    was, now = before.configuration, after.configuration
    changed = [
        word
        for word, is_changed in (
            ("dataset", was.identity.dataset != now.identity.dataset),
            ("graders", was.identity.graders != now.identity.graders),
            ("targets", was.targets != now.targets),
            ("prompts", was.prompts != now.prompts),
            ("targets' configuration", before.fingerprints.targets != after.fingerprints.targets),
        )
        if is_changed
    ]
    text = f"changed: {', '.join(changed)}" if changed else "same configuration"
    if before.totals.graded and after.totals.graded:
        difference = after.totals.passed / after.totals.graded - before.totals.passed / before.totals.graded
        text += f"; pass rate {100 * difference:+.0f} points"
    return text
