"""The Python programs of README.md, docs/clients.md and docs/gateway.md, run as printed before a gateway."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from support.evaluations import write_files
from support.running_gateway import RunningGateway, run_program

REPOSITORY = Path(__file__).parents[2]

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)

#: What a program needs around it that its page says in words: the imports, and a loop for what awaits.
IN_A_LOOP = """
import asyncio
import quintain

async def main():
{body}
    print(result.raw_text, len(items))

asyncio.run(main())
"""
BEFORE = {
    "README.md": "{text}",
    "docs/clients.md 1": IN_A_LOOP,
    "docs/clients.md 2": "import quintain\n{text}",
    "docs/clients.md 3": "{text}",
    "docs/gateway.md": (
        "import anthropic, openai, os\n"
        "url, token = os.environ['QUINTAIN_GATEWAY_URL'], os.environ['QUINTAIN_SESSION_TOKEN']\n{text}\n"
        "print(type(client).__name__)\n"
    ),
}
PRINTED = {
    "README.md": "Paris 1 of 50",
    "docs/clients.md 1": "Paris 2",
    "docs/clients.md 2": "Paris",
    "docs/clients.md 3": "1.0 ['Paris']",
    "docs/gateway.md": "AsyncAnthropic",
}

CONFIG = "targets: {claude: {provider: mock, response: Paris}}\n"
EVALUATION = "dataset: cases.jsonl\ntargets: [claude]\ngraders: [{name: same, builtin: exact}]\n"

#: Stands in for pandas, which is no dependency, as far as the program uses it.
PANDAS = "class DataFrame:\n    def __init__(self, rows, columns):\n        self.rows = list(rows)\n"


def blocks(page: str) -> list[str]:
    return _BLOCK.findall((REPOSITORY / page).read_text())


def test_every_program_of_these_pages_is_run() -> None:
    pages = {name.partition(" ")[0] for name in BEFORE}
    assert len(BEFORE) == sum(len(blocks(page)) for page in pages)


@pytest.mark.parametrize("name", list(BEFORE))
def test_a_program_runs_as_it_is_printed(gateway: RunningGateway, tmp_path: Path, name: str) -> None:
    page, _, number = name.partition(" ")
    text = blocks(page)[int(number or 1) - 1]
    body = "".join(f"    {line}\n" for line in text.splitlines())
    write_files(tmp_path, cases=1, quintain_yaml=CONFIG, eval_yaml=EVALUATION, pandas_py=PANDAS)
    (tmp_path / "program.py").write_text(BEFORE[name].format(text=text, body=body))
    evaluator = gateway.open_session_shell("judge")
    env = evaluator.env
    if "evaluate(" in text:  # in this process, with the targets of the folder
        env = {
            key: value for key, value in env.items() if key not in {"QUINTAIN_GATEWAY_URL", "QUINTAIN_SESSION_TOKEN"}
        }
    ended = run_program([sys.executable, "program.py"], env, tmp_path)
    assert (ended.code, ended.stdout.strip()) == (0, PRINTED[name]), ended
