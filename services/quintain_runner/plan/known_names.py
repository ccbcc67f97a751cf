"""Checks the names by which options and thresholds call graders, fields and their values."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import islice

from quintain.config.file_errors import suggestion
from quintain.errors import ConfigError
from quintain_runner.plan.dataset import DatasetStats, read_cases
from quintain_runner.plan.scoring import tags_of
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.spec.prompts import case_field

#: Of so many cases an error looks for the nearest grader.
_MAX_LOOKED_AT = 10_000


def check_names(evaluation: Evaluation, dataset: DatasetStats) -> None:
    """Raise `ConfigError` for an unknown grader of ``--grader``, and for an unknown name of a threshold."""
    spec, place = evaluation.spec, f"{evaluation.path}: threshold"
    named = {"--grader": evaluation.only_graders, f"{place}.graders": spec.threshold.graders}
    if any(named.values()):
        # --grader may leave out graders of cases that a threshold names.
        with closing(read_cases(replace(dataset.source, only_graders=()))) as read:
            own = [grader.name for case in islice(read, _MAX_LOOKED_AT) for grader in case.graders]
        known = dict.fromkeys([*spec.column_names, *own, *dataset.own_graders.kinds])
        for option, names in named.items():
            if unknown := next((name for name in names if name not in known), None):
                raise ConfigError(f"{option}: unknown grader {unknown!r}{suggestion(unknown, known)}")
    for field, tags in spec.threshold.by.items():
        if field not in spec.by:
            raise ConfigError(f"{place}.by: {field!r} is no field of by{suggestion(field, spec.by or ['none'])}")
        found: dict[str, None] = {}
        with closing(read_cases(dataset.source)) as cases:
            for case in cases:
                found |= dict.fromkeys(tags_of(case_field(case, field)))
        if unknown := next((tag for tag in tags if tag not in found), None):
            raise ConfigError(f"{place}.by.{field}: no case has the value {unknown!r}{suggestion(unknown, found)}")
