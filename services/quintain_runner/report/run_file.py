"""``run.json``: the configuration, versions, git revision and totals of the run that the rows belong to."""

from __future__ import annotations

import hashlib
import json
import operator
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, model_serializer

from quintain.config.prices import Price
from quintain.config.secrets import redact_secrets
from quintain.contracts.ledger import TargetCard
from quintain.contracts.message import Message
from quintain.contracts.session import UsageLine
from quintain.errors import BadRequest, ConfigError
from quintain_runner.files import atomic_write
from quintain_runner.plan.changes import RunFingerprints
from quintain_runner.report.summary import ColumnTotals, ExitCode, Gate, ParkedTarget, RunSummary, RunTotals
from quintain_runner.results.answer import is_zero
from quintain_runner.results.bill import Bill
from quintain_runner.results.row import column_names
from quintain_runner.results.store import RESULTS_FILE_NAME
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.spec.grader_options import Reducers
from quintain_runner.statistics.analysis import Analysis

#: The timeout of a git command, in seconds; without an answer the record has no revision.
_GIT_TIMEOUT_SECONDS = 10.0


class Revision(Message):
    """A git commit. ``dirty`` says whether tracked files differ from it; untracked files are ignored."""

    commit: str
    dirty: bool


def revision_of(folder: Path) -> Revision | None:
    """The git revision of the repository that contains ``folder``; None without a repository or without git."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None or changed is None else Revision(commit=commit.strip(), dirty=bool(changed.strip()))


def _git(folder: Path, *arguments: str) -> str | None:
    """The output of a git command, or None if it fails."""
    # A repository's settings may name programs to run: these options keep git from starting them.
    command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", "--no-optional-locks", *arguments]
    try:
        completed = subprocess.run(  # noqa: S603 -- no shell, and no untrusted argument
            command, capture_output=True, text=True, errors="replace", timeout=_GIT_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return completed.stdout if completed.returncode == 0 else None


FILE_NAME = "run.json"


class SessionUsage(Message):
    """One of the sessions of a run, and what its calls took, as it was last read."""

    session_id: str
    usage: list[UsageLine] = Field(default_factory=list)


class EvaluationIdentity(Message):
    """Hashes of the dataset and of the graders: results with the same identity are comparable.

    Settings that are changed to complete a run (budgets, timeouts, the threshold) or to extend it (``targets``,
    ``repeats``) are not part of it; each row names its target and repeat.
    """

    dataset: str
    graders: str

    @classmethod
    def of(cls, evaluation: Evaluation, dataset_sha256: str) -> EvaluationIdentity:
        """The identity of an evaluation, with the SHA-256 of its dataset."""
        left_out = {"target", "timeout_seconds", "depends_on", "reduce", "weight"}
        graders = [
            {
                **grader.model_dump(by_alias=True, exclude_none=True, exclude=left_out),
                **({} if grader.weight == 1 else {"weight": grader.weight}),
            }
            for grader in evaluation.spec.graders
        ]
        text = json.dumps(graders, sort_keys=True)
        return cls(dataset=dataset_sha256, graders=hashlib.sha256(text.encode()).hexdigest())


class RunConfiguration(Message):
    """What was run: the evaluation file with its content, and the targets of all commands; in a calibration only its
    judges, over answers that have labels."""

    evaluation: str
    evaluation_sha256: str = ""
    content: str = ""
    identity: EvaluationIdentity
    targets: list[str]
    prompts: list[str] = Field(default_factory=list)
    repeats: int
    reduce: Reducers = Reducers()
    threshold: float | None = None
    max_calls: int = 0
    is_calibration: bool = Field(default=False, exclude_if=is_zero)

    @property
    def columns(self) -> list[str]:
        """The columns of every table: each target, under each prompt."""
        return column_names(self.targets, self.prompts)

    @model_serializer(mode="wrap")
    def _with_null_threshold(self, serialize: SerializerFunctionWrapHandler) -> dict[str, object]:
        return {"threshold": None, **serialize(self)}


class RecordedFingerprints(Message):
    """The fingerprints of the targets, of the graders by target and name, and the models of targets' fingerprints."""

    targets: dict[str, str | None] = Field(default_factory=dict)
    graders: dict[str, dict[str, str | None]] = Field(default_factory=dict)
    models: dict[str, str] = Field(default_factory=dict)


