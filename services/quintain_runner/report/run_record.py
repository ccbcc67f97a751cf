"""Writes ``run.json``: the configuration, versions, git revision and totals of the run that the rows belong to."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from quintain.config.prices import Price
from quintain.config.references import redact_secrets
from quintain.contracts.ledger import TargetCard
from quintain.contracts.message import Message
from quintain.contracts.session import TargetUsage
from quintain.errors import ConfigError
from quintain_runner.files import atomic_write
from quintain_runner.plan.changes import PlanIdentity, RunFingerprints
from quintain_runner.report.summary import RunSummary
from quintain_runner.results.counts import Cost, run_cost, total_usage
from quintain_runner.results.store import RESULTS_FILE_NAME
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.statistics.analysis import Analysis

#: The timeout of a git command, in seconds; without an answer the record has no revision.
_GIT_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Revision:
    """A git commit. ``dirty`` says whether tracked files differ from it; untracked files are ignored."""

    commit: str
    dirty: bool

    def to_wire(self) -> dict[str, object]:
        """The JSON form in ``run.json``."""
        return {"commit": self.commit, "dirty": self.dirty}


def revision_of(folder: Path) -> Revision | None:
    """The git revision of the repository that contains ``folder``; None without a repository or without git."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None or changed is None else Revision(commit.strip(), bool(changed.strip()))


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


def installed_versions() -> dict[str, str]:
    """The versions of quintain, of Python and of the platform."""
    return {"quintain": _quintain_version(), "python": platform.python_version(), "platform": platform.platform()}


def _quintain_version() -> str:
    """The installed version of quintain."""
    try:
        return metadata.version("quintain")
    except metadata.PackageNotFoundError:
        # A checkout that is not installed as a package.
        return "unknown"


FILE_NAME = "run.json"


class SessionUsage(Message):
    """One of the ``sessions`` of ``run.json``, and its usage by target."""

    session_id: str
    targets: dict[str, TargetUsage]


