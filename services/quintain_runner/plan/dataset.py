"""Reads a dataset as a stream of cases, and checks every row before any call is made.

The output of a dataset that is a command is stored in the results folder. The command runs once for each folder, so
that a resumed run uses the same cases.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from quintain.config.file_errors import config_error
from quintain.config.yaml_file import read_yaml
from quintain.contracts.credentials import mask_secrets
from quintain.errors import ConfigError
from quintain.graders import Case
from quintain.programs.processes import run_to_file
from quintain.programs.program import (
    CannotStart,
    Program,
    check_rights,
    describe_end,
    program_environment,
    secrets_of,
    start_problem,
)
from quintain.programs.sandbox import Confinement
from quintain.runtime.text_files import InvalidLine
from quintain_runner.files import MAX_REPORTED_ERRORS, atomic_write
from quintain_runner.plan.cases import (
    EXAMPLE_LINE,
    FieldNames,
    OwnGraderStats,
    ParsedRow,
    expected_text,
    input_length,
    parse_csv,
    parse_jsonl,
    parse_yaml_list,
    require_question,
    with_own_graders,
)
from quintain_runner.plan.conversation import most_asks, most_turns
from quintain_runner.plan.selection import (
    ALL_CASES,
    FEATURE_NAMES,
    CaseRequirement,
    CaseSelection,
    HashSampler,
    UnmetRequirements,
    selection_of,
)
from quintain_runner.results.store import KeyHashSet, key_hash
from quintain_runner.spec.choices import with_ordered_choices
from quintain_runner.spec.evaluation import DatasetSpec, Evaluation
from quintain_runner.spec.graders import judges_among
from quintain_runner.spec.prompts import CASE_AS_IT_IS, Prompt
from quintain_runner.spec.templates import TemplateError


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSource:
    """A file of cases, its format, and the selection of its rows.

    ``fields`` are the dataset's own names of fields by ours, if it has others; then a row without an id has its hash.
    ``prompts`` are what is asked about each case; where they ask the case itself, it needs a question or messages.
    ``grader_names`` are those of the evaluation's graders, which no case's own grader has. ``judges_only``: of a case's
    own graders only the judges are read, and where ``only_graders`` has names, only these. ``choices_seed``
    orders the choices of each case.
    """

    path: Path
    format: Literal["jsonl", "csv", "yaml"] = "jsonl"
    fields: FieldNames | None = None
    prompts: tuple[Prompt, ...] = (CASE_AS_IT_IS,)
    grader_names: frozenset[str] = frozenset()
    judges_only: bool = False
    only_graders: tuple[str, ...] = ()
    choices_seed: int | None = 0
    selection: CaseSelection = ALL_CASES


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStats:
    """The result of checking a dataset.

    ``cases`` is the number of selected cases, and ``sha256`` identifies the dataset with its selection.
    ``input_characters`` and ``expected_characters`` are the total lengths of inputs and expected answers of the
    selected cases, under each prompt; extrapolated if only some of the matching rows are selected. ``warnings`` are
    about fields that some of them lack; ``feature_fields`` counts the rows with a field of `FEATURE_NAMES`.
    ``conversations`` is what their conversations take; None where every case is asked once. ``own_graders`` is what the
    cases' own graders take.
    """

    source: CaseSource
    cases: int
    sha256: str
    input_characters: int = 0
    expected_characters: int = 0
    warnings: tuple[str, ...] = ()
    feature_fields: Mapping[str, int] = field(default_factory=dict)
    conversations: ConversationStats | None = None
    own_graders: OwnGraderStats = field(default_factory=OwnGraderStats)

    @property
    def user_targets(self) -> tuple[str, ...]:
        """The targets that speak as users."""
        return () if self.conversations is None else tuple(sorted(self.conversations.user_targets))

    def references(
        self, targets: Collection[str], judge_targets: Mapping[str, str | None]
    ) -> Iterator[tuple[str, str]]:
        """The place that names a target, and the target, of each user, and of each target that the cases' own graders
        call for answers of these ``targets``."""
        yield from ((f"{self.source.path}: user.target", name) for name in self.user_targets)
        judges = (judge for target in targets for judge in self.own_graders.judges_of(target, judge_targets))
        yield from ((f"{self.source.path}: graders", judge) for judge in dict.fromkeys(judges))

    def asks_of(self, cases: int, prompts: int) -> int:
        """How many calls so many cases under so many prompts take at most without their graders, of one target."""
        if (stats := self.conversations) is None:
            return cases * prompts
        return stats.asks if cases == self.cases and stats.is_exact else cases * prompts * stats.most_asks

    def grader_calls_of(self, cases: int) -> int:
        """How many calls the own graders of so many cases take at most, for one answer to each."""
        own = self.own_graders
        return own.calls if cases == self.cases == own.counted else cases * own.most_calls_of_case


@dataclass(slots=True)
class ConversationStats:
    """What the conversations of a dataset take: the turns of all cases under all prompts, with the calls of their users
    (``asks``), those of one trial at most, the answers that later turns show again, and the targets that speak as
    users. ``is_exact``: these are the selected cases, and not also others that a sample was drawn from.
    """

    turns: int = 0
    asks: int = 0
    most_asks: int = 1
    shown_answers: int = 0
    user_targets: set[str] = field(default_factory=set)
    has_conversations: bool = False
    is_exact: bool = True

    def add(self, case: Case) -> None:
        """Count a case as it is asked under one prompt."""
        asks, turns = most_asks(case), most_turns(case)
        self.turns += turns
        self.asks += asks
        self.most_asks = max(self.most_asks, asks)
        self.shown_answers += turns * (turns - 1) // 2
        self.has_conversations |= case.is_conversation
        if case.user is not None:
            self.user_targets.add(case.user.target)


def read_cases(source: CaseSource) -> Generator[Case, None, None]:
    """Iterate over the selected cases. Raises `ConfigError` at the first invalid row.

    Example::

        stats = check_dataset(evaluation.spec.dataset, CaseSource(path=Path("cases.jsonl")))
        for case in read_cases(stats.source):
            print(case.id)
    """
    with closing(_parsed_rows(source)) as rows:
        yield from source.selection.filter_cases(_valid_cases(source, rows))


def check_dataset(spec: DatasetSpec, source: CaseSource, requirements: Sequence[CaseRequirement] = ()) -> DatasetStats:
    """Read every row once, up to the last one that can be selected, and draw the sample.

    ``source`` is the dataset file, or the stored output of the dataset command. Raises `ConfigError` with one line for
    each invalid row, with its line number, or one line for each requirement that selected cases do not meet.
    """
    sampler, ids, digest = HashSampler(selection_of(spec), spec.sample), KeyHashSet(), hashlib.sha256()
    unmet, errors = UnmetRequirements(requirements), list[str]()
    rows, error_count, input_characters, expected_characters = 0, 0, 0, 0
    feature_fields, conversations, own_graders = Counter[str](), ConversationStats(), OwnGraderStats()
    for number, row in _parsed_rows(source, digest.update):
        rows += 1
        error = _row_error(row, ids, has_own_ids=source.fields is None)
        if error is not None:
            error_count += 1
            if error_count <= MAX_REPORTED_ERRORS:
                errors.append(f"line {number}: {error}")
        elif isinstance(row, Case) and sampler.offer(row):
            unmet.add(row)
            own_graders.add(row)
            feature_fields.update(row.metadata.keys() & FEATURE_NAMES.keys())
            # A case that does not fill them was counted above.
            with suppress(TemplateError):
                for prompt in source.prompts:
                    asked = prompt.apply(row)
                    input_characters += input_length(asked)
                    conversations.add(asked)
            expected_characters += len(source.prompts) * len(expected_text(row) or "")
            if sampler.is_complete:
                break
    if error_count:
        raise config_error(source.path, errors, more=error_count - len(errors))
    _require_cases(source.path, spec, rows, sampler)
    source = replace(source, selection=sampler.final_selection())
    warnings = _require_met(unmet, source, sampler)
    share = sampler.case_count / sampler.matching_count
    conversations.is_exact = share == 1
    return DatasetStats(
        source=source,
        cases=sampler.case_count,
        sha256=_dataset_hash(digest.hexdigest(), spec),
        input_characters=round(input_characters * share),
        expected_characters=round(expected_characters * share),
        warnings=warnings,
        feature_fields=feature_fields,
        conversations=conversations if conversations.has_conversations else None,
        own_graders=own_graders,
    )


#: Of so many values of a YAML file it is said that YAML 1.1 reads something else.
_MAX_NOTES = 5


def _require_cases(path: Path, spec: DatasetSpec, rows: int, sampler: HashSampler) -> None:
    """Raise `ConfigError` if the dataset is empty or ``where`` selects no row."""
    if not rows:
        raise config_error(path, [f"the dataset has no cases; write one to a line, such as {EXAMPLE_LINE}"])
    if not sampler.matching_count:
        fields = ", ".join(spec.where)
        raise config_error(path, [f"where selects none of its {rows:,} rows; check {fields}"])


def _require_met(unmet: UnmetRequirements, source: CaseSource, sampler: HashSampler) -> tuple[str, ...]:
    if unmet and sampler.case_count < sampler.matching_count:
        # All rows that the sample was drawn from were counted; only the drawn ones matter.
        unmet = unmet.recounted(read_cases(source))
    if errors := list(unmet.messages(sampler.case_count)):
        raise config_error(source.path, errors)
    notes = read_yaml(source.path).notes(lambda value: value) if source.format == "yaml" else iter(())
    texts = (*unmet.messages(sampler.case_count, warnings=True), *itertools.islice(notes, _MAX_NOTES))
    return tuple(f"{source.path}: {text}" for text in texts)


def _row_error(row: Case | InvalidLine, seen_ids: KeyHashSet, *, has_own_ids: bool) -> str | None:
    """The error of a row, or None if it is a case with a new id. Without ``has_own_ids`` an id may be a row's hash."""
    if isinstance(row, InvalidLine):
        return str(row)
    id_hash = key_hash(row.id)
    if id_hash in seen_ids:
        mend = "rename one" if has_own_ids else "rename one, or leave out a row that is there twice"
        return f"the id {row.id!r} is used before; ids tell cases apart: {mend}"
    seen_ids.add(id_hash)
    return None


