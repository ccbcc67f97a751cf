"""The Python programs of README.md and the guides, run as printed before a gateway.

The others of docs/agents.md need superred: tests/superred/test_superreds_suite.py. That of docs/protocol/README.md
needs a broker: tests/integration/test_protocol_page.py. That of docs/tutorial.md is a part of it: test_tutorial.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from generate.checkout import REPOSITORY, tracked
from support.command_line import run_python
from support.evaluations import write_files
from support.pages import python_blocks
from support.running_gateway import RunningGateway

#: What a program needs around it that its page says in words: the imports, and a loop for what awaits.
IN_A_LOOP = """
import asyncio
import quintain

async def main():
{body}
    print(result.raw_text, len(items))

asyncio.run(main())
"""

#: A program whose module of graders is what the page shows.
GRADED = """
import block, quintain
result = quintain.evaluate([{{'id': 'a', 'question': 'Well?'}}], 'helpful', [block.{grader}])
print(result.mean_score, result.report.summary.total.calls)
"""

#: What a host does with a target: it sets the configuration, and runs it.
CONFIGURED = """
import asyncio, os, quintain.sync
from block import Panel
Panel.__abstractmethods__ = frozenset()  # the page shows the methods that matter there
panel = Panel()
panel.set_config(panel.config_specs[0].name, os.environ['QUINTAIN_SESSION_TOKEN'])
with quintain.sync.connect() as session:
    before = session.get_info().call_count
    asyncio.run(panel.run(print, None))
    print(session.get_info().call_count - before)
"""

#: The program around each block of a page; ``block`` is the module with its text.
PROGRAMS = {
    "README.md 1": "{text}",
    "docs/gateway.md 1": IN_A_LOOP,
    "docs/gateway.md 2": "import quintain\n{text}",
    "docs/gateway.md 3": "{text}",
    "docs/gateway.md 4": (
        "import anthropic, openai, os\n"
        "url, token = os.environ['QUINTAIN_GATEWAY_URL'], os.environ['QUINTAIN_SESSION_TOKEN']\n{text}\n"
        "print(type(client).__name__)\n"
    ),
    "docs/graders.md 1": GRADED.replace("{grader}", "polite"),
    "docs/graders.md 2": GRADED.replace("{grader}", "judged"),
    "docs/agents.md 4": CONFIGURED,
}
PRINTED = {
    "README.md 1": "Paris 1 of 50",
    "docs/gateway.md 1": "Paris 2",
    "docs/gateway.md 2": "Paris",
    "docs/gateway.md 3": "1.0 ['Paris']",
    "docs/gateway.md 4": "AsyncAnthropic",
    "docs/graders.md 1": "1.0 1",
    "docs/graders.md 2": "1.0 2",
    "docs/agents.md 4": "1",
}
WITH_SUPERRED = {f"docs/agents.md {number}" for number in (1, 2, 3, 5)}
WITH_BROKER = {"docs/agents.md 6", "docs/protocol/README.md 1"}

CONFIG = "targets: {claude: {provider: mock, response: Paris}, helpful: {provider: mock, response: 'yes, please'}}\n"
EVALUATION = "dataset: cases.jsonl\ntargets: [claude]\ngraders: [{name: same, builtin: exact}]\n"

#: Stands in for pandas, which is no dependency, as far as the program uses it.
PANDAS = "class DataFrame:\n    def __init__(self, rows, columns):\n        self.rows = list(rows)\n"


def test_every_program_of_every_page_is_run() -> None:
    shown = {
        f"{page.relative_to(REPOSITORY)} {number}"
        for page in tracked("README.md", "docs/*.md", "docs/protocol/*.md")
        for number in range(1, len(python_blocks(page)) + 1)
    }
    assert shown == {*PROGRAMS, *WITH_SUPERRED, *WITH_BROKER, "docs/tutorial.md 1"}


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_a_program_runs_as_it_is_printed(
    gateway: RunningGateway,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    page, _, number = name.partition(" ")
    text = python_blocks(REPOSITORY / page)[int(number) - 1]
    body = "".join(f"    {line}\n" for line in text.splitlines())
    write_files(tmp_path, cases=1, quintain_yaml=CONFIG, eval_yaml=EVALUATION, pandas_py=PANDAS, block_py=text)
    program = PROGRAMS[name].format(text=text, body=body)
    (tmp_path / "program.py").write_text(program)
    evaluator = gateway.open_session_shell("judge")
    env = evaluator.env
    if "evaluate(" in program:  # in this process, with the targets of the folder
        env = {
            key: value for key, value in env.items() if key not in {"QUINTAIN_GATEWAY_URL", "QUINTAIN_SESSION_TOKEN"}
        }
    if "import anthropic" in program:  # in this process, which has imported both clients, as that takes seconds
        monkeypatch.setattr(os, "environ", env)
        exec(program, {})
        assert capsys.readouterr().out.strip() == PRINTED[name]
        return
    ended = run_python(tmp_path / "program.py", env=env, folder=tmp_path)
    assert ended.stdout.strip() == PRINTED[name], ended
