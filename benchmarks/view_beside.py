"""Measures, in processor time, the pages that show what happens, and `inspect view` beside `quintain view`.

Usage: ``python benchmarks/view_beside.py [CASES]``; without a number, 10,000 cases. Three parts:

- the Fleet page with 1,000 targets: its figures, its version and its HTML, in this process;
- a run with its page open beside the same run without, in turn: the processor time of the run's process, and how long
  the run takes, which is more where the server of the page takes a processor from it;
- the same cases as a run and as a log of Inspect: the time until a browser shows the first case, and the processor time
  of the server. It needs Chromium, and Inspect in an environment of its own, which `make clients` makes.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from playwright.sync_api import Page, sync_playwright

from quintain.bus.base import QueueCount
from quintain.contracts.fleet import QuotaList, RegisteredTarget
from quintain.contracts.service_card import CallCounts, ServiceCard
from quintain_gateway.fleet_page import FleetFilter, render_fleet
from quintain_metadata.fleet_model import FleetModel, FleetRows
from quintain_view.index_writer import update_index
from view import get, processor_ms, served, write_run

TARGETS = 1_000
TRIALS, ROUNDS = 3_000, 6

#: With its page open a run takes at most this part of what it takes without.
MAX_RATIO = 1.03

INSPECT = Path("~/.cache/quintain/clients").expanduser()

#: The script of a page waits for so long after it has loaded the page again, in seconds.
REFRESH_SECONDS = 0.25

#: The page shows its first case.
_READY = {"quintain view": ".matrix tbody tr", "inspect view": "text=question 0, about"}


def busy_fleet() -> tuple[FleetModel, FleetRows]:
    """1,000 targets that have been called for five minutes: what was heard of them, and their rows."""
    names = [f"target-{number:04}" for number in range(TARGETS)]
    counts = CallCounts(per_minute=60.0, wait={20: 180, 30: 120}, service={70: 240, 80: 60})
    model = FleetModel("m")
    calls = dict.fromkeys(names, counts)
    model.on_card(ServiceCard(service="metadata", id="m", instance="m", version="1", started_at=0, calls=calls), 299.0)
    targets = [RegisteredTarget(name=name, provider="mock", max_concurrency=8) for name in names]
    return model, FleetRows(targets=targets, workers=[], lost=[], budgets=[], now=1_000_000)


def cpu_ms(action: Callable[[], object]) -> float:
    """The median processor time of an action in milliseconds."""
    times = []
    for _ in range(15):
        began = time.thread_time()
        action()
        times.append(1_000 * (time.thread_time() - began))
    return statistics.median(times)


def measure_fleet() -> None:
    """Print what one look at the Fleet page takes of the processor."""
    model, rows = busy_fleet()
    quotas, queues = QuotaList(quotas=[], now=rows.now), dict[str, QueueCount]()
    figures = model.figures(rows, quotas, queues, 300.0)
    parts: dict[str, Callable[[], object]] = {
        "figures": lambda: model.figures(rows, quotas, queues, 300.0),
        "answer": figures.to_wire,
        "page": lambda: render_fleet(figures, FleetFilter()),
        "page of a filter": lambda: render_fleet(figures, FleetFilter("target-00")),
    }
    for name, action in parts.items():
        print(f"fleet of {TARGETS:,} targets, {name:18} {cpu_ms(action):6.1f} ms of the processor", flush=True)


def write_evaluation(folder: Path) -> None:
    """Write an evaluation of `TRIALS` calls to a target that answers at once."""
    (folder / "quintain.yaml").write_text("targets: {echo: {provider: mock}}\n")
    cases = [{"id": f"{number}", "question": f"q{number}", "expected": f"q{number}"} for number in range(TRIALS)]
    (folder / "cases.jsonl").write_text("".join(f"{json.dumps(case)}\n" for case in cases))
    graders = [{"name": "same", "builtin": "exact"}]
    (folder / "eval.yaml").write_text(json.dumps({"dataset": "cases.jsonl", "targets": ["echo"], "graders": graders}))


class RunTimes(NamedTuple):
    """What a run took: of the processor, and from its start to its end, in seconds."""

    cpu: float
    wall: float


def time_run(folder: Path, output: str) -> RunTimes:
    """Run the evaluation; the processor time is that of its process."""
    words = [sys.executable, "-m", "quintain_cli", "run", "eval.yaml", "--output", output]
    quiet, began = subprocess.DEVNULL, time.perf_counter()
    with subprocess.Popen(words, cwd=folder, stdout=quiet, stderr=quiet) as running:
        _, status, usage = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
    assert running.returncode == 0
    return RunTimes(usage.ru_utime + usage.ru_stime, time.perf_counter() - began)


@contextlib.contextmanager
def serving(words: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A server, until the block ends."""
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            yield server
        finally:
            server.terminate()


def view_words(folder: Path) -> list[str]:
    """The command that shows a folder."""
    return [sys.executable, "-m", "quintain_cli", "view", str(folder), "--json", "--no-open"]


