"""Writes ``run.json``: the configuration, versions, git revision and totals of the run that the rows belong to."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from quintain.config.references import redact_secrets
from quintain.contracts.ledger import TargetCard
from quintain.errors import ConfigError
from quintain_runner.cost.run_cost import Cost
from quintain_runner.report.summary import RunSummary
from quintain_runner.results.atomic_file import atomic_write
from quintain_runner.results.store import FILE_NAME as RESULTS_NAME
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.statistics.analysis import Analysis

#: A repository that answers no sooner is told nothing of, in seconds.
_GIT_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Revision:
    """A commit; ``dirty`` where tracked files differ from it. Files that git does not track say nothing."""

    commit: str
    dirty: bool

    def to_wire(self) -> dict[str, object]:
        """As ``run.json`` has it."""
        return {"commit": self.commit, "dirty": self.dirty}


def revision_of(folder: Path) -> Revision | None:
    """The revision of the repository that this folder is in; None where it is in none, or nobody has git."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None or changed is None else Revision(commit.strip(), bool(changed.strip()))


def _git(folder: Path, *arguments: str) -> str | None:
    # A repository's own settings may name programs: of them none that these words would start.
    command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", "--no-optional-locks", *arguments]
    try:
        completed = subprocess.run(  # noqa: S603 -- no shell, and nothing of it was written by anybody else
            command, capture_output=True, text=True, errors="replace", timeout=_GIT_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return completed.stdout if completed.returncode == 0 else None


FILE_NAME = "run.json"

#: How much of a hash an error tells, in characters.
_SHOWN_HASH_CHARACTERS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationIdentity:
    """What makes results comparable: hashes of the dataset and of the graders.

    What a person changes to get a run through (budgets, timeouts, the threshold) or to widen it (``targets``,
    ``repeats``) is no part of it: every row names its target and its repeat.
    """

    dataset: str
    graders: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFindings:
    """What is told of a run when it has ended: what its rows say, and what they cost, where that is known."""

    analysis: Analysis | None = None
    cost: Cost | None = None

    def to_wire(self) -> dict[str, object]:
        """As ``run.json`` has it."""
        sections = {"statistics": self.analysis, "cost": self.cost}
        return {
            name: None if one is None else one.model_dump(by_alias=True, exclude_none=True, mode="json")
            for name, one in sections.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a run's calls are accounted for: its session, who keeps its calls, and the targets as they are known here.

    No card holds a key.
    """

    session_id: str | None = None
    calls_location: str = "calls.jsonl"
    cards: tuple[TargetCard, ...] = ()

    def to_wire(self) -> dict[str, object]:
        """As ``run.json`` has it."""
        cards = [card.model_dump(by_alias=True, exclude_none=True, mode="json") for card in self.cards]
        return {"sessionId": self.session_id, "calls": self.calls_location, "cards": cards}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run's record: what was configured, from which revision, and when it was first started."""

    evaluation: Evaluation
    targets: tuple[str, ...]
    identity: EvaluationIdentity
    started_at: str
    revision: Revision | None = None
    origin: Origin = Origin()


def identity_of(evaluation: Evaluation, dataset_sha256: str) -> EvaluationIdentity:
    """The identity of an evaluation on a dataset with this hash."""
    graders = [
        grader.model_dump(by_alias=True, exclude_none=True, exclude={"target", "timeout_seconds"})
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
    """The record of this folder's run, taken up where there is one.

    Raises `ConfigError` where the folder holds the results of another evaluation.
    """
    existing = _read_existing(folder)
    if existing is not None:
        _require_same_evaluation(folder, existing, evaluation, identity)
    return RunRecord(
        evaluation=evaluation,
        targets=tuple(targets),
        identity=identity,
        started_at=str(existing.get("startedAt")) if existing else _now(),
        revision=revision_of(evaluation.folder),
        origin=origin or Origin(),
    )


def write_record(
    folder: Path, record: RunRecord, summary: RunSummary, *, ended: bool, findings: RunFindings | None = None
) -> None:
    """Write the record with these counts, in one step. Raises `QuintainError` where the disk refuses it."""
    spec = record.evaluation.spec
    content = {
        "schemaVersion": 1,
        "configuration": {
            "evaluation": str(record.evaluation.path),
            "evaluationSha256": record.evaluation.sha256,
            "content": redact_secrets(record.evaluation.text),
            "identity": asdict(record.identity),
            "targets": list(record.targets),
            "repeats": spec.repeats,
            "threshold": spec.threshold,
            "maxCalls": summary.max_calls,
        },
        "versions": {
            "quintain": _quintain_version(),
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
        "revision": None if record.revision is None else record.revision.to_wire(),
        **record.origin.to_wire(),
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
    path = folder / FILE_NAME
    try:
        existing = json.loads(path.read_bytes())
    except FileNotFoundError:
        rows = folder / RESULTS_NAME
        if rows.exists() and rows.stat().st_size:
            raise ConfigError(
                f"{folder} holds results and no {FILE_NAME}, so nobody can tell of which evaluation; give another "
                "folder with --output, or remove that one"
            ) from None
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); remove it, or give another --output") from None
    return existing if isinstance(existing, dict) else {}


def _require_same_evaluation(
    folder: Path, existing: dict[str, object], evaluation: Evaluation, identity: EvaluationIdentity
) -> None:
    configuration = existing.get("configuration")
    was = configuration if isinstance(configuration, dict) else {}
    existing_identity = was.get("identity")
    existing_identity = existing_identity if isinstance(existing_identity, dict) else {}
    others = [what for what, value in asdict(identity).items() if existing_identity.get(what) != value]
    if others:
        previous = ", ".join(f"{what} {str(existing_identity.get(what))[:_SHOWN_HASH_CHARACTERS]}" for what in others)
        here = ", ".join(f"{what} {asdict(identity)[what][:_SHOWN_HASH_CHARACTERS]}" for what in others)
        raise ConfigError(
            f"{folder} holds the results of another evaluation: {was.get('evaluation')} ({previous}), and this is "
            f"{evaluation.path} ({here}); give another folder with --output, or remove that one"
        )


def _sha256(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _quintain_version() -> str:
    try:
        return metadata.version("quintain")
    except metadata.PackageNotFoundError:
        # Run from a checkout that nobody installed.
        return "unknown"
