"""What is read for waiting admits takes few different statements: a connection of PostgreSQL keeps each that it ran."""

from __future__ import annotations

from quintain_metadata.admission import MAX_DECISIONS
from quintain_metadata.store import Moment, Statement
from quintain_metadata.waiting import read_capacity


def test_the_attempts_of_a_target_are_read_with_few_different_statements() -> None:
    statements = set[str]()
    for count in range(1, MAX_DECISIONS + 1):
        attempts = {f"attempt {number}": ("session", f"request {number}") for number in range(count)}
        program = read_capacity(Moment(now=0), "target", attempts)
        next(program)
        step = program.send([("target", MAX_DECISIONS)])
        assert isinstance(step, Statement)
        assert set(attempts) < set(step.parameters)
        statements.add(step.sql)
    assert len(statements) <= 4
