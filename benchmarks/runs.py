"""`quintain run` beside Inspect and promptfoo: the same cases and one exact check, 100 in flight, all sides in turn.

    make bench-runs                                    # into docs/benchmarks.md
    python benchmarks/runs.py --rounds 1 --only run    # one side, printed

A server answers after 100 ms, then after 1 s (`provider_stub.py`, whose CPU is not counted). Inspect and promptfoo are
installed into environments of their own, in ``~/.cache/quintain/clients``. A side that cannot be installed or started
is named NOT MEASURED, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from harness import ADMIN_TOKEN, cpu_seconds, listening_process, machine, running_fleet
from quintain.settings import environment
from report import FOLDER, PAGE, Report
from servers import RABBITMQ, TOOLS, ServerUnavailable, free_port, running_server, search_path

#: The length of each answer in bytes, which is what the check expects.
ANSWER = "x" * 8
IN_FLIGHT = 100
RUNS = Report("make bench-runs", "runs.json")

INSPECT_TASK = f"""
import json
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import exact
from inspect_ai.solver import generate

@task
def cases():
    rows = map(json.loads, open("cases.jsonl"))
    samples = [Sample(id=row["id"], input=row["question"], target="{ANSWER}") for row in rows]
    return Task(dataset=samples, solver=generate(), scorer=exact())
"""
PROMPTFOO_VARIABLES = {
    "PROMPTFOO_DISABLE_TELEMETRY": "1",
    "PROMPTFOO_DISABLE_UPDATE": "1",
    "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1",
    "PROMPTFOO_CONFIG_DIR": "home",
}


@dataclass(frozen=True, slots=True)
class RunUsage:
    """What a run used: seconds from its start, of the processors, and the largest memory of a process in MiB."""

    wall: float
    cpu: float
    mib: float
    first_line: float
    first_call: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A command that runs the cases of its folder; ``cpu`` tells what other processes of the side have used so far."""

    words: Sequence[str]
    prepare: Callable[[Path, str], None]
    variables: Mapping[str, str] = field(default_factory=dict)
    cpu: Callable[[], float] = lambda: 0.0
    results: str = "results"


@dataclass(slots=True)
class Stub:
    """The server; ``firsts`` has the time of the first request of each run."""

    port: int
    firsts: queue.SimpleQueue[float] = field(default_factory=queue.SimpleQueue)

    def url(self, delay_ms: int) -> str:
        """Where it answers after so many milliseconds."""
        return f"http://127.0.0.1:{self.port}/{len(ANSWER)}/{delay_ms}/v1"


