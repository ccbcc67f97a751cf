"""Generated edits: each run asks exactly what nobody was asked before, as an oracle says that knows no address."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from quintain.config.loader import load_configuration
from quintain.contracts.invoke import InvokeRequest, content_text
from quintain.settings import read_settings
from support.evaluations import EvaluationFolder, Json, write_evaluation
from support.fake_client import FakeClient

#: How many edits each sequence has.
EDITS = 10

QUESTIONS = ("one", "two", "three")


class Edited:
    """An evaluation that is changed step by step, and all that was answered so far, as the oracle remembers it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.draw, self.numbers = folder, random.Random(seed), itertools.count()
        self.cases: list[Json] = [{"id": f"c{n}", "question": QUESTIONS[n % 2], "expected": "e"} for n in range(3)]
        self.repeats, self.weight, self.instructions, self.targets = 2, 1.0, "Is it so?", ["alpha", "beta"]
        self.versions = {"alpha": 0, "beta": 1, "judge": 0}
        #: The answers by who gave them, what was said before, and which of the equal trials it was.
        self.known: dict[object, str] = {}

    def edit(self) -> str:
        """Change one thing; returns what."""
        draw, case = self.draw, self.draw.choice(self.cases)
        edits = {
            "a case more": lambda: self.cases.append({**case, "id": f"n{next(self.numbers)}"}),
            "a case less": lambda: len(self.cases) > 1 and self.cases.remove(case),
            "another order": lambda: draw.shuffle(self.cases),
            "another name": lambda: case.update(id=f"n{next(self.numbers)}"),
            "another question": lambda: case.update(question=draw.choice(QUESTIONS)),
            "another expectation": lambda: case.update(expected=draw.choice("ef")),
            "another turn": lambda: case.update(turns=[draw.choice(("and?", "so?"))]),
            "no turn": lambda: case.pop("turns", None),
            "a field that nobody sees": lambda: case.update(tag=draw.random()),
            "repeats": lambda: setattr(self, "repeats", draw.randint(1, 3)),
            "weight": lambda: setattr(self, "weight", draw.random()),
            "judge's instructions": lambda: setattr(self, "instructions", draw.choice(("Is it so?", "Is it?"))),
            "target": lambda: self.versions.update({draw.choice(self.targets): draw.randint(0, 2)}),
            "judge": lambda: self.versions.update(judge=draw.randint(0, 1)),
            "targets": lambda: setattr(self, "targets", draw.choice((["alpha"], ["beta"], ["alpha", "beta"]))),
        }
        name = draw.choice(sorted(edits))
        edits[name]()
        return name

    async def run(self) -> tuple[EvaluationFolder, list[InvokeRequest]]:
        """Run it in a fresh folder; returns what was asked."""

        async def reply(request: InvokeRequest) -> str:
            return '{"pass": true}' if request.target == "judge" else f"answer {next(self.numbers)}"

        place = self.folder / f"run-{next(self.numbers)}"
        place.mkdir()
        judged: Json = {
            "name": "judged",
            "builtin": "llm-judge",
            "judge_target": "judge",
            "instructions": self.instructions,
            "show": ["output", "expected"],
            "weight": self.weight,
        }
        write_evaluation(place, self.cases, [judged], targets=self.targets, repeats=self.repeats)
        (place / "quintain.yaml").write_text(json.dumps({"targets": {n: {"provider": "mock"} for n in self.versions}}))
        client = FakeClient(reply, targets=(*self.targets, "judge"))
        client.fingerprints = {name: f"{version}" for name, version in self.versions.items()}
        folder = EvaluationFolder(place, client, targets=tuple(self.targets))
        run = folder.settings(cache=str(self.folder / "cache.sqlite3"))
        config = load_configuration(read_settings({}), place / "quintain.yaml", start_folder=place)
        await folder.run(replace(run, config=config))
        return folder, client.requests

    def expected(self, folder: EvaluationFolder) -> Counter[str]:
        """What the run had to ask, by whom; and that its answers are those that were given before."""
        asked, rows = Counter[str](), {(row.case_id, row.target, row.repeat): row for row in folder.rows()}
        equal = Counter[object]()
        for case in self.cases:
            equal[case["question"], "turns" in case] += 1
            which = equal[case["question"], "turns" in case]
            for target, repeat in itertools.product(self.targets, range(1, self.repeats + 1)):
                row = rows[str(case["id"]), target, repeat]
                turns = row.turns() or [None]
                answers = [row.output if turn is None else turn.output for turn in turns]
                said: list[object] = [case["question"]]
                # Of two targets that are configured alike, the second has answers of its own.
                is_twin = target == "beta" and self._are_alike()
                for place, answer in enumerate(answers):
                    if place:
                        said.append(case["turns"][place - 1])
                    key = (self.versions[target], is_twin, "turns" in case, *said, which, repeat)
                    asked[target] += key not in self.known
                    assert self.known.setdefault(key, str(answer)) == answer
                    said.append(answer)
                shown = (self.instructions, answers[-1], case["expected"], "turns" in case, case["question"])
                key = ("judge", self.versions["judge"], *shown, target, which, repeat)
                asked["judge"] += key not in self.known
                self.known[key] = "passed"
        return +asked

    def _are_alike(self) -> bool:
        return self.versions["alpha"] == self.versions["beta"] and len(self.targets) > 1


@pytest.mark.parametrize("seed", range(2))
async def test_each_run_asks_exactly_what_nobody_was_asked_before(tmp_path: Path, seed: int) -> None:
    edited, edits = Edited(tmp_path, seed), ["the first run"]
    for _ in range(EDITS):
        folder, requests = await edited.run()
        asked = Counter(str(request.target) for request in requests)
        assert asked == edited.expected(folder), [*edits, [content_text(one.question or "") for one in requests]]
        edits.append(edited.edit())


async def test_a_run_that_ends_at_random_moments_is_answered_nothing_twice(tmp_path: Path) -> None:
    draw, answered = random.Random(1), Counter[str]()
    cases: list[Json] = [{"id": f"c{number}", "question": f"q{number}"} for number in range(30)]
    judged: Json = {"name": "judged", "builtin": "llm-judge", "judge_target": "judge", "instructions": "Is it so?"}
    write_evaluation(tmp_path, cases, [judged])
    folder = EvaluationFolder(tmp_path, FakeClient(targets=("bot", "judge")), concurrency=4)

    async def run(most: int) -> None:
        async def reply(request: InvokeRequest) -> str:
            await asyncio.sleep(0)
            if answered.total() >= most:
                raise RuntimeError("the run ends")
            answered[content_text(request.question or "")] += 1
            return '{"pass": true}' if request.target == "judge" else f"answer to {request.question}"

        # Another client is another ledger, which replays nothing.
        folder.client = FakeClient(reply, targets=("bot", "judge"))
        await folder.run()

    for _ in range(20):
        with pytest.raises(RuntimeError, match="the run ends"):
            await run(answered.total() + draw.randint(0, 4))
    await run(1000)
    assert (len(answered), max(answered.values())) == (60, 1)
    assert sorted(str(row.output) for row in folder.rows()) == sorted(f"answer to q{number}" for number in range(30))
