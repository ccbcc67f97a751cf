"""Calls of OpenAI's client, all at once: argument 1 is a JSON list of cases; prints an object by their names."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import openai


def deadline_header(seconds):
    """The deadline, which counts from now: the interpreter may have started long after the test."""
    return {} if seconds is None else {"x-quintain-deadline": str(int((time.time() + seconds) * 1000))}


def call(case):
    client = openai.OpenAI(**({"api_key": case["token"]} if "token" in case else {}))
    messages = [{"role": "user", "content": case["question"]}]
    said = client.chat.completions.create(
        model=case["model"], messages=messages, extra_headers=deadline_header(case["seconds"]), **case["parameters"]
    )
    if case["parameters"].get("stream"):
        return "".join(chunk.choices[0].delta.content or "" for chunk in said if chunk.choices)
    return said.choices[0].message.content


def outcome(case):
    try:
        return {"text": call(case)}
    except openai.APIError as error:
        return {"error": type(error).__name__, "status": getattr(error, "status_code", None), "code": error.code}


cases = json.loads(sys.argv[1])
with ThreadPoolExecutor(len(cases)) as threads:
    outcomes = list(threads.map(outcome, cases))
print(json.dumps({case["name"]: said for case, said in zip(cases, outcomes, strict=True)}))
