"""Change one thing in the product at a time, and count the changes that a test notices.

    .venv/bin/python tests/mutants.py [--count 300] [--coverage FILE] [--json FILE]

A mutant is one comparison turned, one constant changed or one call left out, in one of the five `SUBJECTS`. The same
seed chooses the same mutants while the functions that they are in stay as they are, so that two states of the suite can
be compared. Each mutant runs only the tests that ran its line and need no broker; the first failure ends it, and so do
20 seconds. The tests of each line are known from a run with coverage, which this program makes where none is given.

It takes an hour on two cores and is no part of `make test`.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import SimpleQueue

import coverage

CHECKOUT = Path(__file__).resolve().parents[1]

#: What a mistake in costs money or rows; an equal share of the mutants is in each. A module belongs to the first.
SUBJECTS = {
    "auth": ("services/quintain_gateway/auth.py", "shared/quintain/contracts/credentials.py"),
    "ledger": ("services/quintain_metadata/ledger", "services/quintain_metadata/store"),
    "line": tuple(f"services/quintain_metadata/{name}" for name in ("line.py", "places.py", "quotas")),
    "wire": ("shared/quintain/contracts",),
    "rows": ("services/quintain_runner/results",),
}

#: The folders whose tests need no broker, but for those marked with it.
TESTS = ("tests/unit", "tests/conformance")

#: The most seconds that one mutant's tests take.
MAX_SECONDS = 20

#: The most tests that one mutant runs; those that run the fewest lines come first, they are about this one.
MAX_TESTS = 150

_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True)
class Mutant:
    """One change: where it stands, what stood there, what stands there now, and what came of it."""

    subject: str
    path: str
    line: int
    function: str
    before: str
    after: str
    text: str
    outcome: str = ""

    def order(self, seed: int) -> str:
        """Return a key that sorts mutants at random, and the same in each state of the code around it."""
        return hashlib.sha256(f"{seed}:{self.path}:{self.function}:{self.before}:{self.after}".encode()).hexdigest()


def mutants_of(subject: str, path: Path) -> Iterator[Mutant]:
    """Yield every mutant of the module at ``path``."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    seen: Counter[tuple[str, str, str]] = Counter()
    for function, node in _nodes_in_functions(tree, ""):
        for changed in _changes(node):
            before, after = ast.unparse(node), ast.unparse(changed)
            seen[function, before, after] += 1  # the second of the same kind in a function is another mutant
            yield Mutant(
                subject,
                str(path.relative_to(CHECKOUT)),
                node.lineno,
                f"{function}#{seen[function, before, after]}",
                before,
                after,
                _with_change(source, node, after),
            )


def _nodes_in_functions(node: ast.AST, name: str) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr):
            continue  # Python 3.11 has no places of what stands in an f-string
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _nodes_in_functions(child, f"{name}.{child.name}")
        else:
            if name and isinstance(child, ast.expr | ast.stmt):
                yield name, child
            yield from _nodes_in_functions(child, name)


def _changes(node: ast.expr | ast.stmt) -> Iterator[ast.expr | ast.stmt]:
    match node:
        case ast.Compare():
            for number, operator in enumerate(node.ops):
                changed = copy.deepcopy(node)
                changed.ops[number] = _TURNED[type(operator)]()
                yield changed
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call())):
            yield ast.Pass()


def _with_change(source: str, node: ast.expr | ast.stmt, after: str) -> str:
    """Return the module's text with ``after`` in the place of ``node``."""
    lines = source.encode().splitlines(keepends=True)  # columns of the syntax tree are bytes
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    head, tail = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
    replacement = after if isinstance(node, ast.stmt) else f"({after})"
    return b"".join([*lines[:first], head + replacement.encode() + tail, *lines[last + 1 :]]).decode()


def chosen(count: int, seed: int) -> list[Mutant]:
    """Return ``count`` mutants: as many of each subject where it has so many, and the rest from all."""
    found: list[Mutant] = []
    left: list[Mutant] = []
    taken: set[Path] = set()
    for subject, places in SUBJECTS.items():
        paths = {path for place in places for path in [*(CHECKOUT / place).rglob("*.py"), CHECKOUT / place]}
        modules = sorted(path for path in paths - taken if path.is_file())
        taken |= paths
        of_subject = [mutant for path in modules for mutant in mutants_of(subject, path)]
        of_subject.sort(key=lambda mutant: mutant.order(seed))
        share = count // len(SUBJECTS)
        found += of_subject[:share]
        left += of_subject[share:]
    left.sort(key=lambda mutant: mutant.order(seed))
    return found + left[: count - len(found)]


