"""Draws the plots of docs/benchmarks.md and docs/limits.md from their figures, as SVG: ``plots.py FOLDER``.

It is run in an environment that has matplotlib and nothing else (report.py), and draws the same bytes each time.
"""

from __future__ import annotations

import importlib
import itertools
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Kept = Mapping[str, Any]

COLORS = ("#4c566a", "#2f6fde", "#7fb2f0", "#d9822b", "#4f9d69", "#b0526b", "#8a6fbf")
SETTINGS = {
    "svg.hashsalt": "quintain",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#dddddd",
    "legend.frameon": False,
}
IN_FLIGHT = "calls in flight"


def rate(one: Kept) -> float:
    """Calls per second, the median of the rounds."""
    return statistics.median(float(each["rate"]) for each in one["rounds"])


def cpu_by_process(one: Kept) -> dict[str, float]:
    """Microseconds of CPU per call of each process, the median of the rounds."""
    return {
        name: statistics.median(each["cpu_us"][name] for each in one["rounds"]) for name in one["rounds"][0]["cpu_us"]
    }


def draw_rates(figure: Any, results: Sequence[Kept], title: str) -> None:
    """Lines of calls per second by calls in flight, one for each side."""
    axes = figure.subplots()
    rows = [one for one in results if one["table"] == IN_FLIGHT]
    for side, color in zip(dict.fromkeys(one["side"] for one in rows), COLORS, strict=False):
        points = [(int(one["row"]), rate(one)) for one in rows if one["side"] == side]
        axes.plot(*zip(*points, strict=True), marker="o", color=color, label=side)
    levels = list(dict.fromkeys(one["row"] for one in rows))
    axes.set(title=title, xlabel="calls in flight", ylabel="calls per second", xscale="log", yscale="log")
    axes.set_xticks([int(level) for level in levels], [f"{int(level):,}" for level in levels])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(axis="x", which="minor", length=0)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


def draw_cpu(figure: Any, results: Sequence[Kept], title: str) -> None:
    """Stacked bars of CPU per call by process, one for each side, at 100 calls in flight."""
    axes = figure.subplots()
    rows = [one for one in results if (one["table"], one["row"]) == (IN_FLIGHT, "100")]
    used = {one["side"]: cpu_by_process(one) for one in rows}
    left = [0.0] * len(used)
    for process, color in zip(dict.fromkeys(name for each in used.values() for name in each), COLORS, strict=False):
        spent = [each.get(process, 0.0) for each in used.values()]
        axes.barh(list(used), spent, left=left, color=color, label=process)
        left = [before + more for before, more in zip(left, spent, strict=True)]
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set(title=title, xlabel="µs of CPU per call")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


def draw_limits(figure: Any, results: Sequence[Kept], title: str) -> None:
    """What limited providers took a minute, and how many calls they had refused, by the time since the run began."""
    taken, refused = figure.subplots(1, 2)
    for one, color in zip(results, COLORS[1:], strict=False):
        step = one["step_seconds"]
        minutes = [(number + 0.5) * step / 60 for number in range(len(one["taken"]))]
        taken.plot(minutes, [count * 60 / step for count in one["taken"]], color=color, label=one["side"])
        refused.plot(minutes, list(itertools.accumulate(one["refused"])), color=color)
    taken.set(title=title, xlabel="minutes", ylabel="calls taken a minute", ylim=(0, 150))
    refused.set(xlabel="minutes", ylabel="answers 429 so far", ylim=(0, None))
    figure.legend(*taken.get_legend_handles_labels(), loc="outside lower center", ncols=len(results))


PLOTS = (
    ("limits.svg", "limits.json", draw_limits, "60 a minute, not named"),
    ("calls.svg", "results.json", draw_rates, "Quintain beside a bare aio-pika loop"),
    ("cpu.svg", "results.json", draw_cpu, "CPU per call at 100 calls in flight"),
    ("peers.svg", "peers.json", draw_rates, "Quintain beside its peers"),
    ("peers-cpu.svg", "peers.json", draw_cpu, "CPU per call at 100 calls in flight, beside its peers"),
)


def main(folder: Path) -> None:
    """Draw all plots whose figures are there."""
    importlib.import_module("matplotlib").use("svg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    for name, file, draw, title in PLOTS:
        if (folder / file).exists():
            with pyplot.rc_context(SETTINGS):
                figure = pyplot.figure(figsize=(8, 3.4), layout="constrained")
                draw(figure, json.loads((folder / file).read_text(encoding="utf-8"))["results"], title)
                figure.savefig(folder / name, metadata={"Date": None})
                pyplot.close(figure)
                print(f"drawn: {folder / name}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