def _dataset_hash(sha256: str, spec: DatasetSpec) -> str:
    """The hash of the dataset: of the file's content, and of its selection if it has one."""
    if spec.selects_all_rows and spec.fields is None:
        return sha256
    names = set() if spec.fields is None else {"fields"}
    selection = spec.model_dump(include={"where", "sample", "seed", "limit", *names})
    return hashlib.sha256(json.dumps([sha256, selection], sort_keys=True).encode()).hexdigest()


def _valid_cases(source: CaseSource, rows: Iterator[ParsedRow]) -> Iterator[Case]:
    """Iterate over the cases. Raises `ConfigError` at the first invalid row."""
    for number, row in rows:
        if isinstance(row, InvalidLine):
            raise config_error(source.path, [f"line {number}: {row}"])
        yield row


def _parsed_rows(source: CaseSource, on_line: Callable[[bytes], object] = len) -> Generator[ParsedRow, None, None]:
    """Parse every row of the source's file; ``on_line`` is called with each of its lines. Raises `ConfigError`."""
    try:
        with source.path.open("rb") as file:
            lines = _observed_lines(file, on_line)
            if source.format == "yaml":
                rows = parse_yaml_list(lines, str(source.path), source.fields)
            else:
                rows = (parse_csv if source.format == "csv" else parse_jsonl)(lines, source.fields)
            if any(prompt.asks_the_case for prompt in source.prompts):
                rows = ((number, require_question(row)) for number, row in rows)
            yield from ((number, _with_graders(row, source)) for number, row in rows)
    except OSError as error:
        raise ConfigError(
            f"{source.path}: the dataset cannot be read ({error.strerror}); its path is relative to the evaluation file"
        ) from None