@contextlib.contextmanager
def open_page(folder: Path, name: str, used: list[float]) -> Iterator[None]:
    """A page that is open while the block runs, loaded as its script does: each time that its stream says so.

    The processor time of its server, in seconds, is added to ``used``.
    """
    path = f"/run/{name}"
    with served(folder) as (process, origin, cookie):
        connections: list[http.client.HTTPConnection] = []
        is_closed = threading.Event()

        def look() -> None:
            connection = http.client.HTTPConnection(urlsplit(origin).netloc, timeout=120)
            connections.append(connection)
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
                while not is_closed.is_set():
                    connection.request("GET", f"{path}/events", headers={"Cookie": cookie})
                    answer = connection.getresponse()
                    if answer.status != http.HTTPStatus.OK:
                        # The run has no folder yet.
                        answer.read()
                        is_closed.wait(0.2)
                        continue
                    for line in answer:
                        if line.startswith(b"event: changed"):
                            with contextlib.suppress(AssertionError):  # the run has no record yet
                                get(origin, cookie, path)
                            is_closed.wait(REFRESH_SECONDS)

        looking = threading.Thread(target=look)
        looking.start()
        began = processor_ms(process)
        try:
            yield
        finally:
            used.append((processor_ms(process) - began) / 1_000)
            is_closed.set()
            for connection in connections:
                if connection.sock is not None:
                    connection.sock.shutdown(socket.SHUT_RDWR)
            looking.join()


def measure_open_page() -> None:
    """Print how much more a run takes while its page is open: pairs of runs, the first of which changes in turn."""
    sides: dict[str, list[RunTimes]] = {"alone": [], "seen": []}
    used: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "runs").mkdir()
        write_evaluation(folder)
        for number in range(ROUNDS):
            for side in ("alone", "seen") if number % 2 == 0 else ("seen", "alone"):
                is_seen = side == "seen"
                output = f"{side}-{number}"
                with open_page(folder / "runs", output, used) if is_seen else contextlib.nullcontext():
                    sides[side].append(time_run(folder, f"runs/{output}" if is_seen else output))
            print(f"a run with its page open: round {number + 1} of {ROUNDS}", flush=True)
    for field in RunTimes._fields:
        alone, seen = ([getattr(times, field) for times in sides[side]] for side in ("alone", "seen"))
        ratios = sorted(after / before for before, after in zip(alone, seen, strict=True))
        shown = f"{statistics.median(ratios):.3f} of {statistics.median(alone):.1f} s without"
        print(f"a run with its page open, {field:4}: {shown}, {ratios[0]:.3f} to {ratios[-1]:.3f} (limit {MAX_RATIO})")
    print(f"its page's server: {statistics.median(used):.2f} s of the processor for each run", flush=True)


def first_case(page: Page, address: str, ready: str) -> float:
    """The median time until the page shows its first case, in milliseconds."""
    times = []
    for _ in range(5):
        page.goto("about:blank")
        began = time.perf_counter()
        page.goto(address)
        page.locator(ready).first.wait_for(timeout=120_000)
        times.append(1_000 * (time.perf_counter() - began))
    return statistics.median(times)


def measure_beside_inspect(cases: int) -> None:
    """Print the times of the same cases in `quintain view` and in `inspect view`."""
    inspect = next(INSPECT.glob("inspect-*/bin/inspect"), None)
    if inspect is None:
        print("inspect view is not measured: `QUINTAIN_TEST_CLIENTS=inspect make clients` installs it")
        return
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        write_run(folder / "runs" / "cases", 2 * cases)
        update_index(folder / "runs" / "cases")
        words = [sys.executable, "-m", "quintain_cli", "export", "runs/cases", "--to", "inspect", "--output", "logs"]
        subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page()
        with serving(view_words(folder / "runs"), folder) as server:
            assert server.stdout is not None
            address = json.loads(server.stdout.readline())["url"]
            page.goto(address)
            page.get_by_role("heading", name="Runs").wait_for()
            origin = address.partition("/#")[0]
            show("quintain view", server.pid, lambda: first_case(page, f"{origin}/run/cases", _READY["quintain view"]))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        log = next(path for path in (folder / "logs").iterdir())
        inspect_words = [str(inspect), "view", "start", "--log-dir", "logs", "--port", str(port)]
        with serving(inspect_words, folder) as server:
            wait_until_listening(port)
            address = f"http://127.0.0.1:{port}/#/logs/{log.name}"
            show("inspect view", server.pid, lambda: first_case(page, address, _READY["inspect view"]))
        browser.close()


def show(name: str, process: int, measure: Callable[[], float]) -> None:
    """Print a measured time, and what the server's process used."""
    used = processor_ms(process)
    milliseconds = measure()
    used = (processor_ms(process) - used) / 5
    print(f"{name:14} first case after {milliseconds:6.0f} ms, the server's processor {used:5.0f} ms", flush=True)


def wait_until_listening(port: int) -> None:
    """Wait until a server answers on this port."""
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)


if __name__ == "__main__":
    measure_fleet()
    measure_open_page()
    measure_beside_inspect(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
