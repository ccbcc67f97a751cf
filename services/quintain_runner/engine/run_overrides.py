"""Sorts the values that a command sets by the file whose they are: the evaluation, or the configuration. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quintain.config.file_errors import suggestion
from quintain.config.loader import TOP_LEVEL
from quintain.config.overrides import Override, parse_overrides
from quintain.errors import ConfigError
from quintain_runner.spec.evaluation import EvaluationSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverrides:
    """The values that a command sets in place of those of its two files."""

    evaluation: tuple[Override, ...] = ()
    config: tuple[Override, ...] = ()

    def with_model(self, model: str, targets: Sequence[str]) -> RunOverrides:
        """Also this model in place of the target's. Raises `ConfigError` if there are several, or it is set already."""
        option = "--model"
        if len(targets) != 1:
            raise ConfigError(
                f"{option}: there are {len(targets)} targets ({', '.join(targets)}); name one by --target"
            )
        key = f"targets.{targets[0]}.model"
        if (other := next((one for one in self.config if one.key == key), None)) is not None:
            raise ConfigError(f"{option}: {other.option} sets the same key; leave one out")
        return RunOverrides(evaluation=self.evaluation, config=(*self.config, Override(option, key, model, model)))


def sort_overrides(texts: Iterable[str]) -> RunOverrides:
    """Read ``KEY=VALUE`` texts; ``targets.NAME`` is of the configuration. Raises `ConfigError` for an unknown key."""
    evaluation, config = list[Override](), list[Override]()
    for override in parse_overrides(texts):
        first = override.key.partition(".")[0]
        if first in EvaluationSpec.model_fields and (first not in TOP_LEVEL or override.key == first):
            evaluation.append(override)
        elif first in TOP_LEVEL:
            config.append(override)
        else:
            known = dict.fromkeys((*EvaluationSpec.model_fields, *TOP_LEVEL))
            raise ConfigError(f"{override.option}: unknown key {first!r}{suggestion(first, known)}")
    return RunOverrides(evaluation=tuple(evaluation), config=tuple(config))
