"""The example evaluations: their files fit together."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.config.loader import load_config
from quintain_runner.plan.dataset import open_dataset
from quintain_runner.plan.trials import choose_targets
from quintain_runner.spec.evaluation import load_evaluation

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize("folder", ["capitals", "real-model"])
def test_an_examples_files_fit_together(folder: str) -> None:
    evaluation = load_evaluation(EXAMPLES / folder / "eval.yaml")
    configured = load_config(EXAMPLES / folder / "quintain.yaml").targets
    assert choose_targets(evaluation, list(configured))
    judges = {getattr(grader, "judge_target", None) for grader in evaluation.spec.graders}
    assert judges - {None} <= configured.keys()
    assert open_dataset(evaluation, EXAMPLES, {}).cases == 12