def _with_graders(row: Case | InvalidLine, source: CaseSource) -> Case | InvalidLine:
    if isinstance(row, Case):
        try:
            row = with_ordered_choices(row, source.choices_seed)
        except ValueError as error:
            return InvalidLine(str(error))
    row = with_own_graders(row, source.grader_names)
    if not isinstance(row, Case) or not (source.judges_only or source.only_graders):
        return row
    graders = judges_among(row.graders) if source.judges_only else row.graders
    only = source.only_graders
    return row.model_copy(update={"graders": [one for one in graders if not only or one.name in only]})


def _observed_lines(lines: Iterable[bytes], on_line: Callable[[bytes], object]) -> Iterator[bytes]:
    """Iterate over lines, calling ``on_line`` with each."""
    for line in lines:
        on_line(line)
        yield line


#: The most characters of a failed command's stderr that its error shows.
_MAX_STDERR_CHARACTERS = 300


def open_dataset(
    evaluation: Evaluation,
    results_folder: Path,
    env: Mapping[str, str],
    requirements: Sequence[CaseRequirement] = (),
) -> DatasetStats:
    """Check every row of an evaluation's dataset, and every selected case against ``requirements``; if the dataset is
    a command without stored output, run the command first.

    ``results_folder`` is where the output is stored, and ``env`` the environment of the command, from which secrets are
    removed. Raises `ConfigError` with all errors of the dataset, or if the command fails.
    """
    spec = evaluation.spec.dataset
    source = CaseSource(
        path=evaluation.folder / (spec.file or ""),
        format=spec.case_format,
        fields=spec.fields,
        prompts=evaluation.asked_prompts,
        grader_names=evaluation.grader_names,
        judges_only=evaluation.judges_only,
        only_graders=evaluation.only_graders,
        choices_seed=spec.choices_seed,
    )
    if spec.command is None:
        return check_dataset(spec, source, requirements)
    argv = json.dumps([spec.command, spec.case_format == "csv"])
    name = f"dataset-{hashlib.sha256(argv.encode()).hexdigest()[:12]}.{spec.case_format}"
    path = results_folder / name
    source = replace(source, path=path)
    if path.exists():
        return check_dataset(spec, source, requirements)
    try:
        results_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{results_folder}: cannot be written to ({error.strerror}); give another --output") from None
    program_env = program_environment(env, env_from=spec.env_from, own=spec.env)
    confinement = Confinement(
        run_as=spec.run_as, sandbox=spec.sandbox, read=(evaluation.folder,), hidden=(results_folder,)
    )
    program = Program(argv=spec.command, env=program_env, cwd=evaluation.folder, confinement=confinement)
    problem = start_problem(program)
    if problem is not None:
        raise ConfigError(f"{evaluation.path}: dataset: {problem}")
    try:
        check_rights(program)
    except ConfigError as error:
        raise ConfigError(f"{evaluation.path}: dataset: {error.message}") from None
    _run_command_into(path, program)
    try:
        return check_dataset(spec, source, requirements)
    except ConfigError as error:
        # Invalid output is not kept, so that the command runs again once it is fixed.
        path.unlink()
        raise ConfigError(mask_secrets(error.message, secrets_of(program.env))) from None


def _run_command_into(path: Path, program: Program) -> None:
    """Run a dataset command and write its stdout to ``path``. Raises `ConfigError` if it fails."""
    with tempfile.TemporaryFile() as errors, atomic_write(path) as file:
        try:
            exit_code = run_to_file(program, stdout=file, stderr=errors)
        except CannotStart as error:
            raise ConfigError(
                f"dataset: its command {program.argv[0]!r} cannot be started in {program.cwd} ({error.reason}); check "
                "the path, and that it may be executed"
            ) from None
        if exit_code != 0:
            errors.seek(0)
            stderr = mask_secrets(errors.read().decode(errors="replace"), secrets_of(program.env)).strip()
            raise ConfigError(
                f"dataset: its command failed, {describe_end(exit_code, stderr[-_MAX_STDERR_CHARACTERS:])}"
            )