_SESSIONS = TypeAdapter(list[SessionUsage])


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationIdentity:
    """Hashes of the dataset and of the graders: results with the same identity are comparable.

    Settings that are changed to complete a run (budgets, timeouts, the threshold) or to extend it (``targets``,
    ``repeats``) are not part of it; each row names its target and repeat.
    """

    dataset: str
    graders: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFindings:
    """The statistics and the cost of a run that has ended; None if unknown."""

    analysis: Analysis | None = None
    cost: Cost | None = None

    def to_wire(self) -> dict[str, object]:
        """The JSON form in ``run.json``."""
        sections = {"statistics": self.analysis, "cost": self.cost}
        return {
            name: None if section is None else section.model_dump(by_alias=True, exclude_none=True, mode="json")
            for name, section in sections.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a run's calls are recorded: its session, the location of its call log, and its targets as configured.

    ``cards`` contain no keys.
    """

    session_id: str | None = None
    calls_location: str = "calls.jsonl"
    cards: tuple[TargetCard, ...] = ()

    def to_wire(self) -> dict[str, object]:
        """The JSON form in ``run.json``."""
        cards = [card.model_dump(by_alias=True, exclude_none=True, mode="json") for card in self.cards]
        return {"sessionId": self.session_id, "calls": self.calls_location, "cards": cards}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The record of a run: its configuration, revision and first start time (ISO 8601, UTC)."""

    evaluation: Evaluation
    targets: tuple[str, ...]
    identity: EvaluationIdentity
    started_at: str
    revision: Revision | None = None
    origin: Origin = Origin()
    #: The models of targets by their fingerprints, of this command and of earlier ones.
    models: Mapping[str, str] = field(default_factory=dict)
    fingerprints: RunFingerprints = field(default_factory=RunFingerprints)
    #: What each command did, the first one first.
    history: tuple[Mapping[str, object], ...] = ()
    #: How often the run was graded again on purpose.
    generation: int = 0
    #: The usage of each session of the run by target, as it was last read.
    usage: Mapping[str, Mapping[str, TargetUsage]] = field(default_factory=dict)
    #: The identity of the plan whose budget was opened last; None if none is known.
    plan: PlanIdentity | None = None

    @property
    def calls_made_twice(self) -> int:
        """The number of calls that two workers were granted, as far as the ledger told."""
        return sum(usage.made_twice or 0 for targets in self.usage.values() for usage in targets.values())

    def with_session_usage(self, usage: Mapping[str, TargetUsage]) -> RunRecord:
        """The record, with what this command's session has used by now."""
        return replace(self, usage={**self.usage, self.origin.session_id or "": usage})

    def cost(self, prices: Mapping[str, Price], calls_of_earlier_sessions: int) -> Cost:
        """The cost of all sessions whose usage is known; a minimum, if earlier sessions made other calls too."""
        earlier = total_usage(usage for name, usage in self.usage.items() if name != (self.origin.session_id or ""))
        is_complete = sum(usage.calls for usage in earlier.values()) >= calls_of_earlier_sessions
        return run_cost(total_usage(self.usage.values()), prices, complete=is_complete)

    def with_command(
        self,
        command: str,
        fingerprints: RunFingerprints,
        plan: Mapping[str, int],
        selection: Mapping[str, object] | None = None,
    ) -> RunRecord:
        """The record, with one command more, and what that does with the rows of before; ``selection`` is what it was
        narrowed to.
        """
        entry: dict[str, object] = {
            "command": redact_secrets(command),
            "startedAt": _now(),
            "evaluationSha256": self.evaluation.sha256,
            "identity": asdict(self.identity),
            "targets": {name: fingerprints.targets.get(name) for name in self.targets},
            "plan": dict(plan),
        }
        if selection is not None:
            entry["selection"] = dict(selection)
        if fingerprints.generation != self.generation:
            entry["generation"] = fingerprints.generation
        return replace(
            self,
            models=fingerprints.models,
            fingerprints=fingerprints,
            generation=fingerprints.generation,
            history=(*self.history, entry),
        )


def identity_of(evaluation: Evaluation, dataset_sha256: str) -> EvaluationIdentity:
    """The identity of an evaluation, with the SHA-256 of its dataset."""
    left_out = {"target", "timeout_seconds", "depends_on", "reduce", "weight"}
    graders = [
        {
            **grader.model_dump(by_alias=True, exclude_none=True, exclude=left_out),
            **({} if grader.weight == 1 else {"weight": grader.weight}),
        }
        for grader in evaluation.spec.graders
    ]
    return EvaluationIdentity(dataset=dataset_sha256, graders=_sha256(graders))


def open_record(
    folder: Path,
    evaluation: Evaluation,
    targets: Sequence[str],
    identity: EvaluationIdentity,
    origin: Origin | None = None,
) -> RunRecord:
    """The record of a results folder: a new one, or the existing one continued, with its start time.

    Raises `ConfigError` where the folder holds rows and no record, or one that cannot be read.
    """
    existing = _read_existing(folder)
    return RunRecord(
        evaluation=evaluation,
        targets=tuple(targets),
        identity=identity,
        started_at=str(existing.get("startedAt")) if existing else _now(),
        revision=revision_of(evaluation.folder),
        origin=origin or Origin(),
        models=_models(existing),
        history=_history(existing),
        generation=_generation(existing),
        usage=_session_usage(existing),
        plan=_plan_identity(existing),
    )


def write_record(
    folder: Path, record: RunRecord, summary: RunSummary, *, ended: bool, findings: RunFindings | None = None
) -> None:
    """Write ``run.json`` with the counts of ``summary``, atomically.

    ``ended`` says whether the run has ended, and ``findings`` are its statistics and cost. Raises `QuintainError` if
    the file cannot be written.
    """
    spec = record.evaluation.spec
    content = {
        "schemaVersion": 1,
        "configuration": {
            "evaluation": str(record.evaluation.path),
            "evaluationSha256": record.evaluation.sha256,
            "content": redact_secrets(record.evaluation.text),
            "identity": asdict(record.identity),
            "targets": list(record.targets),
            "prompts": record.evaluation.prompt_names,
            "repeats": spec.repeats,
            "reduce": spec.reducers.model_dump(by_alias=True, exclude_none=True),
            "threshold": spec.threshold,
            "maxCalls": summary.max_calls,
        },
        "versions": installed_versions(),
        "revision": None if record.revision is None else record.revision.to_wire(),
        **record.origin.to_wire(),
        # A command that has nothing to call opens no session.
        "sessionId": record.origin.session_id or next(iter(reversed(list(record.usage))), None),
        "fingerprints": {
            "targets": dict(record.fingerprints.targets),
            "graders": {name: dict(graders) for name, graders in record.fingerprints.graders.items()},
            "models": dict(record.models),
        },
        "plan": None if record.plan is None else record.plan.model_dump(),
        "generation": record.generation,
        "sessions": [
            {
                "sessionId": session,
                "targets": {
                    name: usage.model_dump(by_alias=True, exclude_none=True) for name, usage in targets.items()
                },
            }
            for session, targets in record.usage.items()
        ],
        "history": [dict(entry) for entry in record.history],
        "startedAt": record.started_at,
        "endedAt": _now() if ended else None,
        **summary.to_wire(),
        **(findings or RunFindings()).to_wire(),
    }
    if not ended:
        content["exitCode"] = None
    with atomic_write(folder / FILE_NAME) as file:
        file.write(json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n")


def _read_existing(folder: Path) -> dict[str, object] | None:
    """The content of an existing ``run.json``, or None. Raises `ConfigError` if it is invalid, or missing beside
    results.
    """
    path = folder / FILE_NAME
    try:
        existing = json.loads(path.read_bytes())
    except FileNotFoundError:
        rows = folder / RESULTS_FILE_NAME
        if rows.exists() and rows.stat().st_size:
            raise ConfigError(
                f"{folder} holds results but no {FILE_NAME}, so their evaluation is unknown; give another "
                "folder with --output, or remove that one"
            ) from None
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); remove it, or give another --output") from None
    return existing if isinstance(existing, dict) else {}


def planned_targets(folder: Path, evaluation: Evaluation, selected: Sequence[str]) -> tuple[str, ...]:
    """The targets of the whole run, if a command is narrowed to ``selected``: those of the evaluation file or, if it
    names none, those of earlier commands and ``selected``.
    """
    if evaluation.spec.targets is not None:
        return tuple(evaluation.spec.targets)
    configuration = (_read_existing(folder) or {}).get("configuration")
    earlier = configuration.get("targets") if isinstance(configuration, dict) else None
    return tuple(dict.fromkeys([*(map(str, earlier) if isinstance(earlier, list) else ()), *selected]))


def _models(existing: Mapping[str, object] | None) -> dict[str, str]:
    fingerprints = (existing or {}).get("fingerprints")
    models = fingerprints.get("models") if isinstance(fingerprints, dict) else None
    return {str(key): str(model) for key, model in models.items()} if isinstance(models, dict) else {}


def _generation(existing: Mapping[str, object] | None) -> int:
    generation = (existing or {}).get("generation")
    return generation if isinstance(generation, int) else 0


def _session_usage(existing: Mapping[str, object] | None) -> dict[str, dict[str, TargetUsage]]:
    try:
        sessions = _SESSIONS.validate_python((existing or {}).get("sessions") or [])
    except ValidationError:
        return {}
    return {session.session_id: session.targets for session in sessions}


def _plan_identity(existing: Mapping[str, object] | None) -> PlanIdentity | None:
    try:
        return PlanIdentity.model_validate((existing or {}).get("plan"))
    except ValidationError:
        return None


def _history(existing: Mapping[str, object] | None) -> tuple[Mapping[str, object], ...]:
    history = (existing or {}).get("history")
    return tuple(entry for entry in history if isinstance(entry, dict)) if isinstance(history, list) else ()


def _sha256(content: object) -> str:
    """The SHA-256 of a value's JSON, in hexadecimal."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _now() -> str:
    """The current time in UTC, in ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
