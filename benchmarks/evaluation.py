"""How fast ``quintain run`` is, and how much memory a large dataset takes: the command itself, in a process of its own.

    python benchmarks/evaluation.py                 # both, and benchmarks/results/evaluation.json
    python benchmarks/evaluation.py --cases 2000    # a shorter run
    python benchmarks/evaluation.py --times 9       # more of them
    python benchmarks/evaluation.py --delay-ms 100  # only the faster target
    python benchmarks/evaluation.py --rows 100000   # a smaller dataset

Speed: so many cases, one target that takes 1 s or 100 ms, 200 of its calls in flight, one built-in grader, the services
that the command brings along. Ideal is what the target alone would take; start-up is the same command with nothing left
to ask. What is told is the run with the median ratio, and all ratios.

Memory: a dataset of a million rows, nearly all of them answered before, so that the whole of it is checked, taken up,
passed over and analysed, and the last thousand asked. What counts is the largest resident size of the process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quintain.contracts.invoke import TokenUsage
from quintain.settings import environment
from quintain_runner.plan.cases import parse_case
from quintain_runner.plan.changes import grading_fingerprint, input_fingerprint
from quintain_runner.results.answer import Answer
from quintain_runner.results.row import GraderRow, Row, RowCase, RowFingerprints, RowStatus

HERE = Path(__file__).parent
IN_FLIGHT = 200

#: The most that a run may take, as a multiple of what its target alone takes, by the target's time for a call, in ms.
MAX_RATIOS = {1000: 1.1, 100: 2.0}

MAX_MIB = 300

#: How many rows of the large dataset are asked in the end.
LAST_ROWS = 1000

EVALUATION = {"dataset": "cases.jsonl", "graders": [{"name": "same", "builtin": "exact"}]}


@dataclass(frozen=True, slots=True)
class CommandUsage:
    """A command that ended: how long it took, what it used of the processor, and its largest resident size."""

    seconds: float
    cpu_seconds: float
    mib: float


def run(folder: Path, *words: str) -> CommandUsage:
    """Run the evaluation of a folder to its end, well or for want of budget."""
    hidden = ("QUINTAIN_", "PYTHONDONT")
    env = {name: value for name, value in environment().items() if not name.startswith(hidden)}
    command = [sys.executable, "-m", "quintain_cli", "run", "eval.yaml", "--json", *words]
    began = time.perf_counter()
    with (folder / "said.txt").open("wb") as said:
        child = subprocess.Popen(command, cwd=folder, env=env, stdout=said, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in {0, 4}:
        raise SystemExit(f"{command} ended with {child.returncode}:\n{(folder / 'said.txt').read_text()[-2000:]}")
    return CommandUsage(round(seconds, 2), round(used.ru_utime + used.ru_stime, 2), round(used.ru_maxrss / 1024, 1))


def write_folder(folder: Path, cases: int, delay_ms: int) -> None:
    """An evaluation of so many cases."""
    target = {"provider": "mock", "delay_ms": delay_ms, "max_concurrency": IN_FLIGHT}
    (folder / "quintain.yaml").write_text(json.dumps({"targets": {"bench": target}}))
    (folder / "eval.yaml").write_text(json.dumps(EVALUATION))
    with (folder / "cases.jsonl").open("w") as file:
        for number in range(cases):
            question = f"What is the {number}th of the things that nobody asked for?"
            file.write(json.dumps({"id": f"case-{number}", "question": question, "expected": question}) + "\n")


def speed(cases: int, delay_ms: int) -> dict[str, object]:
    """The time of a whole run, beside the target's own and the command's start-up."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_folder(folder, cases, delay_ms)
        whole = run(folder, "--concurrency", str(2 * IN_FLIGHT))
        start_up = run(folder)
    ideal = cases * delay_ms / 1000 / IN_FLIGHT
    took = whole.seconds - start_up.seconds
    return {
        "cases": cases,
        "delayMs": delay_ms,
        "inFlight": IN_FLIGHT,
        "idealSeconds": ideal,
        "tookSeconds": round(took, 2),
        "ratio": round(took / ideal, 2),
        "cpuSeconds": round(whole.cpu_seconds - start_up.cpu_seconds, 2),
        "whole": asdict(whole),
        "startUp": asdict(start_up),
    }


