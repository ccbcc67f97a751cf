"""The labels of a run: how far graders agree with them, and which answers a person is given to label next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quintain_runner.report.judge_tables import agreement_table
from quintain_runner.report.text_table import TextTable
from quintain_runner.results.labels import Chosen, Note, NoteKey, blind_labels, latest_notes, read_notes, verdicts_of
from quintain_runner.results.row import Row
from quintain_runner.results.store import key_hash
from quintain_runner.statistics.judge_agreement import LabeledVerdict, label_agreement
from quintain_view.index_reader import IndexReader, RowMoved, TrialEntry, open_index, read_rows, rows_of_case
from quintain_view.index_schema import Outcome

#: How many labels an agreement is counted over, and how many cases of earlier answers are named.
_MAX_LABELED, _NAMED = 5_000, 10

HOW_CHOSEN = {
    Chosen.RANDOM: "chosen at random, labeled after verdicts were shown",
    Chosen.DISPUTED: "disputed",
    Chosen.PICKED: "picked",
}


def agreement_tables(folder: Path) -> list[TextTable]:
    """The agreement of each grader with the labels of this folder; empty without labels.

    Only labels of the random queue, given before verdicts were shown, estimate how good a grader is. Others are
    counted apart.
    """
    notes = read_notes(folder)
    labels = {key: note for key, note in latest_notes(notes).items() if note.passed is not None}
    if not labels:
        return []
    blind = blind_labels(notes)
    apart = {key: note for key, note in labels.items() if key not in blind}
    rows = _labeled_rows(folder, list(labels)[:_MAX_LABELED])
    tables = []
    if verdicts := _verdicts((rows[key], note) for key, note in blind.items() if key in rows):
        graders = {name: label_agreement(pairs) for name, pairs in verdicts.items()}
        tables.append(agreement_table("agreement with labels of answers chosen at random", graders))
    if lines := list(_apart_lines(rows, apart)):
        notes_below = ["these labels do not estimate how good a grader is: the answers were not chosen at random"]
        columns = ("grader", "answers", "labels", "agrees with")
        tables.append(TextTable("Agreement with other labels", columns, lines, 2, notes=notes_below))
    if gone := [key for key in list(labels)[:_MAX_LABELED] if key not in rows]:
        named = ", ".join(key.case_id for key in gone[:_NAMED]) + (", …" if len(gone) > _NAMED else "")
        text = "these labels are of answers that this run does not have any more: the cases were asked again"
        tables.append(
            TextTable("Labels of earlier answers", ("cases", "labels"), [(named, f"{len(gone):,}")], notes=[text])
        )
    return tables


def _apart_lines(rows: dict[NoteKey, Row], notes: dict[NoteKey, Note]) -> Iterator[tuple[str, ...]]:
    for chosen, how in HOW_CHOSEN.items():
        found = ((rows[key], note) for key, note in notes.items() if key in rows and note.chosen is chosen)
        for name, pairs in _verdicts(found).items():
            yield name, how, f"{len(pairs):,}", f"{sum(one.label == one.verdict for one in pairs):,}"


def _verdicts(labeled: Iterable[tuple[Row, Note]]) -> dict[str, list[LabeledVerdict]]:
    """The labels, none of which was taken back, with the verdicts of each grader that gave one."""
    verdicts: dict[str, list[LabeledVerdict]] = {}
    for row, note in labeled:
        for name, passed in verdicts_of(row.graders).items():
            verdicts.setdefault(name, []).append(LabeledVerdict(row.case_id, bool(note.passed), passed))
    return verdicts


def _labeled_rows(folder: Path, keys: Iterable[NoteKey]) -> dict[NoteKey, Row]:
    """The rows of these answers; without those whose trial was asked again, or is not there."""
    wanted = set(keys)
    rows: dict[NoteKey, Row] = {}
    with open_index(folder) as index:
        if index is None:
            return rows
        for case_id in dict.fromkeys(key.case_id for key in wanted):
            case = index.find_case(case_id)
            try:
                of_case = [] if case is None else rows_of_case(folder, index, case)
            except RowMoved:
                continue
            rows.update((key, row) for row in of_case if (key := NoteKey.of(row)) in wanted)
    return rows


@dataclass(frozen=True, slots=True)
class QueuedAnswer:
    """An answer to label, without anything that graders said of it; ``labeled`` of its queue have a label."""

    row: Row
    labeled: int


#: The seed of the random queue: its order depends on it and on the cases, and on nothing that graders said.
_SEED = 20_261_127

#: A score so far from the one from which a verdict passes is not disputed.
_PASS_SCORE, _NEAR_SCORE = 0.5, 0.25

#: So many answers of each kind are in the queue of disputed ones.
_MAX_DISPUTED = 500


def next_in_queue(folder: Path, chosen: Chosen) -> QueuedAnswer | None:
    """The next answer of a queue that has no note yet; None where there is none. Raises `RowMoved`.

    An answer at random comes also where it was labeled elsewhere: else those that are left would not be random. At
    random come first one answer to each case, then a second, so that labels are of as many cases as they can be.
    Disputed are first those on which graders differ most, then those with a score nearest to the one that passes.
    """
    notes = read_notes(folder)
    done = {note.key for note in notes if chosen is Chosen.DISPUTED or note.chosen is chosen}
    labeled = len({note.key for note in notes if note.chosen is chosen and note.passed is not None})
    with open_index(folder) as index:
        if index is None:
            return None
        trials = _random_trials(index) if chosen is Chosen.RANDOM else _disputed_trials(index)
        for trial in trials:
            (row,) = read_rows(folder, [(trial.offset, trial.length)])
            if row.output is not None and NoteKey.of(row) not in done:
                return QueuedAnswer(without_verdicts(row), labeled)
    return None


def without_verdicts(row: Row) -> Row:
    """The row without all that graders said of the answer."""
    return row.with_fields(graders={}, score=None, error=None)


def _random_trials(index: IndexReader) -> Iterator[TrialEntry]:
    order: list[int] = (np.random.default_rng(_SEED).permutation(index.count_all_cases()) + 1).tolist()
    turn = 0
    while order:
        left = []
        for case_no in order:
            trials = sorted(filter(_is_graded, index.trials_of(case_no)), key=_random_key)
            if turn < len(trials):
                left.append(case_no)
                yield trials[turn]
        order, turn = left, turn + 1


def _random_key(trial: TrialEntry) -> int:
    return key_hash(_SEED, trial.case_no, trial.column_no, trial.repeat)


def _is_graded(trial: TrialEntry) -> bool:
    return trial.outcome in (Outcome.PASSED, Outcome.FAILED)


def _disputed_trials(index: IndexReader) -> Iterator[TrialEntry]:
    seen = set[int]()
    for trial in (
        *index.most_disputed(_MAX_DISPUTED),
        *index.nearest_scores(_PASS_SCORE, within=_NEAR_SCORE, limit=_MAX_DISPUTED),
    ):
        if trial.offset not in seen and _is_graded(trial):
            seen.add(trial.offset)
            yield trial
