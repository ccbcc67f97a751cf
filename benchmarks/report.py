"""Writes the results of the benchmark: JSON, Markdown tables, and plots if matplotlib is there."""

from __future__ import annotations

import itertools
import json
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


def write_report(results: Sequence[Result], how: str) -> None:
    """Write the JSON, the page's tables and the plots."""
    FOLDER.mkdir(exist_ok=True)
    kept = {"machine": how, "results": [one.as_json() for one in results]}
    (FOLDER / "results.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    PAGE.write_text(f"{head}{MARK}\n\n{how}.\n{markdown(results)}\n", encoding="utf-8")
