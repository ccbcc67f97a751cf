"""Measures `quintain view`: making the index of a large run, and the time to each page of it.

Usage: ``python benchmarks/view.py [--rows ROWS] [--folder FOLDER] [--browser]``; without a number, a million rows:
half as many cases, two targets. Rows and index are kept in the folder, and continued where an earlier measurement
stopped; without a folder they are made in a temporary one. The server is a process of its own, and the times are those
of whole answers over loopback: the median and the longest of nine, after one that is not counted, or of as many as fit
into 10 s. What a browser takes is in the last two lines only, with ``--browser``: Chromium's first contentful paint,
and the time from a filter that is chosen to its list.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import sync_playwright

from quintain_view.index_writer import index_path, update_index_step

#: The limits of issue K, in milliseconds.
FIRST_PAINT_MS, FILTER_MS = 300, 200

PAGES = {
    "first page": ("", FIRST_PAINT_MS),
    "failed": ("?show=failed", FILTER_MS),
    "errors (1 in 10,000)": ("?show=error", FILTER_MS),
    "in doubt (none)": ("?show=inDoubt", FILTER_MS),
    "all that have a score": ("?show=passed&show=failed", FILTER_MS),
    "a fails and b passes": ("?is=a:failed&is=b:passed", FILTER_MS),
    "a fails and b passes, slowest first": ("?is=a:failed&is=b:passed&sort=duration", FILTER_MS),
    "a passes in all repeats, a word": ("?is=a:passed&repeats=all&q=rare777", FILTER_MS),
    "one target, failed, lowest score": ("?target=b&show=failed&sort=score", FILTER_MS),
    "slowest first": ("?sort=duration", FILTER_MS),
    "dearest first, failed": ("?sort=cost&show=failed", FILTER_MS),
    "graders disagree most, errors": ("?sort=disagreement&show=error", FILTER_MS),
    "score from 0.4 to 0.5": ("?min=0.4&max=0.5", FILTER_MS),
    "a rare word": ("?q=rare777", FILTER_MS),
    "a word of every row": ("?q=question", FILTER_MS),
    "a word of every row, slowest failed": ("?q=question&show=failed&sort=duration", FILTER_MS),
    "a rare phrase": ("?q=%22rare777+and+other%22", FILTER_MS),
    "a phrase of every row": ("?q=%22things+that+are%22", FILTER_MS),
    "order by a grader": ("?sort=grader:judge", FILTER_MS),
    "order by a grader, errors": ("?sort=grader:judge&show=error", FILTER_MS),
    "order by a tag, failed": ("?sort=tag:topic&show=failed", FILTER_MS),
    "page 40": ("?page=40", FILTER_MS),
}

_REPEATS, _PAGE_SECONDS = 9, 10.0

#: Lines that say how far it is come this often at most, in seconds; so many cases are written at a time.
_PROGRESS_SECONDS, _WRITTEN_CASES = 5.0, 5_000


class Progress:
    """Prints how far something is, from time to time."""

    def __init__(self, title: str) -> None:
        self._title, self._shown_at = title, time.monotonic()

    def show(self, part: float) -> None:
        """Note which part of it is done, from 0 to 1."""
        if time.monotonic() - self._shown_at >= _PROGRESS_SECONDS:
            self._shown_at = time.monotonic()
            print(f"{self._title}: {100 * part:.0f} %", flush=True)


def write_run(folder: Path, rows: int) -> None:
    """Write a results folder as `quintain run` leaves it, or what is missing of it."""
    targets, cases = ["a", "b"], rows // 2
    folder.mkdir(parents=True, exist_ok=True)
    progress = Progress("rows")
    with (folder / "results.jsonl").open("ab+") as file:
        file.seek(0)
        begin, end = _written(file, cases)
        file.truncate(end)
        for first in range(begin, cases, _WRITTEN_CASES):
            numbers = range(first, min(cases, first + _WRITTEN_CASES))
            file.write(
                "".join(_line(n, position, name) for n in numbers for position, name in enumerate(targets)).encode()
            )
            progress.show(first / cases)
    counts = {"trials": cases, "graded": cases, "passed": cases // 2, "errors": 0, "inDoubt": 0, "calls": cases}
    record = {
        "schemaVersion": 1,
        "configuration": {
            "evaluation": "eval.yaml",
            "identity": {"dataset": "d", "graders": "g"},
            "targets": targets,
            "repeats": 1,
        },
        "startedAt": "2026-01-01T00:00:00+00:00",
        "endedAt": "2026-01-01T01:00:00+00:00",
        "exitCode": 0,
        "totals": {"cases": cases, **counts, "calls": rows, "maxCalls": rows},
        "targets": dict.fromkeys(targets, counts),
        "statistics": {"targets": {}, "pairs": []},
    }
    (folder / "run.json").write_text(json.dumps(record))


def _written(file: Iterable[bytes], cases: int) -> tuple[int, int]:
    """How many cases are in a file, at most so many, and how many bytes their rows have."""
    rows = size = end = 0
    for line in itertools.islice(file, 2 * cases):
        size += len(line)
        rows += line.endswith(b"\n")
        if rows % 2 == 0:
            end = size
    return rows // 2, end


def _line(number: int, position: int, target: str) -> str:
    score = (number * 7919 + position * 31) % 101 / 100
    is_error = (number + position) % 10_000 == 9_999
    scores = {"same": score, "judge": round((score + number % 3 / 3) % 1, 2)}
    verdicts = ", ".join(
        f'"{name}": {{"score": {one}, "pass": {str(one >= 0.5).lower()}, "checks": [], "calls": 0}}'
        for name, one in scores.items()
    )
    # Not by a JSON encoder: a million rows are written in a few seconds.
    return (
        f'{{"schemaVersion": 2, "caseId": "case-{number}", "target": "{target}", "repeat": 1, '
        '"fingerprints": {"input": "asked", "grading": "expected"}, '
        f'"status": "{"error" if is_error else "graded"}", "case": {{"question": "question {number}, about '
        f'rare{number % 1_000} and other things that are asked", "expected": "yes"}}, '
        f'"output": "an answer of some length, {number}", "score": {"null" if is_error else score}, '
        f'"graders": {{{"" if is_error else verdicts}}}, "calls": 1, '
        f'"tags": {{"topic": ["topic {number % 7}"]}}, '
        f'"tokenUsage": {{"input": 100, "output": 20}}, "durationMs": {number % 977 + position}}}\n'
    )


def make_index(folder: Path) -> None:
    """Make the index of a folder, or what is missing of it, and print what that took."""
    progress, began, used = Progress("index"), time.perf_counter(), time.process_time()
    while not (step := update_index_step(folder)).is_complete:
        progress.show(step.indexed_bytes / step.total_bytes)
    if step.unreadable_lines:
        raise SystemExit(
            f"{step.unreadable_lines:,} lines of {folder} are no rows of this version: pages show none of them"
        )
    took, used = time.perf_counter() - began, time.process_time() - used
    share = index_path(folder).stat().st_size / (folder / "results.jsonl").stat().st_size
    print(f"index of {step.rows:,} rows: {took:.1f} s, of the processor {used:.1f} s", flush=True)
    print(f"its size: {index_path(folder).stat().st_size / 1e6:.0f} MB, {100 * share:.0f} % of the results", flush=True)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[int, str, str]]:
    """The process, origin and cookie of a server of this folder, until the block ends."""
    words = [sys.executable, "-m", "quintain_cli", "view", str(folder), "--json", "--no-open"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.pid, *enter(json.loads(server.stdout.readline())["url"])
        finally:
            server.terminate()


def show(title: str, times: Sequence[float], limit: float, more: str = "") -> list[str]:
    """Print the median and the longest of these times; its title if the median is above the limit, in milliseconds."""
    middle = statistics.median(times)
    print(f"{title:36} {middle:5.0f} ms, at most {max(times):5.0f} ms{more}  (limit {limit} ms)", flush=True)
    return [title] if middle > limit else []


def processor_ms(process: int) -> float:
    """The processor's time that a process has used, in milliseconds."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return 1_000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(origin: str, cookie: str, path: str) -> list[float]:
    """The times of the answers in milliseconds, without the first."""
    times: list[float] = []
    began = time.perf_counter()
    while len(times) <= _REPEATS and (len(times) < 2 or time.perf_counter() - began < _PAGE_SECONDS):
        times.append(get(origin, cookie, path)[0])
    return times[1:]


