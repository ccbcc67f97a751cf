"""The fields that targets of every provider have, and what their models share."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Self

from pydantic import (
    AfterValidator,
    Field,
    FiniteFloat,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_serializer,
)

from quintain.config.nested_models import StrictModel, TargetPrice
from quintain.config.secrets import holds_reference
from quintain.contracts.invoke import Unsupported
from quintain.contracts.ledger import MAX_CONCURRENCY
from quintain.contracts.values import MAX_DEADLINE_SECONDS, TargetName

#: Validation context key: environment variables are not substituted yet.
UNRESOLVED_CONTEXT_KEY = "unresolved"


def is_unresolved(value: object, info: ValidationInfo) -> bool:
    """Return whether a value contains a reference whose variable is not substituted yet."""
    return bool(info.context and info.context.get(UNRESOLVED_CONTEXT_KEY)) and holds_reference(value)


def _within_longest_call(seconds: float) -> float:
    if seconds > MAX_DEADLINE_SECONDS:
        raise ValueError(f"a call lasts {MAX_DEADLINE_SECONDS:.0f} s (12 hours) at most")
    return seconds


#: A time limit of a call, in seconds.
TimeLimit = Annotated[
    FiniteFloat,
    Field(gt=0, json_schema_extra={"maximum": MAX_DEADLINE_SECONDS}),
    AfterValidator(_within_longest_call),
]


def _check_reference(name: str, info: ValidationInfo) -> str:
    if not is_unresolved(name, info) and not _REFERENCE.fullmatch(name):
        raise ValueError("write it as module:name")
    return name


_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")

#: What a Python module has, as module:name.
PythonReference = Annotated[str, AfterValidator(_check_reference)]


class WatchedTarget(StrictModel):
    """The field of a target whose provider shows whether it goes on."""

    idle_seconds: TimeLimit | None = None
    """A try ends, in doubt, when nothing has come for so long: no byte, no event. If absent, at its other limits."""


class TargetFields(StrictModel):
    """Fields of every target."""

    judge_target: TargetName | None = None
    """The default target of graders that judge this one. If absent, the target itself."""
    max_concurrency: Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)] = 64
    """The most calls in flight at once, over all workers."""
    worker_concurrency: Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)] | None = None
    """The most calls in flight at once in one worker, also its prefetch. If absent, max_concurrency."""
    quota: TargetName | None = None
    """The quota that it shares with other targets, by its name in quotas. If absent, that of its provider, URL, key and
    model."""
    timeout_seconds: TimeLimit | None = None
    """The limit of a call's tries at the provider, in seconds, and the deadline of its calls in `quintain run`, which
    is 600 s at least. If absent, the call's deadline."""
    max_tries: Annotated[int, Field(ge=1, le=10)] = 3
    """The most tries at the provider in one attempt."""
    price: TargetPrice | None = None
    """The price of its tokens. If absent, the provider's list price, if it is known."""
    unsupported: Unsupported = "refuse"
    """Whether calls with settings that the provider cannot honour are refused, or made without them."""
    depends_on: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Files, from the configuration's folder, whose bytes are part of the target's fingerprint."""
    replica_fields: list[str] = Field(default_factory=list)
    """Keys of this target that are no part of its fingerprint, because workers may differ in them."""

    _raw: dict[str, object] | None = PrivateAttr(default=None)
    #: Whether its provider answers a request, if only with an error.
    _answers_requests: ClassVar[bool] = False

    @field_validator("price")
    @classmethod
    def _check_failed_tries(cls, price: TargetPrice | None) -> TargetPrice | None:
        if price is not None and price.failed_tries is not None and not cls._answers_requests:
            raise ValueError("failed_tries: only models and HTTP endpoints have it; leave it out")
        return price

    def with_raw(self, raw: dict[str, object]) -> Self:
        """Return this target with the raw fields of the file, which its repr and dump show instead of the values."""
        self._raw = raw
        return self

    @property
    def is_agent(self) -> bool:
        """Whether it may act when it is asked: a call that may have reached it is not repeated by itself."""
        return False

    @property
    def keeps_conversation(self) -> bool:
        """Whether it is told what was said before, or remembers it: cases with turns need that."""
        return True

    @property
    def tells_steps(self) -> bool:
        """Whether its answers can say what it did for them."""
        return True

    @property
    def takes_images(self) -> bool:
        """Whether it is given the images of its requests; others refuse requests that have any."""
        return True

    def __repr_args__(self) -> list[tuple[str | None, object]]:
        return list(super().__repr_args__() if self._raw is None else self._raw.items())

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> dict[str, object]:
        return dict(dump(self) if self._raw is None else self._raw)

    @field_validator("replica_fields")
    @classmethod
    def _check_replica_fields(cls, keys: list[str]) -> list[str]:
        known = [name for name in cls.model_fields if name != "provider"]
        for key in keys:
            if key not in known:
                raise ValueError(f"this provider has no key {key!r}; known: {', '.join(known)}")
        return keys

    @field_validator("*", mode="wrap")
    @classmethod
    def _defer_unresolved(cls, value: object, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> object:
        # A value with an unresolved reference is validated by `Config.resolve`; until then the field has its default.
        try:
            return validate(value)
        except ValidationError:
            if not is_unresolved(value, info):
                raise
        field = cls.model_fields[str(info.field_name)]
        return value if field.is_required() else field.get_default(call_default_factory=True)
