"""Measures `quintain view`: making the index of a large run, and the time to each page of it.

Usage: ``python benchmarks/view.py [ROWS]``; without a number, a million rows: half as many cases, two targets. The
server is a process of its own, and the times are those of whole answers over loopback. The median of nine, after one
that is not counted; what the browser takes to draw a page is not in them.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from quintain_view import update_index

#: The limits of issue K, in milliseconds.
FIRST_PAINT_MS, FILTER_MS = 300, 200

PAGES = {
    "first page": ("", FIRST_PAINT_MS),
    "failed": ("?show=failed", FILTER_MS),
    "errors (1 in 10,000)": ("?show=error", FILTER_MS),
    "in doubt (none)": ("?show=inDoubt", FILTER_MS),
    "one target, failed, lowest score": ("?target=b&show=failed&sort=score", FILTER_MS),
    "slowest first": ("?sort=duration", FILTER_MS),
    "score from 0.4 to 0.5": ("?min=0.4&max=0.5", FILTER_MS),
    "a rare word": ("?q=rare777", FILTER_MS),
    "a word of every row": ("?q=question", FILTER_MS),
    "page 40": ("?page=40", FILTER_MS),
}

_REPEATS = 9


def write_run(folder: Path, rows: int) -> None:
    """Write a results folder as `quintain run` leaves it."""
    targets, cases = ["a", "b"], rows // 2
    folder.mkdir(parents=True)
    with (folder / "results.jsonl").open("w") as file:
        for number in range(cases):
            for position, target in enumerate(targets):
                file.write(json.dumps(_row(number, position, target)) + "\n")
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


def _row(number: int, position: int, target: str) -> dict[str, object]:
    score = (number * 7919 + position * 31) % 101 / 100
    question = f"question {number}, about rare{number % 1_000} and other things that are asked"
    is_error = (number + position) % 10_000 == 9_999
    return {
        "schemaVersion": 2,
        "caseId": f"case-{number}",
        "target": target,
        "repeat": 1,
        "status": "error" if is_error else "graded",
        "case": {"question": question, "expected": "yes"},
        "output": f"an answer of some length, {number}",
        "score": None if is_error else score,
        "graders": {} if is_error else {"same": {"score": score, "pass": score >= 0.5, "checks": [], "calls": 0}},
        "calls": 1,
        "tokenUsage": {"input": 100, "output": 20},
        "durationMs": number % 977 + position,
    }


def processor_ms(process: int) -> float:
    """The processor's time that a process has used, in milliseconds."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return 1_000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(origin: str, cookie: str, path: str) -> float:
    """The median time of an answer in milliseconds."""
    connection = http.client.HTTPConnection(urlsplit(origin).netloc, timeout=120)
    times = []
    for _ in range(_REPEATS + 1):
        began = time.perf_counter()
        connection.request("GET", path, headers={"Cookie": cookie})
        answer = connection.getresponse()
        answer.read()
        times.append(1_000 * (time.perf_counter() - began))
        assert answer.status == 200, (path, answer.status)
    connection.close()
    return statistics.median(times[1:])


def enter(address: str) -> tuple[str, str]:
    """The server's origin, and the cookie for the token of its address."""
    origin, token = address.split("/#token=")
    connection = http.client.HTTPConnection(urlsplit(origin).netloc, timeout=120)
    connection.request("POST", "/enter", json.dumps({"token": token}), {"Origin": origin})
    cookie = connection.getresponse().getheader("set-cookie") or ""
    connection.close()
    return origin, cookie.split(";")[0]


def main() -> None:
    """Measure, print, and exit 1 if a page takes longer than its limit."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "large"
        write_run(folder, rows)
        began, used = time.perf_counter(), time.process_time()
        update_index(folder)
        took, used, size = (
            time.perf_counter() - began,
            time.process_time() - used,
            (folder / "view.sqlite3").stat().st_size,
        )
        share = size / (folder / "results.jsonl").stat().st_size
        print(f"index of {rows:,} rows: {took:.1f} s, of the processor {used:.1f} s")
        print(f"its size: {size / 1e6:.0f} MB, {100 * share:.0f} % of the results")
        words = [sys.executable, "-m", "quintain_cli", "view", name, "--json", "--no-open"]
        slow = []
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            origin, cookie = enter(json.loads(server.stdout.readline())["url"])
            for title, (query, limit) in PAGES.items():
                used = processor_ms(server.pid)
                milliseconds = measure(origin, cookie, f"/run/large{query}")
                used = (processor_ms(server.pid) - used) / (_REPEATS + 1)
                slow += [title] if milliseconds > limit else []
                print(f"{title:34} {milliseconds:7.0f} ms, of the processor {used:4.0f} ms  (limit {limit} ms)")
            case = measure(origin, cookie, f"/run/large/case?id=case-{rows // 4}&at={rows // 4}")
            print(f"{'a case, with its neighbors':34} {case:7.0f} ms")
            server.terminate()
    if slow:
        print(f"slower than the limit: {', '.join(slow)}")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