def get(origin: str, cookie: str, path: str) -> tuple[float, str]:
    """Load a page: the time of its answer in milliseconds, and its HTML."""
    connection = http.client.HTTPConnection(urlsplit(origin).netloc, timeout=120)
    began = time.perf_counter()
    connection.request("GET", path, headers={"Cookie": cookie})
    answer = connection.getresponse()
    html = answer.read().decode()
    milliseconds = 1_000 * (time.perf_counter() - began)
    connection.close()
    assert answer.status == 200, (path, answer.status)
    return milliseconds, html


def enter(address: str) -> tuple[str, str]:
    """The server's origin, and the cookie for the token of its address."""
    origin, token = address.split("/#token=")
    connection = http.client.HTTPConnection(urlsplit(origin).netloc, timeout=120)
    connection.request("POST", "/enter", json.dumps({"token": token}), {"Origin": origin})
    cookie = connection.getresponse().getheader("set-cookie") or ""
    connection.close()
    return origin, cookie.split(";")[0]


def measure_first_opening(folder: Path) -> None:
    """Print how soon a folder without an index is shown, and whether the page says how far its making is."""
    if index_path(folder).exists():
        return
    with served(folder) as (_, origin, cookie):
        milliseconds, html = get(origin, cookie, f"/run/{folder.name}")
    shown = "with its progress" if "<progress" in html else "without progress"
    print(f"{'first opening, without an index':36} {milliseconds:7.0f} ms, {shown}", flush=True)


