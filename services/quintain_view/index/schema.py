"""The tables of the index, and the codes that they hold. No I/O.

Lists of a million trials stay quick because each order has an index that covers every filter: a page of a list is read
from one index, without a look at the table.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

#: The file, beside ``results.jsonl``. It can be removed at any time: it is made again from the results.
FILE_NAME: Final = "view.sqlite3"

#: An index of another version is made anew.
SCHEMA_VERSION: Final = 1

#: Of so many graders a row's index says which failed the answer: the bits of a positive SQLite integer.
MAX_GRADER_BITS: Final = 62

#: In the order by score, trials without a score come last.
NO_SCORE_KEY: Final = 2.0

#: A row of the text index is a case number and, in the lower bits, a running number.
TEXT_ROW_BITS: Final = 20


class Outcome(IntEnum):
    """How a trial ended."""

    PASSED = 0
    FAILED = 1
    ERROR = 2
    IN_DOUBT = 3


TABLES: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE result_column (column_no INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE grader (bit INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE case_text (case_no INTEGER PRIMARY KEY, case_id TEXT NOT NULL UNIQUE, question TEXT NOT NULL);
CREATE VIRTUAL TABLE trial_text USING fts5(words, content='', detail=none);
CREATE TABLE trial (
    case_no INTEGER NOT NULL, column_no INTEGER NOT NULL, repeat INTEGER NOT NULL, outcome INTEGER NOT NULL,
    score REAL, score_key REAL NOT NULL, duration_ms REAL NOT NULL, input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, cost REAL NOT NULL, disagreement REAL NOT NULL, failed_graders INTEGER NOT NULL,
    stale INTEGER NOT NULL, counts INTEGER NOT NULL, offset INTEGER NOT NULL, length INTEGER NOT NULL,
    PRIMARY KEY (case_no, column_no, repeat)
) WITHOUT ROWID;
"""

_FILTERED: Final = "outcome, column_no, failed_graders, stale, score_key, case_no"

#: One for each order of a list, and one of the stale trials, which are few. They are made after the first pass over a
#: file, because that is quicker.
ORDER_INDEXES: Final = {
    "trial_by_outcome": "(outcome, case_no, column_no, failed_graders, stale, score_key)",
    "trial_by_score": "(score_key, case_no, outcome, column_no, failed_graders, stale)",
    "trial_by_duration": f"(duration_ms, {_FILTERED})",
    "trial_by_cost": f"(cost, {_FILTERED})",
    "trial_by_disagreement": f"(disagreement, {_FILTERED})",
    "trial_stale": "(case_no) WHERE stale = 1",
}
