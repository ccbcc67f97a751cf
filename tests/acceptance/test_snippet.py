"""``quintain snippet``: what it prints is what the tool takes, and the token stands in variables alone.

Inspect 0.3.285, promptfoo, lm-eval and DeepEval 4.3.1 were asked by these texts as they are (docs/gateway.md); their
installations are too heavy to be repeated here. OpenAI's and Anthropic's clients are: test_example_readmes.py.
"""

from __future__ import annotations

import ast
import json
import shlex

import pytest
import yaml

from quintain_cli.commands.snippet import SNIPPETS, GatewayConnection, SnippetTool
from support.command_line import CommandLine
from support.running_gateway import RunningGateway

GRADER_URL = GatewayConnection(url="https://gateway.example/a'b", token="qtn_ses_the-token", target="judge.v1_2-x")

PLAIN = GatewayConnection(url="http://127.0.0.1:8787", token="qtn_ses_x", target="judge")

#: What of each text says where the gateway is, and whom it asks.
EXPECTED_OUTPUT = {
    SnippetTool.OPENAI: ("/v1", 'model="{target}"'),
    SnippetTool.ANTHROPIC: ("", 'model="{target}"'),
    SnippetTool.INSPECT: ("/v1", "--model openai-api/quintain/{target}"),
    SnippetTool.PROMPTFOO: ("/v1", "id: openrouter:{target}"),
    SnippetTool.GARAK: ("/v1/", "--target_name {target}"),
    SnippetTool.LM_EVAL: ("/v1/chat/completions", "model={target},"),
    SnippetTool.DEEPEVAL: ("/v1", "LOCAL_MODEL_NAME={target}"),
    SnippetTool.AGENTV: ("", "AGENTV_PROVIDER_PROXY_URL="),
}


@pytest.fixture(scope="module")
def evaluator(gateway: RunningGateway) -> CommandLine:
    return gateway.open_session_shell("judge", 9)


def test_every_tool_has_a_text() -> None:
    assert set(SNIPPETS) == set(SnippetTool) == set(EXPECTED_OUTPUT)


def test_the_text_names_the_sessions_own_gateway_target_and_token(evaluator: CommandLine) -> None:
    url, token = evaluator.env["QUINTAIN_GATEWAY_URL"], evaluator.env["QUINTAIN_SESSION_TOKEN"]
    printed = evaluator.run("snippet", "openai")
    assert (
        printed.stdout
        == SNIPPETS[SnippetTool.OPENAI](GatewayConnection(url=url, token=token, target="judge")).to_text() + "\n"
    )
    assert "the remaining 9 calls can be spent" in printed.stderr
    assert token not in printed.stderr


@pytest.mark.parametrize("tool", SnippetTool)
def test_the_text_names_the_api_of_the_gateway_and_the_target(tool: SnippetTool) -> None:
    suffix, says = EXPECTED_OUTPUT[tool]
    text = SNIPPETS[tool](PLAIN).to_text()
    assert PLAIN.url + suffix in text
    assert says.format(target=PLAIN.target) in text


@pytest.mark.parametrize("tool", SnippetTool)
def test_the_token_stands_in_variables_alone_and_they_survive_a_shell(tool: SnippetTool) -> None:
    made = SNIPPETS[tool](GRADER_URL)
    assert GRADER_URL.token in made.variables.values()
    for text in (made.text, made.command, made.note):
        assert text is None or GRADER_URL.token not in text
    exported = [line.removeprefix("export ") for line in made.to_text().splitlines() if line.startswith("export ")]
    assert made.command is None or shlex.split(made.command)
    read = dict(one.split("=", 1) for line in exported for one in shlex.split(line))
    assert read == made.variables


def test_what_goes_into_a_file_is_of_its_language() -> None:
    made = {tool: SNIPPETS[tool](PLAIN).text for tool in SnippetTool}
    assert json.loads(made[SnippetTool.GARAK] or "") == {
        "openai": {"OpenAICompatible": {"uri": "http://127.0.0.1:8787/v1/"}}
    }
    assert yaml.safe_load(made[SnippetTool.PROMPTFOO] or "")["providers"][0]["config"] == {
        "apiBaseUrl": "http://127.0.0.1:8787/v1",
        "apiKeyEnvar": "OPENAI_API_KEY",
    }
    for tool in (SnippetTool.OPENAI, SnippetTool.ANTHROPIC):
        ast.parse(made[tool] or "")


def test_another_target_may_be_named(evaluator: CommandLine) -> None:
    assert 'model="echo"' in evaluator.run("snippet", "openai", "--target", "echo").stdout
    refused = evaluator.run("snippet", "openai", "--target", "nobody", code=1)
    assert refused.stderr == "error  Unknown target 'nobody'. Available: echo, judge, slow\n"
    assert refused.stdout == ""


def test_with_json_it_prints_the_parts(evaluator: CommandLine) -> None:
    told = evaluator.run("snippet", "lm-eval", "--json")
    assert told.stderr == ""
    assert told.json.keys() == {"tool", "target", "variables", "command", "note"}
    assert told.json["variables"] == {"OPENAI_API_KEY": evaluator.env["QUINTAIN_SESSION_TOKEN"]}


def test_what_is_missing_or_wrong_is_said(evaluator: CommandLine) -> None:
    refused = evaluator.run("snippet", "inspect", code=2, env={"QUINTAIN_GATEWAY_URL": ""})
    assert "QUINTAIN_GATEWAY_URL is not set" in refused.stderr
    refused = evaluator.run("snippet", "inspect", code=2, env={"QUINTAIN_SESSION_TOKEN": ""})
    assert "quintain session open" in refused.stderr
    assert "pytest" in evaluator.run("snippet", "pytest", code=2).stderr
    unknown = evaluator.run("snippet", "inspect", "--json", code=1, env={"QUINTAIN_SESSION_TOKEN": "not one"})
    assert unknown.json["code"] == "unauthorized"
