"""Reads an evaluation of promptfoo, or of AgentV 5, which has the same shape in other spellings, as one of ours.

What has no counterpart is noted with its line, never dropped in silence. Source of the format: promptfoo 0.123.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from quintain.errors import ConfigError
from quintain.runtime.text_files import read_text
from quintain_cli.init.assertions import Judged, add_graders, divided
from quintain_cli.init.carried import (
    FILE_PREFIX,
    At,
    CarriedCase,
    CarriedEvaluation,
    Found,
    JsonDict,
    mapping,
    read_document,
)
from quintain_cli.init.prompts import add_prompts, resolved
from quintain_cli.init.targets import add_providers

_KNOWN = (
    "$schema",
    "description",
    "name",
    "prompts",
    "providers",
    "targets",
    "tests",
    "defaultTest",
    "evaluateOptions",
)
_KNOWN_OF_TEST = ("id", "description", "vars", "assert", "metadata", "threshold", "options")
_KNOWN_OPTIONS = ("provider", "disableDefaultAsserts", "disableVarExpansion")

#: What changes what a test's assertions are applied to, or how they make its score.
_CHANGING = ("transform", "postprocess", "assertScoringFunction")

#: promptfoo's kinds of assertions: a cell that begins with none of them is a text that the answer equals.
_KINDS = (
    "agent-rubric|answer-relevance|bleu|classifier|i?contains(?:-all|-any)?|(?:contains|is)-(?:html|json|sql|xml)|"
    "context-faithfulness|context-recall|context-relevance|conversation-relevance|cost|equals|factuality|finish-reason|"
    "g-eval|gleu|guardrails|is-refusal|is-valid-function-call|is-valid-openai-(?:function|tools)-call|javascript|"
    "latency|levenshtein|llm-rubric|pi|meteor|model-graded-(?:closedqa|factuality)|moderation|perplexity(?:-score)?|"
    "python|regex|rouge-n|ruby|similar(?::cosine|:dot|:euclidean)?|starts-with|tool-call-f1|skill-used|"
    "trajectory:(?:goal-success|tool-args-match|step-count|tool-sequence|tool-used)|"
    "trace-(?:error-spans|span-count|span-duration)|search-rubric|webhook|word-count"
)
_CELL = re.compile(rf"(not-)?({_KINDS})(?:\((\d+(?:\.\d+)?)\))?(?::(.*))?", re.DOTALL | re.ASCII)
_PROGRAM = re.compile(r"(?:javascript|fn|eval|(python)):|file://\S*\.(?:(py)|[cm]?[jt]s)(?::|$)", re.DOTALL)

#: The threshold of a cell that gives none, by its kind.
_THRESHOLDS = {"similar": 0.8, "latency": 0.75, "cost": 0.75, "levenshtein": 0.75}


def read_promptfoo(carried: CarriedEvaluation, body: JsonDict, at: At) -> None:
    """Read an evaluation. Raises `ConfigError` for a file that it names and that cannot be read."""
    carried.leave_out_unknown(body, at, [carried.key(name) for name in _KNOWN])
    # As promptfoo does: without prompts, the variable prompt is asked.
    add_prompts(carried, "{{ prompt }}" if body.get("prompts") is None else body["prompts"], at.under("prompts"))
    key = "providers" if "providers" in body else "targets"
    if {"providers", "targets"} <= body.keys():
        carried.leave_out(at.under("targets"), "targets beside its providers")
    add_providers(carried, body.get(key), at.under(key))
    key = carried.key("defaultTest")
    default: Found = (body.get(key), at.under(key))
    if isinstance(default[0], str):
        found = carried.items(*default)
        if not found:
            raise ConfigError(f"{carried.source}: {key}: {default[0]} cannot be read, and every test has it")
        default = found[0]
    _leave_out_of_test(carried, *default)
    # As promptfoo does: without tests the prompts are asked as they are.
    for test, where in _tests(carried, body.get("tests") or ({} if "scenarios" not in body else []), at.under("tests")):
        _add_test(carried, test, where, default)
    key = carried.key("evaluateOptions")
    repeat = mapping(body.get(key)).get("repeat")
    is_count = isinstance(repeat, int) and repeat > 0
    carried.leave_out_unknown(mapping(body.get(key)), at.under(key), ("repeat",) if is_count else ())
    carried.repeats = repeat if is_count else None


def _leave_out_of_test(carried: CarriedEvaluation, test: object, at: At) -> None:
    carried.leave_out_unknown(mapping(test), at, (*_KNOWN_OF_TEST, *_CHANGING))
    options = mapping(mapping(test).get("options"))
    carried.leave_out_unknown(options, at.under("options"), (*map(carried.key, _KNOWN_OPTIONS), *_CHANGING))


def _tests(carried: CarriedEvaluation, listed: object, at: At) -> Iterator[tuple[JsonDict, At]]:
    """Iterate over the tests: of the evaluation itself, or of files that it names."""
    for one, place in at.items(listed):
        path = one.get("path", one) if isinstance(one, dict) else one
        found: list[Found] = [(path, place)]
        if isinstance(path, str):
            carried.leave_out_unknown(mapping(one), place, ("path",))
            found = carried.items(path, place)
        for test, where in found:
            if where.file.suffix == ".csv":
                yield _test_of_row(carried, test, where), where
            elif isinstance(test, dict) and (not test or test.keys() & set(_KNOWN_OF_TEST)):
                _leave_out_of_test(carried, test, where)
                yield test, where
            else:
                carried.leave_out(where, "no test: it has neither variables nor assertions")


def _test_of_row(carried: CarriedEvaluation, row: dict[str, str], at: At) -> JsonDict:
    """The test of a row of CSV, with promptfoo's columns ``__expected``, ``__metadata`` and others."""
    asserted: dict[str, JsonDict] = {}
    test: JsonDict = {"assert": asserted, "description": row.get("__description") or None, "vars": {}, "metadata": {}}
    for name, cell in row.items():
        if name.startswith("__expected") and cell.strip():
            asserted[name] = assertion_of(cell.strip())
        elif name.startswith("__metadata:") and not name.endswith("[]"):
            test["metadata"] |= {name.removeprefix("__metadata:"): cell} if cell.strip() else {}
        elif name == "__threshold" and ((number := _number(cell)) is not None or not cell.strip()):
            test["threshold"] = number
        elif name.startswith(("__prefix", "__suffix", "__providerOutput", "__metadata", "__config:", "__threshold")):
            if cell.strip():
                reason = "no number" if name == "__threshold" else "a column without a counterpart"
                carried.leave_out(at.under(name), reason)
        elif not name.startswith(("__expected", "__description", "__metric")):
            test["vars"][name] = cell
    if row.get("__metric"):
        test["assert"] = {name: {**one, "metric": row["__metric"]} for name, one in asserted.items()}
    return test


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", text, re.ASCII) else None


