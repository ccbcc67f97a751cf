"""What other programs rely on, held against recorded files: documents, schemas, topology, metrics, codes, fields.

Prose is left out of them: descriptions may be reworded. What was changed on purpose is recorded again with::

    QUINTAIN_RECORD_SNAPSHOTS=1 .venv/bin/pytest tests/unit/snapshots
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any

import apsw
import pytest
import typer.main

from quintain import errors, topology
from quintain.config.loader import config_schema
from quintain.contracts.fleet_figures import FleetFigures
from quintain.contracts.invoke import FaultReply, Result
from quintain.contracts.service_card import ServiceCard
from quintain.contracts.session import Info, SessionList, SessionOpened, TargetPause, WorkerList
from quintain.dlq import PoisonMessage, PoisonMessageList
from quintain.errors import Fault, QuintainError
from quintain.settings import read_log_settings, read_settings, read_trace_settings
from quintain.topology import Topology
from quintain_cli import console
from quintain_cli.__main__ import LazyCommand, app
from quintain_cli.commands.doctor import DoctorReport
from quintain_gateway import errors as http_errors
from quintain_gateway.app import OPERATIONS
from quintain_gateway.openapi import build_document as openapi_document
from quintain_metadata.store.opening import open_ledger
from quintain_metadata.store.schema import MIGRATIONS
from quintain_runner.engine.preflight import CheckReport
from quintain_runner.report.comparison import Comparison
from quintain_runner.report.summary import ExitCode
from quintain_runner.results.row import Row
from quintain_runner.spec.evaluation import evaluation_schema
from support.metric_names import service_metrics
from support.snapshots import fields_of_model, hold, outline

RECORDED = Path(__file__).parent / "recorded"

#: The wire models that commands print with ``--json``, and what else prints one beside them.
PRINTED = {
    "check": CheckReport,
    "compare": Comparison,
    "dlq list": PoisonMessageList,
    "dlq show": PoisonMessage,
    "doctor": DoctorReport,
    "drain": WorkerList,
    "an error": FaultReply,
    "info": Info,
    "invoke": Result,
    "session list": SessionList,
    "session open": SessionOpened,
    "status": FleetFigures,
    "status of one service": ServiceCard,
    "target pause": TargetPause,
    "a row of results.jsonl": Row,
}


class Noting(dict[str, str]):
    """An environment that notes which of its variables are asked for."""

    def __init__(self, **values: str) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        self.asked.add(name)
        return super().get(name, default)


def topologies() -> Iterator[Topology]:
    """Every topology, those of a name with the name NAME."""
    for value in vars(topology).values():
        if isinstance(value, Topology):
            yield value
        elif inspect.isfunction(value) and value.__annotations__.get("return") == "Topology":
            yield value(*["NAME" for _ in inspect.signature(value).parameters])


def metrics_of(registry: object) -> Iterator[dict[str, object]]:
    for collector in registry._collector_to_names:  # type: ignore[attr-defined]
        for metric in collector.collect():
            labels = getattr(collector, "_labelnames", None) or getattr(metric, "_labelnames", ())
            buckets = [str(bound) for bound in getattr(collector, "_upper_bounds", ())]
            yield {"name": metric.name, "type": metric.type, "labels": list(labels), "buckets": buckets}


def classes_of(module: object, base: type) -> Iterable[type]:
    found = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, base)]
    return [one for one in found if one.__module__ == module.__name__]  # type: ignore[attr-defined]


def type_of(parameter: Any) -> str:
    """What a parameter takes: its choices, else its type, with its bounds."""
    kind = parameter.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(str(one.value) for one in kind)
    name = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    bounds = [parameter.min, parameter.max]
    return name if bounds == [None, None] else f"{name} {bounds}"


def option_of(parameter: Any) -> str:
    """What a parameter takes, prose left out."""
    default = getattr(parameter.default, "value", parameter.default)
    parts = {
        "required": parameter.required,
        f"default {default}": default is not None and default is not False,
        "many": parameter.multiple or parameter.nargs != 1,
        f"from {parameter.envvar}": parameter.envvar,
    }
    return ", ".join([type_of(parameter), *(part for part, is_so in parts.items() if is_so)])


def commands_of(command: Any, words: str = "quintain") -> Iterator[tuple[str, dict[str, str]]]:
    """Every command with its options and arguments, each under all its names."""
    if isinstance(command, LazyCommand):
        command = command.load_command()
    context = typer.Context(command)
    yield words, {" ".join(sorted([*one.opts, *one.secondary_opts])): option_of(one) for one in command.params}
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            yield from commands_of(command.get_command(context, name), f"{words} {name}")


def test_the_openapi_document() -> None:
    hold(RECORDED / "openapi.json", outline(openapi_document(OPERATIONS)))


def test_the_schemas_of_the_files_a_person_writes() -> None:
    hold(RECORDED / "evaluation_schema.json", outline(evaluation_schema()))
    hold(RECORDED / "config_schema.json", outline(config_schema()))


def test_the_fields_of_what_is_printed_as_json() -> None:
    hold(RECORDED / "printed_fields.json", {name: fields_of_model(model) for name, model in PRINTED.items()})


def test_the_brokers_topology() -> None:
    every = list(topologies())
    exchanges = {one.name: [one.kind, one.arguments] for each in every for one in each.exchanges}
    queues = {one.name: one.arguments for each in every for one in each.queues}
    bindings = sorted(
        {f"{one.exchange.name} --{one.key}--> {one.queue.name}" for each in every for one in each.bindings}
    )
    content = {"exchanges": exchanges, "queues": queues, "bindings": bindings}
    hold(RECORDED / "topology.json", {**content, "operations": list(topology.OPERATION_KEYS)})


def test_the_metrics() -> None:
    content = {}
    for meter in service_metrics():
        content[meter.service] = sorted(metrics_of(meter.registry), key=lambda one: str(one["name"]))
    hold(RECORDED / "metrics.json", content)


async def test_the_sql_schema(tmp_path: Path) -> None:
    ledger = await open_ledger(f"sqlite://{tmp_path / 'ledger.sqlite3'}")
    await ledger.close()
    connection = apsw.Connection(str(tmp_path / "ledger.sqlite3"))
    rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name").fetchall()
    version = connection.execute("PRAGMA user_version").fetchall()
    connection.close()
    hold(RECORDED / "sqlite.json", {"schema": rows, "user_version": version})
    hold(RECORDED / "migrations.json", [list(migration) for migration in MIGRATIONS])


def test_the_errors_and_their_codes() -> None:
    faults = {}
    for kind in [*classes_of(errors, Fault), *classes_of(http_errors, Fault)]:
        plain, charged = kind(), kind(charged=True)
        faults[kind.__name__] = {
            "code": plain.code,
            "status": plain.status,
            "retryable": [plain.retryable, charged.retryable],
            "charged": [plain.charged, charged.charged],
        }
    tree = {kind.__name__: [base.__name__ for base in kind.__bases__] for kind in classes_of(errors, QuintainError)}
    wire = {code: kind.__name__ for code, kind in errors.FAULTS.items()}
    hold(RECORDED / "errors.json", {"faults": faults, "bases": tree, "by_code": wire})


def test_the_exit_codes() -> None:
    content = {
        "of a command": [
            console.EXIT_OK,
            console.EXIT_ERRORS,
            console.EXIT_USAGE,
            console.EXIT_BELOW_THRESHOLD,
            console.EXIT_BUDGET_SPENT,
            console.EXIT_INTERRUPTED,
        ],
        "of a run": {one.name: int(one) for one in ExitCode},
        "of an error": {kind.__name__: console.exit_code(kind()) for kind in classes_of(errors, QuintainError)},
    }
    hold(RECORDED / "exit_codes.json", content)


def test_the_commands_and_their_options() -> None:
    hold(RECORDED / "commands.json", dict(commands_of(typer.main.get_command(app))))


def test_the_environment_that_is_read() -> None:
    env = Noting(HOME="/home/somebody")
    read = [asdict(read(env)) for read in (read_settings, read_log_settings, read_trace_settings)]
    unset = {name: None if value is None else str(value) for one in read for name, value in one.items()}
    content = {"asked": sorted(env.asked), "where nothing is set": unset}
    hold(RECORDED / "environment.json", content)


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.json")), ids=lambda path: path.stem)
def test_a_recorded_file_is_one_that_is_held(path: Path) -> None:
    """A file that no test here compares with would hold nothing."""
    assert any(f'"{path.name}"' in module.read_text() for module in Path(__file__).parent.glob("test_*.py"))