def measure(file: Path) -> None:
    """Run the tests that need no broker with coverage, and keep in ``file`` which test ran which line."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-m", "not broker", "--cov"]
    finished = subprocess.run(
        [*command, "--cov-context=test", "--cov-report=", *TESTS],
        cwd=CHECKOUT,
        env=os.environ | {"COVERAGE_FILE": str(file)},
        check=False,
    )
    if finished.returncode not in {0, 1}:  # a test that fails has run its lines too
        sys.exit("The tests could not be run with coverage")


class TestsOfLines:
    """Which tests that need no broker ran a line, those first that run the fewest lines of the module."""

    def __init__(self, file: Path) -> None:
        self._data = coverage.CoverageData(str(file))
        self._data.read()
        self._files = {path.split("/shared/")[-1].split("/services/")[-1]: path for path in self._data.measured_files()}
        listed = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not broker", *TESTS]
        output = subprocess.run(listed, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
        self._existing = {line for line in output.splitlines() if "::" in line}

    def of(self, mutant: Mutant) -> list[str]:
        """Return the node ids of the tests."""
        measured = self._files.get(mutant.path.split("/", 1)[1])
        if measured is None:
            return []
        lines = self._data.contexts_by_lineno(measured)
        widths: defaultdict[str, int] = defaultdict(int)
        for contexts in lines.values():
            for context in contexts:
                widths[context] += 1
        names = {context: context.rsplit("|", 1)[0] for context in lines.get(mutant.line, ())}
        tests = sorted(names, key=lambda context: (widths[context], context))
        return [name for name in dict.fromkeys(map(names.__getitem__, tests)) if name in self._existing][:MAX_TESTS]


def tried(mutant: Mutant, tests: list[str], checkout: Path) -> Mutant:
    """Return the mutant with its outcome: found, missed, slow (no failure in time) or untested."""
    if not tests:
        return replace(mutant, outcome="untested")
    changed = checkout / mutant.path
    original = changed.read_text(encoding="utf-8")
    changed.write_text(mutant.text, encoding="utf-8")
    paths = [str(checkout / folder) for folder in ("shared", "services")]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command,
        cwd=checkout,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            outcome = "missed" if process.wait(MAX_SECONDS) == 0 else "found"
        except subprocess.TimeoutExpired:
            outcome = "slow"
            os.killpg(process.pid, 9)
    changed.write_text(original, encoding="utf-8")
    return replace(mutant, outcome=outcome)


def main() -> None:
    """Try the mutants, two at a time, and print how many of each subject were found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="how many mutants (300)")
    parser.add_argument("--seed", type=int, default=1, help="chooses them (1)")
    parser.add_argument("--coverage", type=Path, help="the file of a former run with --cov-context=test")
    parser.add_argument("--json", type=Path, help="where to write every mutant and its outcome")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        file = options.coverage or Path(scratch) / "coverage"
        if not options.coverage:
            measure(file)
        tests = TestsOfLines(file)
        checkouts: SimpleQueue[Path] = SimpleQueue()
        for number in range(2):
            checkout = Path(scratch) / str(number)
            subprocess.run(["git", "clone", "-q", CHECKOUT, checkout], check=True)
            checkouts.put(checkout)

        def try_in_a_checkout(mutant: Mutant) -> Mutant:
            checkout = checkouts.get()
            try:
                done = tried(mutant, tests.of(mutant), checkout)
            finally:
                checkouts.put(checkout)
            print(f"{done.outcome:8} {done.path}:{done.line} {done.before} -> {done.after}", flush=True)
            return done

        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(try_in_a_checkout, chosen(options.count, options.seed)))
    for subject in SUBJECTS:
        outcomes = Counter(mutant.outcome for mutant in done if mutant.subject == subject)
        print(subject, dict(outcomes))
    print("all", dict(Counter(mutant.outcome for mutant in done)))
    if options.json:
        options.json.write_text(json.dumps([asdict(replace(mutant, text="")) for mutant in done], indent=1))


if __name__ == "__main__":
    main()