def assertion_of(expected: str) -> JsonDict:
    """The assertion that a cell writes, such as ``contains: Paris``; any other text is what the answer equals.

    Example::

        assertion_of("similar(0.9): hello")  # {"type": "similar", "value": "hello", "threshold": 0.9}
        assertion_of("answer: 42")  # {"type": "equals", "value": "answer: 42"}
    """
    if (program := _PROGRAM.match(expected)) is not None:
        return {"type": "python" if program[1] or program[2] else "javascript"}
    if expected.startswith(("grade:", "llm-rubric:")):
        return {"type": "llm-rubric", "value": expected.partition(":")[2]}
    if (found := _CELL.fullmatch(expected)) is None:
        return {"type": "equals", "value": expected}
    negated, kind, threshold, text = found.groups()
    limit = float(threshold) if threshold else _THRESHOLDS.get(kind)
    value: Any = text if text is None or kind.endswith("-json") else text.strip()
    if text and kind.endswith(("-any", "-all")):
        with suppress(ValueError):
            value = divided(text)
    return {"type": f"{negated or ''}{kind}", "value": value, **({} if limit is None else {"threshold": limit})}


def _add_test(carried: CarriedEvaluation, test: JsonDict, at: At, shared: Found) -> None:
    """Add the cases of a test: one, or one for each of the values that a variable lists."""
    test, default = carried.plain(test), carried.plain(mapping(shared[0]))
    own = mapping(test.get("options"))
    options = {**mapping(default.get("options")), **own}
    of_all = [] if own.get(carried.key("disableDefaultAsserts")) is True else default.get("assert")
    listed = test.get("assert")
    is_row = at.file.suffix == ".csv"
    listed = (
        [(one, at.under(name)) for name, one in mapping(listed).items()] if is_row else at.under("assert").items(listed)
    )
    asserted = [*shared[1].under("assert").items(of_all), *listed]
    changing = [key for key in _CHANGING if key in {**default, **test, **options}]
    if changing and asserted:
        carried.leave_out(at, f"its assertions, as its {changing[0]} changes what they say")
    expands = not options.get(carried.key("disableVarExpansion"))
    given = {
        name: values
        for vars_of, place in ((default.get("vars"), shared[1]), (test.get("vars"), at))
        for name, values in _variables(carried, vars_of, place.under("vars"), expands=expands).items()
    }
    threshold = test.get("threshold") if test.get("threshold") is not None else default.get("threshold")
    for values in itertools.product(*given.values()):
        try:
            variables = resolved(dict(zip(given, values, strict=True)), within=carried.is_agentv)
        except ValueError as error:
            carried.leave_out(at.under("vars"), f"the test, for {error}")
            return
        metadata = {**mapping(default.get("metadata")), **mapping(test.get("metadata"))}
        case = CarriedCase(at=at, id=test.get("id", test.get("description")), variables=variables, metadata=metadata)
        add_graders(carried, [] if changing else asserted, case, Judged(variables, options.get("provider")))
        case.lost += changing if asserted else []
        programs = [grader for grader in case.graders if "command" in grader]
        if len(case.graders) > len(programs) and threshold is not None:
            graders = [grader for grader in case.graders if grader not in programs]
            case.graders = [{"name": "assertions", "all": graders, "threshold": threshold}, *programs]
        carried.cases.append(case)


def _variables(carried: CarriedEvaluation, listed: object, at: At, *, expands: bool) -> dict[str, list[Any]]:
    """The values of each variable, those of files read; no value, with a note, of one that cannot be read."""
    if isinstance(listed, str | list):
        carried.leave_out(at, "variables in files of their own, and the test with them")
        return {"": []}
    found: dict[str, list[Any]] = {}
    for name, value in mapping(listed).items():
        is_many = isinstance(value, list) and expands and value and isinstance(value[0], str)
        each = [_contents(carried, one, at.under(name)) for one in (value if is_many else [value])]
        found[str(name)] = [one for values in each for one in values]
    return found


def _contents(carried: CarriedEvaluation, value: Any, at: At) -> list[Any]:
    """A value, or the texts of the files that it names, as promptfoo reads them."""
    if not isinstance(value, str) or not value.startswith((FILE_PREFIX, "package:")):
        return [value]
    return [_content(path) for path in carried.files(value, at) or []]


def _content(path: Path) -> str:
    if path.suffix in (".yaml", ".yml"):
        return json.dumps(read_document(path)[0], ensure_ascii=False, separators=(",", ":"), default=str)
    return read_text(path).strip()
