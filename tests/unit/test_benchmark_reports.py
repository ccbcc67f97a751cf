"""The parts of the benchmarks: CPU of processes, the page's parts, and its plots."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from closed_loop import Round
from harness import Result, cpu_seconds, results_of
from plots import PLOTS, cpu_by_process, rate
from report import FOLDER, PAGE, PEERS, RESULTS, Report, page_part

FAST = Round(300, 1.0, 2.5, 9.0, {"client": 100, "broker": 200})
SLOW = Round(100, 1.0, 7.5, 12.0, {"client": 300, "broker": 400})


#: It starts a process that uses 0.2 s and ends, says so, and waits.
STARTER = """
import subprocess, sys
burn = "import time\\nwhile time.process_time() < 0.2: pass"
subprocess.run([sys.executable, "-c", burn], check=True)
print("done", flush=True)
sys.stdin.read()
"""


def test_the_cpu_of_a_process_has_that_of_the_processes_it_started() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout.readline() == b"done\n"
        assert cpu_seconds(started.pid) > 0.15  # counted in ticks of 10 ms
    assert cpu_seconds(os.getpid()) > 0


def test_results_are_read_as_they_were_written() -> None:
    [bare, ours] = results_of("calls in flight", "10", {"bare loop": [SLOW, SLOW], "Quintain": [FAST, SLOW]})
    assert ours.ratios == [3.0, 1.0]
    assert [Result.from_json(json.loads(json.dumps(one.as_json()))) for one in (bare, ours)] == [bare, ours]
    assert rate(ours.as_json()) == 200
    assert cpu_by_process(ours.as_json()) == {"client": 200, "broker": 300}


@pytest.mark.parametrize("report", [RESULTS, PEERS], ids=lambda report: report.file)
def test_the_page_has_the_recorded_figures(report: Report) -> None:
    page = PAGE.read_text(encoding="utf-8")
    kept = json.loads((FOLDER / report.file).read_text(encoding="utf-8"))
    assert report.put(page, page_part(kept, [Result.from_json(one) for one in kept["results"]])) == page


def test_a_page_shows_every_plot_and_plots_are_small() -> None:
    pages = [page.read_text(encoding="utf-8") for page in (PAGE, PAGE.with_name("limits.md"))]
    for name, file, _, _ in PLOTS:
        assert any(f"]({FOLDER.name}/{name})" in page for page in pages)
        assert (FOLDER / file).exists()
        assert (FOLDER / name).stat().st_size < 60_000
