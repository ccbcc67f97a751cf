"""Writes the results of the benchmarks: JSON, Markdown tables and plots.

python benchmarks/report.py     # the tables and plots of docs/benchmarks.md again, from the JSON beside them
"""

from __future__ import annotations

import itertools
import json
import math
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import Result
from quintain.settings import environment
from servers import ClientTool, ServerUnavailable, cache_folder

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
FOLDER = PAGE.parent / "benchmarks"

#: In an environment of its own, as the peers are: the set-up of a checkout does not need it.
MATPLOTLIB = ClientTool(name="bench-matplotlib", version="3.11.2", pypi="matplotlib")

#: The sides whose names begin so are what the page is about; the first of a row is what peers are compared with.
OURS = "Quintain"


@dataclass(frozen=True, slots=True)
class Report:
    """The part of the page that one command writes, between two marks, and the file of its figures."""

    command: str
    file: str

    @property
    def marks(self) -> tuple[str, str]:
        """What stands before and after the part."""
        return f"<!-- results: written by `{self.command}` -->", f"<!-- end of `{self.command}` -->"

    def put(self, page: str, part: str) -> str:
        """Return the page with this part. Raises `ValueError` where the page has not both marks."""
        begin, end = self.marks
        head, is_begun, rest = page.partition(begin)
        _, is_ended, tail = rest.partition(end)
        if not is_begun or not is_ended:
            raise ValueError(f"the page has no part between {begin} and {end}")
        return f"{head}{begin}\n\n{part}\n\n{end}{tail}"


RESULTS, PEERS = Report("make bench", "results.json"), Report("make bench-peers", "peers.json")


def number(value: float) -> str:
    """A figure with as many digits as it deserves."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def cpu_ratio(result: Result, reference: Result) -> float:
    """The CPU of all processes per call, as a part of the reference's: not a number where that used none."""
    used = sum(reference.cpu_us.values())
    return sum(result.cpu_us.values()) / used if used else math.nan


def cell(result: Result, reference: Result) -> str:
    """The rate of a side in a row, and in parentheses its ratio and that of its CPU to the reference."""
    rate = number(result.median(lambda one: one.rate))
    if result is reference:
        return rate
    ratio = sorted(result.ratios)[len(result.ratios) // 2]
    return f"{rate} ({ratio:.2f}; {cpu_ratio(result, reference):.2f})"


def markdown(results: Iterable[Result]) -> str:
    """Return the tables of all results: a line for each row, a column for each side."""
    lines = []
    for table, members in itertools.groupby(results, key=lambda one: one.table):
        rows = [list(row) for _, row in itertools.groupby(members, key=lambda one: one.row)]
        sides = list(dict.fromkeys(one.side for row in rows for one in row))
        lines += [f"\n### {table}\n", f"| | {' | '.join(sides)} |", f"|{' --- |' * (1 + len(sides))}"]
        for row in rows:
            cells = {one.side: cell(one, row[0]) for one in row}
            lines.append(f"| {row[0].row} | {' | '.join(cells.get(side, '') for side in sides)} |")
    return "\n".join(lines)


def peers_ahead(results: Iterable[Result]) -> str:
    """Say in how many rows a peer made more calls per second than Quintain. Empty where no row has both."""
    rows = []
    for _, group in itertools.groupby(results, key=lambda one: (one.table, one.row)):
        rates = {one.side: one.median(lambda one: one.rate) for one in group}
        ours = next((rate for side, rate in rates.items() if side.startswith(OURS)), None)
        if ours is not None:
            rows.append(any(rate > ours for side, rate in rates.items() if not side.startswith(OURS)))
    return f"Another side makes more calls per second than {OURS} in {sum(rows)} of {len(rows)} rows." if rows else ""


def page_part(kept: Mapping[str, object], results: Sequence[Result]) -> str:
    """The part of the page for one file of figures."""
    missing = kept.get("missing")
    assert missing is None or isinstance(missing, Mapping)
    lines = [f"**NOT MEASURED**: {name}: {reason}" for name, reason in (missing or {}).items()]
    return "\n\n".join(
        [f"{kept['machine']}.", *lines, *filter(None, [peers_ahead(results)]), markdown(results).strip()]
    )


def recorded_ratio(table: str, row: str, side: str) -> float:
    """The median ratio of the recorded results."""
    kept = json.loads((FOLDER / RESULTS.file).read_text(encoding="utf-8"))["results"]
    ratios = next(one["ratios"] for one in kept if (one["table"], one["row"], one["side"]) == (table, row, side))
    return float(sorted(ratios)[len(ratios) // 2])


def write_report(report: Report, results: Sequence[Result], how: str, missing: Mapping[str, str] | None = None) -> None:
    """Write the JSON, the page's tables and the plots; ``missing`` has the reason for each peer not measured."""
    FOLDER.mkdir(exist_ok=True)
    kept: dict[str, object] = {"machine": how, "results": [one.as_json() for one in results]}
    if missing is not None:
        kept["missing"] = dict(missing)
    (FOLDER / report.file).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    write_page([report])
    draw_plots()


def write_page(reports: Iterable[Report]) -> None:
    """Write the tables of these reports into the page, from their files."""
    page = PAGE.read_text(encoding="utf-8")
    for report in reports:
        kept = json.loads((FOLDER / report.file).read_text(encoding="utf-8"))
        page = report.put(page, page_part(kept, [Result.from_json(one) for one in kept["results"]]))
    PAGE.write_text(page, encoding="utf-8")


def draw_plots() -> None:
    """Draw the plots of all files, in the environment of matplotlib, which is made where there is none."""
    try:
        MATPLOTLIB.install(environment(), print)
    except ServerUnavailable as error:
        print(f"no plots: matplotlib cannot be installed: {error}")
        return
    program = MATPLOTLIB.folder(cache_folder(environment())) / "bin" / "python"
    subprocess.run([str(program), str(HERE / "plots.py"), str(FOLDER)], check=True)


if __name__ == "__main__":
    write_page([RESULTS, PEERS])
    draw_plots()