class RunFile(Message):
    """The content of ``run.json``.

    ``session_id`` is the session of the last command that opened one, and ``calls`` says where its calls are.
    ``generation`` counts how often the run was graded again on purpose. ``history`` has what each command did, the
    first one first.
    """

    schema_version: int = 1
    configuration: RunConfiguration
    versions: dict[str, str] = Field(default_factory=dict)
    revision: Revision | None = None
    session_id: str | None = None
    calls: str = "calls.jsonl"
    #: The targets as configured; they contain no keys.
    cards: list[TargetCard] = Field(default_factory=list)
    fingerprints: RecordedFingerprints = RecordedFingerprints()
    generation: int = 0
    #: The model judges by their names, each with the text of its prompt.
    judges: dict[str, JsonValue] = Field(default_factory=dict, exclude_if=operator.not_)
    sessions: list[SessionUsage] = Field(default_factory=list)
    history: list[dict[str, JsonValue]] = Field(default_factory=list)
    started_at: str
    ended_at: str | None = None
    exit_code: int | None = None
    totals: RunTotals = RunTotals()
    targets: dict[str, ColumnTotals] = Field(default_factory=dict)
    parked_targets: dict[str, ParkedTarget] = Field(default_factory=dict)
    #: What became of the other gates than the mean score, when the last command ended.
    gates: list[Gate] = Field(default_factory=list)
    different_seconds: dict[str, float] = Field(default_factory=dict)
    statistics: Analysis | None = None
    #: The known prices of the targets, by which rows are given a cost.
    prices: dict[str, Price] = Field(default_factory=dict, exclude_if=operator.not_)
    bill: Bill | None = None

    @property
    def name(self) -> str:
        """The run's name: the name of its evaluation file without the suffix."""
        stem = Path(self.configuration.evaluation).stem
        return f"{stem} (calibration)" if self.configuration.is_calibration else stem

    def has_tables_of(self, configuration: RunConfiguration, versions: Mapping[str, str]) -> bool:
        """Whether the same rows have the same statistics under this configuration and with these versions."""
        was = self.configuration
        return self.versions == versions and (was.columns, was.repeats, was.reduce) == (
            configuration.columns,
            configuration.repeats,
            configuration.reduce,
        )

    def with_usage(self, usage: Mapping[str, Sequence[UsageLine]]) -> RunFile:
        """The record, with what these sessions have used by now."""
        known = {session.session_id: session for session in self.sessions}
        known |= {name: SessionUsage(session_id=name, usage=list(lines)) for name, lines in usage.items()}
        return self.with_fields(sessions=list(known.values()))

    def bill_of(self, prices: Mapping[str, Price], session_id: str | None, calls_of_earlier_sessions: int) -> Bill:
        """The bill of all sessions whose usage is known; a minimum, if those before ``session_id`` made other calls
        too.
        """
        earlier = (line for each in self.sessions if each.session_id != session_id for line in each.usage)
        is_complete = sum(line.calls for line in earlier) >= calls_of_earlier_sessions
        lines = (line for each in self.sessions for line in each.usage)
        return Bill.of(lines, is_complete=is_complete, prices=prices)

    def with_command(
        self,
        command: str,
        fingerprints: RunFingerprints,
        plan: Mapping[str, int],
        selection: Mapping[str, object] | None = None,
        overrides: Sequence[str] = (),
    ) -> RunFile:
        """The record, with one command more, and what that does with the rows of before; ``selection`` is what it was
        narrowed to, and ``overrides`` are the options that set values in place of those of the files.
        """
        configuration = self.configuration
        entry: dict[str, object] = {
            "command": redact_secrets(command),
            "startedAt": _now(),
            "evaluationSha256": configuration.evaluation_sha256,
            "identity": configuration.identity.model_dump(by_alias=True),
            "targets": {name: fingerprints.targets.get(name) for name in configuration.targets},
            "plan": dict(plan),
        }
        if selection is not None:
            entry["selection"] = dict(selection)
        if overrides:
            entry["overrides"] = [redact_secrets(option) for option in overrides]
        if fingerprints.generation != self.generation:
            entry["generation"] = fingerprints.generation
        # Of graders that the command leaves out, the record keeps what it has.
        known = self.fingerprints.graders if fingerprints.keeps_other_graders else {}
        return self.with_fields(
            fingerprints=RecordedFingerprints(
                targets=dict(fingerprints.targets),
                graders={name: {**known.get(name, {}), **own} for name, own in fingerprints.graders.items()},
                models=dict(fingerprints.models),
            ),
            generation=fingerprints.generation,
            history=[*self.history, entry],
        )

    def with_summary(self, summary: RunSummary) -> RunFile:
        """The record, with these counts."""
        return self.with_fields(
            configuration=self.configuration.with_fields(max_calls=summary.total.max_calls),
            exit_code=int(summary.exit_code),
            totals=summary.total if summary.is_budget_spent else summary.total.with_fields(calls_left=0),
            targets=dict(summary.per_target),
            parked_targets=dict(summary.parked_targets),
            gates=list(summary.other_gates),
            different_seconds=dict(summary.different_seconds),
        )

    def summary(self, folder: Path) -> RunSummary:
        """The counts, as they were written last; ``folder`` is the run's."""
        return RunSummary(
            total=self.totals,
            per_target={name: self.targets.get(name, ColumnTotals()) for name in self.configuration.columns},
            threshold=self.configuration.threshold,
            is_budget_spent=self.exit_code == ExitCode.BUDGET_SPENT,
            parked_targets=self.parked_targets,
            other_gates=self.gates,
            results=folder / RESULTS_FILE_NAME,
        )

    def counts_to_json(self) -> dict[str, object]:
        """The counts, the statistics and the bill as in ``run.json``; what is empty is left out."""
        fields = self.model_dump(by_alias=True, exclude_none=True, mode="json", include=_COUNTS)
        nulls = {"statistics": None, "bill": None}
        return nulls | {name: value for name, value in fields.items() if value or name not in _OPTIONAL}


