"""A grader under AgentV's contract: it reads a case on stdin, asks a judge model, and prints its verdict.

Only the standard library is needed. The two variables come with every run, of `quintain run` and of AgentV alike.
"""

import json
import os
import sys
from urllib.request import Request, urlopen

QUESTION = """Question: {question}
Expected: {expected}
Answer: {answer}
Does the answer say the same as what is expected? Reply with yes or no."""


def ask(question: str) -> str:
    """Ask the target that judges; a call counts against this grader's budget."""
    body = json.dumps({"question": question}).encode()
    headers = {
        "Authorization": f"Bearer {os.environ['AGENTV_TARGET_PROXY_TOKEN']}",
        "Content-Type": "application/json",
    }
    with urlopen(Request(os.environ["AGENTV_TARGET_PROXY_URL"] + "/invoke", body, headers)) as response:
        return json.load(response)["rawText"]


case = json.load(sys.stdin)
said = ask(QUESTION.format(question=case["question"], expected=case["criteria"], answer=case["output"]))
right = said.strip().lower().startswith("yes")
print(json.dumps({"score": float(right), "pass": right, "reason": f"the judge said {said.strip()!r}"}))
