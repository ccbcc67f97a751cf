"""``run.json``: of what the rows beside it are the results, with which versions, and how far the run has come."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from quintain.config.references import without_secrets
from quintain.contracts.ledger import TargetCard
from quintain.errors import ConfigError
from quintain_runner.analysis import Analysis
from quintain_runner.atomic import replacing
from quintain_runner.cost import Cost
from quintain_runner.evaluation import Evaluation
from quintain_runner.results import FILE_NAME as RESULTS_NAME
from quintain_runner.revision import Revision, revision_of
from quintain_runner.summary import RunSummary

FILE_NAME = "run.json"

#: How much of a hash an error tells, in characters.
_TOLD = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What makes results comparable: hashes of the dataset and of the graders.

    What a person changes to get a run through (budgets, timeouts, the threshold) or to widen it (``targets``,
    ``repeats``) is no part of it: every row names its target and its repeat.
    """

    dataset: str
    graders: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What is told of a run when it has ended: what its rows say, and what they cost, where that is known."""

    analysis: Analysis | None = None
    cost: Cost | None = None

    def to_wire(self) -> dict[str, object]:
        """As ``run.json`` has it."""
        told = {"statistics": self.analysis, "cost": self.cost}
        return {
            name: None if one is None else one.model_dump(by_alias=True, exclude_none=True, mode="json")
            for name, one in told.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a run's calls are accounted for: its session, who keeps its calls, and the targets as they are known here.

    No card holds a key.
    """

    session_id: str | None = None
    calls: str = "calls.jsonl"
    cards: tuple[TargetCard, ...] = ()

    def to_wire(self) -> dict[str, object]:
        """As ``run.json`` has it."""
        cards = [card.model_dump(by_alias=True, exclude_none=True, mode="json") for card in self.cards]
        return {"sessionId": self.session_id, "calls": self.calls, "cards": cards}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A run's record: what was configured, from which revision, and when it was first started."""

    evaluation: Evaluation
    targets: tuple[str, ...]
    identity: Identity
    started_at: str
    revision: Revision | None = None
    origin: Origin = Origin()


def identity_of(evaluation: Evaluation, dataset_sha256: str) -> Identity:
    """The identity of an evaluation on a dataset with this hash."""
    graders = [
        grader.model_dump(by_alias=True, exclude_none=True, exclude={"target", "timeout_seconds"})
        for grader in evaluation.spec.graders
    ]
    return Identity(dataset=dataset_sha256, graders=_sha256(graders))


def begin_record(
    folder: Path, evaluation: Evaluation, targets: Sequence[str], identity: Identity, origin: Origin | None = None
) -> Record:
    """The record of this folder's run, taken up where there is one.

    Raises `ConfigError` where the folder holds the results of another evaluation.
    """
    held = _held(folder)
    if held is not None:
        _refuse_another(folder, held, evaluation, identity)
    return Record(
        evaluation=evaluation,
        targets=tuple(targets),
        identity=identity,
        started_at=str(held.get("startedAt")) if held else _now(),
        revision=revision_of(evaluation.folder),
        origin=origin or Origin(),
    )


def write_record(
    folder: Path, record: Record, summary: RunSummary, *, ended: bool, findings: Findings | None = None
) -> None:
    """Write the record with these counts, in one step. Raises `QuintainError` where the disk refuses it."""
    spec = record.evaluation.spec
    content = {
        "schemaVersion": 1,
        "configuration": {
            "evaluation": str(record.evaluation.path),
            "evaluationSha256": record.evaluation.sha256,
            "content": without_secrets(record.evaluation.text),
            "identity": asdict(record.identity),
            "targets": list(record.targets),
            "repeats": spec.repeats,
            "threshold": spec.threshold,
            "maxCalls": summary.max_calls,
        },
        "versions": {
            "quintain": _version(),
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
        "revision": None if record.revision is None else record.revision.to_wire(),
        **record.origin.to_wire(),
        "startedAt": record.started_at,
        "endedAt": _now() if ended else None,
        **summary.to_wire(),
        **(findings or Findings()).to_wire(),
    }
    if not ended:
        content["exitCode"] = None
    with replacing(folder / FILE_NAME) as file:
        file.write(json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n")


def _held(folder: Path) -> dict[str, object] | None:
    path = folder / FILE_NAME
    try:
        held = json.loads(path.read_bytes())
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
    return held if isinstance(held, dict) else {}


def _refuse_another(folder: Path, held: dict[str, object], evaluation: Evaluation, identity: Identity) -> None:
    configuration = held.get("configuration")
    was = configuration if isinstance(configuration, dict) else {}
    then = was.get("identity")
    then = then if isinstance(then, dict) else {}
    others = [what for what, now in asdict(identity).items() if then.get(what) != now]
    if others:
        before = ", ".join(f"{what} {str(then.get(what))[:_TOLD]}" for what in others)
        here = ", ".join(f"{what} {asdict(identity)[what][:_TOLD]}" for what in others)
        raise ConfigError(
            f"{folder} holds the results of another evaluation: {was.get('evaluation')} ({before}), and this is "
            f"{evaluation.path} ({here}); give another folder with --output, or remove that one"
        )


def _sha256(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _version() -> str:
    try:
        return metadata.version("quintain")
    except metadata.PackageNotFoundError:
        # Run from a checkout that nobody installed.
        return "unknown"