_OPTIONAL = {"gates", "parkedTargets", "differentSeconds"}
_COUNTS = {
    "exit_code", "totals", "targets", "gates", "parked_targets", "different_seconds", "statistics",
    "bill",
}  # fmt: skip


def open_run(
    folder: Path,
    evaluation: Evaluation,
    targets: Sequence[str],
    dataset_sha256: str,
    *,
    is_narrowed: bool = False,
    cards: Sequence[TargetCard] = (),
) -> RunFile:
    """The record of a results folder: a new one, or the existing one continued, with its start time.

    ``targets`` are those of this command. The run's are those of the evaluation file or, if it names none and the
    command ``is_narrowed``, those of earlier commands too. Raises `ConfigError` where the folder holds rows and no
    record, or one that cannot be read, or a calibration where this is none.
    """
    rows, spec = folder / RESULTS_FILE_NAME, evaluation.spec
    existing = read_run(folder) if (folder / FILE_NAME).exists() else None
    if existing is None and rows.exists() and rows.stat().st_size:
        raise ConfigError(
            f"{folder} holds results but no {FILE_NAME}, so their evaluation is unknown; give another folder with "
            "--output, or remove that one"
        )
    if existing is not None and existing.configuration.is_calibration != evaluation.judges_only:
        what = "a run" if evaluation.judges_only else "a calibration"
        raise ConfigError(f"{folder} holds the results of {what}; give another folder with --output")
    if is_narrowed:
        targets = spec.targets or [*(existing.configuration.targets if existing else ()), *targets]
    configuration = RunConfiguration(
        evaluation=str(evaluation.path),
        evaluation_sha256=evaluation.sha256,
        content=redact_secrets(evaluation.text),
        identity=EvaluationIdentity.of(evaluation, dataset_sha256),
        targets=list(dict.fromkeys(targets)),
        prompts=evaluation.prompt_names,
        repeats=spec.repeats,
        reduce=spec.reducers,
        threshold=spec.threshold.score,
        is_calibration=evaluation.judges_only,
    )
    earlier = existing or RunFile(configuration=configuration, started_at=_now())
    versions = {
        "quintain": metadata.version("quintain"),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    return earlier.with_fields(
        configuration=configuration,
        versions=versions,
        revision=revision_of(evaluation.folder),
        cards=list(cards),
        ended_at=None,
        # Those of the rows before this command, which stay if it changes none.
        statistics=earlier.statistics if earlier.has_tables_of(configuration, versions) else None,
        bill=None,
    )


def require_same_evaluation(folder: Path, evaluation: Evaluation) -> None:
    """Raise `ConfigError` if a folder holds the results of another evaluation, whose bill would be mixed with this one.

    That is one whose file has another place, and content that no command ran. Places are not compared where the file
    is not there any more, seen from the working folder, and has the same name.
    """
    if not (folder / FILE_NAME).exists():
        return
    record = read_run(folder)
    was = Path(record.configuration.evaluation)
    is_same_place = was.resolve() == evaluation.path.resolve()
    is_moved = was.name == evaluation.path.name and not was.exists()
    is_known = evaluation.sha256 in {command.get("evaluationSha256") for command in record.history}
    if not (is_same_place or is_moved or is_known):
        raise ConfigError(
            f"{folder} holds the results of {was}, not of {evaluation.path}; give another folder with --output"
        )


def write_run(folder: Path, run: RunFile, *, ended: bool) -> RunFile:
    """Write ``run.json`` atomically, and return what it says; ``ended`` says whether the run has ended.

    Raises `QuintainError` if the file cannot be written.
    """
    run = run.with_fields(ended_at=_now()) if ended else run.with_fields(ended_at=None, exit_code=None)
    fields = run.model_dump(by_alias=True, exclude_none=True, mode="json", exclude=_COUNTS)
    nulls = dict.fromkeys(("revision", "sessionId", "endedAt", "exitCode"))
    content = {**nulls, **fields, **run.counts_to_json()}
    with atomic_write(folder / FILE_NAME) as file:
        file.write(json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n")
    return run


def read_run(folder: Path) -> RunFile:
    """Read ``run.json`` of a results folder. Raises `ConfigError` if it does not exist or is invalid."""
    path = folder / FILE_NAME
    try:
        run = RunFile.from_wire(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            f"{folder}: there is no {FILE_NAME} in it; name a folder that `quintain run` wrote, such as runs/eval"
        ) from None
    except (OSError, BadRequest) as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}); name a folder that `quintain run` wrote, or a new one"
        ) from None
    if run.schema_version != 1:
        raise ConfigError(f"{path}: its schemaVersion is {run.schema_version}, and this release reads 1")
    return run


def _now() -> str:
    """The current time in UTC, in ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