def measure_pages(folder: Path, rows: int) -> list[str]:
    """Print the time of each page; returns the names of those that take longer than their limit."""
    slow = []
    case = (f"/case?id=case-{rows // 4}&at={rows // 4}", FIRST_PAINT_MS)
    with served(folder) as (process, origin, cookie):
        for title, (query, limit) in {**PAGES, "a case, with its neighbors": case}.items():
            used = processor_ms(process)
            times = measure(origin, cookie, f"/run/{folder.name}{query}")
            used = (processor_ms(process) - used) / (len(times) + 1)
            slow += show(title, times, limit, f", of the processor {used:4.0f} ms")
    return slow


#: Chooses an outcome of the first target. Its list is there when the count of cases is another one and is painted.
_CHOOSE = """value => new Promise(done => {
    const count = () => document.querySelector("[role=status]").textContent
    const select = document.querySelector("select[name=is]")
    const before = count(), began = performance.now()
    select.value = [...select.options].find(one => one.text === value).value
    select.dispatchEvent(new Event("change", {bubbles: true}))
    const look = () => count() === before ? setTimeout(look, 2)
        : requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)))
    look()
})"""

_PAINT = """() => new Promise(done => new PerformanceObserver(entries => {
    for (const one of entries.getEntriesByName("first-contentful-paint")) done(one.startTime)
}).observe({type: "paint", buffered: true}))"""


def measure_in_browser(folder: Path) -> list[str]:
    """Print the first paint of the run's page in Chromium, and the time from a chosen filter to its list."""
    paints: list[float] = []
    filters: list[float] = []
    with served(folder) as (_, origin, cookie), sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        name, _, value = cookie.partition("=")
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        context.add_cookies([{"name": name, "value": value, "url": origin}])
        page = context.new_page()
        for _ in range(_REPEATS + 1):
            page.goto(f"{origin}/run/{folder.name}")
            paints.append(page.evaluate(_PAINT))
            filters.append(page.evaluate(_CHOOSE, "failed"))
        browser.close()
    return [
        *show("in a browser: first paint", paints[1:], FIRST_PAINT_MS),
        *show("in a browser: a fails, chosen", filters[1:], FILTER_MS),
    ]


def main() -> None:
    """Measure, print, and exit 1 if a page takes longer than its limit."""
    parser = argparse.ArgumentParser(description="Measure quintain view with a large run.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where rows and index are kept, and continued")
    parser.add_argument("--browser", action="store_true", help="measure in Chromium too")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        parent = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = parent / f"rows-{options.rows}"
        write_run(folder, options.rows)
        measure_first_opening(folder)
        make_index(folder)
        slow = measure_pages(folder, options.rows)
        slow += measure_in_browser(folder) if options.browser else []
    if slow:
        print(f"slower than the limit: {', '.join(slow)}")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
