"""``quintain init --from`` with what promptfoo's and AgentV's own packages give a new user: it is read, and runs."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
import yaml

from quintain.settings import environment
from support.client_tools import ClientTool, cache_folder, search_path
from support.command_line import CommandLine, command_line
from support.model_server import ScriptedResponse, model_server
from support.model_wires import chat_answer
from support.running_gateway import run_program

pytestmark = pytest.mark.timeout(2000)


@pytest.mark.tool("promptfoo")
async def test_what_promptfoo_writes_for_a_new_user(tool: ClientTool, tmp_path: Path) -> None:
    with command_line(tmp_path) as shell:
        env = {
            **shell.env,
            "PATH": search_path(tool, environment()),
            "PROMPTFOO_CONFIG_DIR": str(tmp_path / "promptfoo"),
            "PROMPTFOO_DISABLE_TELEMETRY": "1",
            "PROMPTFOO_DISABLE_UPDATE": "1",
        }
        written = run_program(["promptfoo", "init", "--no-interactive"], env, tmp_path)
        assert written.code == 0, written
        imported = shell.run("init", "new", "--from", "promptfooconfig.yaml", "--json").json
        assert isinstance(imported["leftOut"], list)
        # JavaScript assertions are another interpreter's.
        assert {(note["place"], note["line"] > 0) for note in imported["leftOut"]} == {("tests[1].assert[1]", True)}
        folder = shell.folder / "new"
        config = yaml.safe_load((folder / "quintain.yaml").read_text())
        assert {one["provider"] for one in config["targets"].values()} == {"openai"}
        async with model_server() as provider:
            provider.set_responses(ScriptedResponse(body=chat_answer("yes, avocado")))
            for target in config["targets"].values():
                target["base_url"] = f"{provider.url}/v1"
            (folder / "quintain.yaml").write_text(yaml.safe_dump(config))
            inside = CommandLine(folder, {**shell.env, "OPENAI_API_KEY": "a key"})
            ran = await asyncio.to_thread(inside.run, "run", "eval.yaml", "--json")
    totals = ran.json["totals"]
    assert (totals["graded"], totals["errors"], totals["meanScore"]) == (2 * 2 * 3, 0, 1.0)


@pytest.mark.tool("agentv")
async def test_the_first_evaluation_in_agentvs_own_skill(tool: ClientTool, tmp_path: Path) -> None:
    package = tool.folder(cache_folder(environment())) / tool.modules / "agentv"
    skill = (package / "dist/skills/agentv-eval-writer/SKILL.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```$", skill, re.DOTALL | re.MULTILINE)
    first = next(block for block in blocks if block.startswith("description: Example eval"))
    (tmp_path / "greeting.eval.yaml").write_text(first)
    (tmp_path / ".agentv").mkdir()
    (tmp_path / ".agentv" / "targets.yaml").write_text((package / "dist/templates/.agentv/targets.yaml").read_text())
    with command_line(tmp_path) as shell:
        imported = shell.run("init", "new", "--from", "greeting.eval.yaml", "--json").json
        notes = imported["leftOut"]
        assert isinstance(notes, list)
        # Its default target is Azure's: a mock stands in, and the note says so.
        assert {note["place"] for note in notes} >= {"", "targets[0]"}
        inside = CommandLine(shell.folder / "new", shell.env)
        totals = inside.run("run", "eval.yaml", "--target", "mock", "--json").json["totals"]
    assert (totals["graded"], totals["errors"]) == (1, 0)
    row = json.loads((tmp_path / "new" / "runs" / "eval" / "results.jsonl").read_text())
    assert [check["text"] for check in row["graders"]["assertions"]["checks"]] == [
        "judge: Greeting is friendly and warm",
        "judge: Offers to help",
    ]
