"""lm-eval: ``quintain snippet lm-eval`` with a task of its own, and a log-likelihood task as its note says."""

from __future__ import annotations

import json

import pytest

from clients.tool_session import ToolSession, assert_sent
from support.client_tools import ClientTool

pytestmark = [pytest.mark.tool("lm-eval"), pytest.mark.timeout(2000)]

CASES = [{"question": "Which city is it", "answer": "Paris"}, {"question": "Which one is it", "answer": "Paris"}]
GENERATED = """
task: generated
dataset_path: json
dataset_kwargs: {data_files: {test: cases.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["END"], max_gen_toks: 50}
metric_list: [{metric: exact_match}]
"""
CHOSEN = """
task: chosen
dataset_path: json
dataset_kwargs: {data_files: {test: cases.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: ["Paris", "Rome"]
doc_to_target: 0
metric_list: [{metric: acc}]
"""
#: A tokenizer that needs no download: a number for each word. The model takes what has fewer digits as likelier.
TOKENIZER = """
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
words = {"[UNK]": 0, "[EOS]": 1, "Paris": 2, "Rome": 12, "Which": 3, "city": 4, "one": 5, "is": 6, "it": 7}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="[EOS]", unk_token="[UNK]").save_pretrained("tokenizer")
"""
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


async def test_a_task_of_generated_answers(session: ToolSession, tool: ClientTool) -> None:
    printed = await session.print_snippet("lm-eval")
    write_task(session, "generated", GENERATED)
    # gsm8k would be downloaded.
    command = printed.command.replace("gsm8k", "generated") + " --gen_kwargs temperature=0.3,top_p=0.2"
    ended = await session.run(
        f"{printed.exports}\n{command} --include_path . --output_path out", tool, seconds=600, **OFFLINE
    )
    assert ended.code == 0, ended
    assert result_of(session, "generated")["exact_match,none"] == 1
    assert len(session.bodies) == len(CASES)
    for body in session.bodies:
        assert_sent(body, {"temperature": 0.3, "top_p": 0.2, "seed": 1234})
        assert "END" in body["stop"]
        assert 50 in (body.get("max_tokens"), body.get("max_completion_tokens"))


async def test_a_task_of_log_likelihoods(session: ToolSession, tool: ClientTool) -> None:
    printed = await session.print_snippet("lm-eval")
    write_task(session, "chosen", CHOSEN)
    session.write("tokenizer.py", TOKENIZER)
    model = f"model=judge,base_url={session.fleet.gateway_url}/v1/completions,tokenizer=tokenizer,max_length=100"
    command = (
        f"lm_eval --model local-completions --model_args {model} --tasks chosen --include_path . --output_path out"
    )
    ended = await session.run(f"{printed.exports}\npython tokenizer.py\n{command}", tool, seconds=600, **OFFLINE)
    assert ended.code == 0, ended
    assert result_of(session, "chosen")["acc,none"] == 1
    assert {request.path for request in session.provider.requests} == {"/v1/completions"}
    assert len(session.bodies) == 2 * len(CASES)
    for body in session.bodies:
        assert_sent(body, {"echo": True, "logprobs": 1, "temperature": 0})


def write_task(session: ToolSession, name: str, text: str) -> None:
    session.write(f"{name}.yaml", text)
    session.write("cases.jsonl", "".join(f"{json.dumps(case)}\n" for case in CASES))


def result_of(session: ToolSession, task: str) -> dict[str, object]:
    (path,) = (session.folder / "out").rglob("results*.json")
    results: dict[str, object] = json.loads(path.read_text())["results"][task]
    return results
