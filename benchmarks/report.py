"""Writes the results of the benchmark: JSON, Markdown tables, and plots if matplotlib is there."""

from __future__ import annotations

import importlib
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness import Result

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
FOLDER = PAGE.parent / "benchmarks"
MARK = "<!-- results: written by `make bench` -->"
COLUMNS = ("", "side", "calls/s", "range", "p50 ms", "p99 ms", "× the reference", "CPU µs per call")


def number(value: float) -> str:
    """A figure with as many digits as it deserves."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def cells(result: Result) -> tuple[str, ...]:
    """One line of a table."""
    rates = sorted(one.rate for one in result.rounds)
    ratio = sorted(result.ratios)[len(result.ratios) // 2]
    cpu = result.cpu_us
    parts = ", ".join(f"{name} {used}" for name, used in cpu.items())
    return (
        result.row,
        result.side,
        number(result.median(lambda one: one.rate)),
        f"{number(rates[0])} to {number(rates[-1])}",
        number(result.median(lambda one: one.p50_ms)),
        number(result.median(lambda one: one.p99_ms)),
        f"{ratio:.2f}",
        f"{sum(cpu.values()):,} ({parts})" if cpu else "",
    )


def markdown(results: Iterable[Result]) -> str:
    """Return the tables of all results."""
    lines = []
    for table, rows in itertools.groupby(results, key=lambda one: one.table):
        lines += [f"\n### {table}\n", f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}"]
        lines += [f"| {' | '.join(cells(row))} |" for row in rows]
    return "\n".join(lines)


def recorded_ratio(table: str, row: str, side: str) -> float:
    """The median ratio of the recorded results."""
    kept = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))["results"]
    ratios = next(one["ratios"] for one in kept if (one["table"], one["row"], one["side"]) == (table, row, side))
    return float(sorted(ratios)[len(ratios) // 2])


def plot(results: Sequence[Result]) -> None:
    """Draw the rates of each table, if matplotlib is installed (the extra ``bench``)."""
    try:
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ModuleNotFoundError:
        print("no plots: matplotlib is not installed (pip install matplotlib)")
        return
    for table, group in itertools.groupby(results, key=lambda one: one.table):
        rows = list(group)
        names = list(dict.fromkeys(one.row for one in rows))
        sides = list(dict.fromkeys(one.side for one in rows))
        figure, axes = pyplot.subplots(figsize=(8, 4))
        for number, side in enumerate(sides):
            rates = {one.row: one.median(lambda one: one.rate) for one in rows if one.side == side}
            places = [index + number / (len(sides) + 1) for index, name in enumerate(names) if name in rates]
            axes.bar(places, [rates[name] for name in names if name in rates], 1 / (len(sides) + 1), label=side)
        axes.set_xticks([index + (len(sides) - 1) / 2 / (len(sides) + 1) for index in range(len(names))], names)
        axes.set(title=table, ylabel="calls per second")
        axes.legend()
        figure.savefig(FOLDER / f"{re.sub('[^a-z0-9]+', '-', table.lower())}.svg")
        pyplot.close(figure)


def write_report(results: Sequence[Result], how: str) -> None:
    """Write the JSON, the page's tables and the plots."""
    FOLDER.mkdir(exist_ok=True)
    kept = {"machine": how, "results": [one.as_json() for one in results]}
    (FOLDER / "results.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    PAGE.write_text(f"{head}{MARK}\n\n{how}.\n{markdown(results)}\n", encoding="utf-8")
    plot(results)