@contextlib.contextmanager
def running_stub() -> Iterator[Stub]:
    """The server, until the block ends."""
    stub = Stub(free_port())
    words = [sys.executable, str(Path(__file__).with_name("provider_stub.py")), str(stub.port)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        running.stdout.readline()

        def read(lines: Iterator[str]) -> None:
            for line in lines:
                stub.firsts.put(float(line.split()[1]))

        threading.Thread(target=read, args=(iter(running.stdout),), daemon=True).start()
        try:
            yield stub
        finally:
            running.terminate()


def write_cases(folder: Path, count: int, changed: str = "") -> None:
    """Write so many cases; ``changed`` is another text of the first one."""
    with (folder / "cases.jsonl").open("w") as file:
        for number in range(count):
            question = (changed if not number else "") or f"What is the {number}th of the things that nobody asked for?"
            file.write(json.dumps({"id": f"case-{number}", "question": question, "expected": ANSWER}) + "\n")


def write_quintain(folder: Path, url: str) -> None:
    """Write an evaluation for `quintain run`."""
    (folder / "quintain.yaml").write_text(quintain_config(url))
    graders = [{"name": "same", "builtin": "exact"}]
    content = {"dataset": "cases.jsonl", "targets": [target_of(url)], "graders": graders}
    (folder / "eval.yaml").write_text(json.dumps(content))


def target_of(url: str) -> str:
    """The name of the target at this address, by its delay."""
    return f"stub-{url.split('/')[-2]}"


def quintain_config(*urls: str) -> str:
    """A configuration with a target for each address."""
    common = {"provider": "openai", "model": "stub", "api_key": "${{ STUB_KEY }}", "max_concurrency": IN_FLIGHT}
    return json.dumps({"targets": {target_of(url): {**common, "base_url": url} for url in urls}})


def write_inspect(folder: Path, url: str) -> None:
    """Write a task for Inspect, and where its model is."""
    (folder / "task.py").write_text(INSPECT_TASK)
    (folder / ".env").write_text(f"STUB_BASE_URL={url}\nSTUB_API_KEY=key\n")


def write_promptfoo(folder: Path, url: str) -> None:
    """Write a configuration for promptfoo."""
    rows = map(json.loads, (folder / "cases.jsonl").read_text().splitlines())
    content = {
        "prompts": ["{{question}}"],
        "providers": [{"id": "openai:chat:stub", "config": {"apiBaseUrl": url, "apiKey": "key"}}],
        "tests": [
            {"vars": {"question": row["question"]}, "assert": [{"type": "equals", "value": ANSWER}]} for row in rows
        ],
    }
    (folder / "promptfooconfig.yaml").write_text(json.dumps(content))


def quintain_side(url: str | None = None, pids: Mapping[str, int] | None = None) -> Side:
    """`quintain run`, in one process or over the broker at this address."""
    words = [sys.executable, "-m", "quintain_cli", "run", "eval.yaml", "--concurrency", str(IN_FLIGHT)]
    fleet = {} if url is None else {"QUINTAIN_BROKER_URL": url, "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}
    return Side(
        words=words,
        prepare=write_quintain,
        variables={"STUB_KEY": "key", **fleet},
        cpu=lambda: sum(map(cpu_seconds, (pids or {}).values())),
        results="runs",
    )


def tool_side(name: str) -> Side:
    """Another tool, installed. Raises `ServerUnavailable`."""
    tool = TOOLS[name]
    tool.install(environment(), print)
    path = {"PATH": search_path(tool, environment())}
    if name == "inspect":
        limits = ["--max-connections", str(IN_FLIGHT), "--max-samples", str(IN_FLIGHT), "--display", "plain"]
        words = ["inspect", "eval", "task.py", "--model", "openai-api/stub/stub", "--log-dir", "results", *limits]
        return Side(words=words, prepare=write_inspect, variables=path)
    words = ["promptfoo", "eval", "--no-cache", "--max-concurrency", str(IN_FLIGHT), "--no-progress-bar", "--no-table"]
    return Side(words=words, prepare=write_promptfoo, variables={**path, **PROMPTFOO_VARIABLES}, results="home")


def run_once(side: Side, folder: Path, stub: Stub, *, asks: bool = True) -> RunUsage:
    """Run the command in its folder. Raises `SystemExit` with its last words where it fails."""
    while not stub.firsts.empty():
        stub.firsts.get()
    time.sleep(1.5)  # so that its first request is told
    hidden = ("QUINTAIN_", "PYTHONDONT")
    env = {name: value for name, value in environment().items() if not name.startswith(hidden)} | {**side.variables}
    before, began = side.cpu(), time.monotonic()
    program = shutil.which(side.words[0], path=env.get("PATH"))
    assert program is not None, side.words
    with subprocess.Popen(
        [program, *side.words[1:]], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as running:
        assert running.stdout is not None
        said = os.read(running.stdout.fileno(), 65_536)
        first_line = time.monotonic() - began
        said += running.stdout.read()
        _, status, used = os.wait4(running.pid, 0)
        wall = time.monotonic() - began
        running.returncode = os.waitstatus_to_exitcode(status)
    if running.returncode:
        raise SystemExit(f"{side.words} ended with {running.returncode}:\n{said[-2000:].decode(errors='replace')}")
    first_call = stub.firsts.get(timeout=5) - began if asks else 0.0
    cpu = used.ru_utime + used.ru_stime + side.cpu() - before
    return RunUsage(wall, cpu, used.ru_maxrss / 1024, first_line, first_call)


Measured = dict[str, dict[str, list[RunUsage]]]


def measure(sides: Mapping[str, Side], stub: Stub, root: Path, rounds: int, cases: int) -> Measured:
    """Run all sides in turn; and ours again, with less to ask."""
    measured: Measured = {}
    for number in range(rounds):
        for row, (times, delay_ms) in ROWS.items():
            for name, side in sides.items():
                folder = root / f"{name.split()[0]}-{row}-{number}".replace(" ", "-")
                folder.mkdir()
                write_cases(folder, times * cases)
                side.prepare(folder, stub.url(delay_ms))
                kept = measured.setdefault(row, {}).setdefault(name, [])
                kept.append(run_once(side, folder, stub))
                print(f"{row:12} {name:16} {kept[-1]}", flush=True)
                if side.prepare is write_quintain and row == FIRST_ROW:
                    again = measured.setdefault(NOTHING, {}).setdefault(name, [])
                    again.append(run_once(side, folder, stub, asks=False))
                    write_cases(folder, cases, changed="What else?")
                    measured.setdefault(ONE, {}).setdefault(name, []).append(run_once(side, folder, stub))
                shutil.rmtree(folder)
    return measured


#: The rows of the table: how many times the cases, and how long the server takes, in milliseconds.
FIRST_ROW, MORE_ROW = "100 ms", "twice the cases, 100 ms"
ROWS = {FIRST_ROW: (1, 100), MORE_ROW: (2, 100), "1 s": (1, 1_000)}
NOTHING, ONE = "nothing to ask", "one case changed"


def middle(kept: Sequence[RunUsage], name: str) -> float:
    """The median of a figure."""
    return float(statistics.median(getattr(one, name) for one in kept))


def tables(measured: Measured, cases: int) -> str:
    """The tables of the page: a row for each side."""
    lines: list[str] = []
    for row, by_side in measured.items():
        times, delay_ms = ROWS.get(row, (1, 0))
        ideal = times * cases * delay_ms / 1000 / IN_FLIGHT
        lines += ["", f"### {row}" + (f", ideal {ideal:g} s" if ideal else ""), ""]
        lines += [
            "| | wall, s | CPU, s | memory, MiB | first line, s | first call, s |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for name, kept in by_side.items():
            cells = [f"{middle(kept, each):.2f}" for each in ("wall", "cpu")]
            cells += [f"{middle(kept, 'mib'):.0f}", f"{middle(kept, 'first_line'):.2f}"]
            cells.append(f"{middle(kept, 'first_call'):.2f}" if kept[0].first_call else "-")
            lines.append(f"| {name} | {' | '.join(cells)} |")
    if FIRST_ROW in measured and MORE_ROW in measured:
        lines += ["", f"### CPU of a row: {2 * cases:,} cases less {cases:,}", "", "| | ms |", "| --- | --- |"]
        for name, kept in measured[MORE_ROW].items():
            more = middle(kept, "cpu") - middle(measured[FIRST_ROW][name], "cpu")
            lines.append(f"| {name} | {1000 * more / cases:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and, if all sides were measured, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2_000, help="of a run")
    parser.add_argument("--rounds", type=int, default=3, help="of all sides in turn; medians count")
    names = ["run", "run over RabbitMQ", "inspect", "promptfoo"]
    parser.add_argument("--only", choices=names, action="append", help="measure this side, and print it")
    arguments = parser.parse_args()
    chosen, missing = arguments.only or names, dict[str, str]()
    sides: dict[str, Side] = {}
    load = os.getloadavg()[0]
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stub = stack.enter_context(running_stub())
        for name in chosen:
            try:
                if name == "run over RabbitMQ":
                    broker = stack.enter_context(running_server(RABBITMQ, environment(), print))
                    config = quintain_config(*(stub.url(delay_ms) for delay_ms in (100, 1_000)))
                    pids = listening_process(broker.url, "broker")
                    (fleet_folder := root / "fleet").mkdir()
                    keys = {"STUB_KEY": "key"}
                    fleet = running_fleet(broker.url, fleet_folder, config, broker_pid=pids, env=keys)
                    sides[name] = quintain_side(broker.url, stack.enter_context(fleet).pids)
                else:
                    sides[name] = quintain_side() if name == "run" else tool_side(name)
            except ServerUnavailable as error:
                missing[name] = str(error)
        measured = measure(sides, stub, root, arguments.rounds, arguments.cases)
    shown = tables(measured, arguments.cases)
    versions = ", ".join(f"{name} {TOOLS[name].version}" for name in ("inspect", "promptfoo"))
    loads = f"load {load:.1f} before and {os.getloadavg()[0]:.1f} after"
    how = "; ".join(
        [machine(), versions, f"{arguments.cases:,} cases, {arguments.rounds} rounds", loads, time.strftime("%Y-%m-%d")]
    )
    print(f"{how}.\n{shown}")
    if not arguments.only and not missing:
        figures = {
            row: {name: list(map(asdict, kept)) for name, kept in sides.items()} for row, sides in measured.items()
        }
        (FOLDER / RUNS.file).write_text(
            json.dumps({"machine": how, "rows": figures}, indent=1) + "\n", encoding="utf-8"
        )
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(RUNS.put(page, f"{how}.\n{shown}"), encoding="utf-8")
    for name, reason in missing.items():
        print(f"NOT MEASURED: {name}: {reason}")
    raise SystemExit(bool(missing))


if __name__ == "__main__":
    main()