def median_speed(cases: int, delay_ms: int, times: int) -> dict[str, object]:
    """The run in the middle of so many, by its ratio."""
    runs = sorted((speed(cases, delay_ms) for _ in range(times)), key=lambda one: float(str(one["ratio"])))
    return {**runs[len(runs) // 2], "ratios": [one["ratio"] for one in runs]}


def memory(rows: int) -> dict[str, object]:
    """The largest resident size of a run that takes up a large dataset and asks its last rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_folder(folder, rows, 0)
        parked = run(folder, "--max-calls", "0")
        results = folder / "runs" / "eval"
        with (results / "results.jsonl").open("wb") as file:
            file.writelines(answered_rows(results / "run.json", folder / "cases.jsonl", rows - LAST_ROWS))
        taken_up = run(folder, "--max-calls", str(rows))
        asked = json.loads((results / "run.json").read_bytes())["history"][-1]["plan"]
        if asked["new"] != LAST_ROWS:
            raise SystemExit(f"{LAST_ROWS} rows were to be asked, and the plan was {asked}")
    return {"rows": rows, "mib": max(parked.mib, taken_up.mib), "first": asdict(parked), "takenUp": asdict(taken_up)}


def answered_rows(record: Path, dataset: Path, count: int) -> Iterator[bytes]:
    """Rows as the run would have written them, with the fingerprints of the run's record."""
    fingerprints = json.loads(record.read_bytes())["fingerprints"]
    target, grader = fingerprints["targets"]["bench"], fingerprints["graders"]["bench"]["same"]
    with dataset.open("rb") as file:
        for case in map(parse_case, map(json.loads, itertools.islice(file, count))):
            usage = TokenUsage(input=11, output=11)
            row = Row(
                case_id=case.id,
                target="bench",
                repeat=1,
                status=RowStatus.GRADED,
                case=RowCase.of(case),
                output=case.question,
                score=1.0,
                graders={"same": GraderRow(score=1.0, passed=True, fingerprint=grader)},
                calls=1,
                token_usage=usage,
                duration_ms=0.1,
                fingerprints=RowFingerprints(
                    input=input_fingerprint(case), grading=grading_fingerprint(case), target=target
                ),
                answer=Answer(request_id=f"run-{case.id:0>64}", model="mock", token_usage=usage),
            )
            yield row.to_line()


def main() -> None:
    """Measure, show, and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="of the run whose time is taken; 0 for none")
    parser.add_argument(
        "--delay-ms", type=int, nargs="+", choices=MAX_RATIOS, default=list(MAX_RATIOS), help="how long a call takes"
    )
    parser.add_argument("--times", type=int, default=5, help="so often the run whose time is taken; the median counts")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the dataset whose memory is taken; 0 for none")
    options = parser.parse_args()
    how = f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores"
    results: dict[str, Any] = {"how": how, "loadBefore": os.getloadavg()}
    if options.cases:
        results["speed"] = [median_speed(options.cases, delay_ms, options.times) for delay_ms in options.delay_ms]
        for told in results["speed"]:
            print(
                f"speed   {told['cases']} cases of {told['delayMs']} ms: {told['tookSeconds']} s, ideal "
                f"{told['idealSeconds']} s: ratio {told['ratio']} of {told['ratios']} "
                f"(at most {MAX_RATIOS[told['delayMs']]}), {told['cpuSeconds']} s of CPU"
            )
    if options.rows:
        results["memory"] = held = memory(options.rows)
        print(f"memory  {held['rows']:,} rows in {held['mib']} MiB (at most {MAX_MIB})")
    results["loadAfter"] = os.getloadavg()
    print(f"load    {results['loadBefore']} before, {results['loadAfter']} after, on {how}")
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "evaluation.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
