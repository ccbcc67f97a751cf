"""Files, answers and requests as programs that are not ours write them, each with the right value beside it.

Each folder of ``inputs`` is one input; README.md here says what stands in it. A new one needs no code.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from expected_values import MISSING, Answer, Has, Step, differences, exactly, read_expected
from gateway_answers import differences_of_answers, differences_of_asked

from support.command_line import CommandLine, command_line
from support.model_server import ModelServer, ReceivedRequest, ScriptedResponse, StreamedResponse, model_server
from support.thread_host import LoopThread

INPUTS = sorted(path.parent for path in Path(__file__).parent.glob("inputs/*/expected.yaml"))


def read_written(path: Path) -> Any:
    """A file by its ending: values of YAML, JSON and JSON lines, else its text."""
    if not path.exists():
        return MISSING
    text = path.read_bytes().decode()
    match path.suffix:
        case ".jsonl":
            return [json.loads(line) for line in text.split("\n") if line]
        case ".json" | ".yaml":
            return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    return text


def rows_of_latest_run(folder: Path) -> dict[str, Any]:
    """The rows of the run that wrote last: by case, by target and prompt too where there are several."""
    results = max(folder.rglob("results.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    rows = read_written(results)
    parts = [name for name in ("target", "prompt", "repeat") if len({row.get(name) for row in rows}) > 1]
    return {" ".join(str(row[name]) for name in ("caseId", *parts)): row for row in rows}


def left_out(output: str) -> list[str]:
    """What a command says that it left out, as ``file:line the rest``."""
    lines = re.findall(r"^left out +(.+?), line (\d+): (.*)$", output, re.MULTILINE)
    return [f"{file}:{line} {rest}" for file, line, rest in lines]


def differences_of_command(step: Step, shell: CommandLine) -> list[str]:
    """Run a command, and compare what it says and writes."""
    ended = shell.run(*shlex.split(step.command), code=None)
    found = [f"exit code {step.code} is expected, not {ended.code}"] if ended.code != step.code else []
    found += differences([Has(line.split(" ", 1)) for line in step.left_out], left_out(ended.stderr), "left out")
    for name, text in {"stdout": ended.stdout, "stderr": ended.stderr}.items():
        if name in step.model_fields_set:
            found += differences(getattr(step, name), text, name)
    for name, value in step.files.items():
        found += differences(value, read_written(shell.folder / name), name)
    if step.rows is not None:
        found += exactly(step.rows, rows_of_latest_run(shell.folder), "rows")
    return [*found, f"stdout: {ended.stdout}", f"stderr: {ended.stderr}"] if found else []


def answer_by_model(answers: Mapping[str, Answer | list[Answer]], folder: Path) -> Any:
    """What chooses the answer to a request by the model that it names: of a list one after another, the last for
    ever."""
    scripts = {name: [*one] if isinstance(one, list) else [one] for name, one in answers.items()}

    def choose(request: ReceivedRequest) -> ScriptedResponse | StreamedResponse:
        script = scripts.get(str(request.body.get("model")))
        if script is None:
            return ScriptedResponse(status=404, body={"error": {"message": "no such model is in expected.yaml"}})
        return (script.pop(0) if len(script) > 1 else script[0]).read(folder)

    return choose


@pytest.fixture(scope="module")
def models() -> Iterator[tuple[LoopThread, ModelServer]]:
    """The provider of all models, on a thread of its own: commands run in this one."""
    thread, context = LoopThread("models"), model_server()
    yield thread, thread.run(context.__aenter__())
    thread.run(context.__aexit__(None, None, None))
    thread.close()


@pytest.mark.parametrize("source", INPUTS, ids=lambda folder: folder.name)
def test_what_comes_from_outside_is_carried_exactly_or_named(
    source: Path, tmp_path: Path, models: tuple[LoopThread, ModelServer]
) -> None:
    thread, server = models
    folder = tmp_path / source.name
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("expected.yaml"))
    expected = read_expected(source)
    for config in folder.rglob("quintain.yaml"):
        config.write_bytes(config.read_bytes().replace(b"{url}", server.url.encode()))
    server.response_for = answer_by_model(expected.answers, folder)
    env = {name: value.replace("{url}", server.url) for name, value in expected.env.items()}
    found: list[str] = []
    with command_line(folder, env) as shell:
        for is_command, steps in itertools.groupby(expected.steps, lambda step: bool(step.command)):
            if not is_command:  # over one fleet, until a command may change the targets
                found += thread.run(differences_of_answers(steps, folder, server))
                continue
            for step in steps:
                server.requests.clear()
                differs = [*differences_of_command(step, shell), *differences_of_asked(step, server)]
                found += [f"{step.command}: {one}" for one in differs]
    if found:
        pytest.fail("\n".join([expected.why, *found]), pytrace=False)
