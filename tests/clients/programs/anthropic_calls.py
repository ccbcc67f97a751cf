"""Calls of Anthropic's client, all at once: argument 1 is a JSON list of cases; prints an object by their names."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import anthropic


def deadline_header(seconds):
    """The deadline, which counts from now: the interpreter may have started long after the test."""
    return {} if seconds is None else {"x-quintain-deadline": str(int((time.time() + seconds) * 1000))}


def call(case):
    client = anthropic.Anthropic(**({"api_key": case["token"]} if "token" in case else {}))
    parameters = {"max_tokens": 50, **case["parameters"]}
    # The client has no arguments for these: a program that needs them sends them so.
    extra = {name: parameters.pop(name) for name in ("temperature", "top_p", "top_k") if name in parameters}
    parameters |= {"extra_body": extra, "extra_headers": deadline_header(case["seconds"])}
    messages = [{"role": "user", "content": case["question"]}]
    if parameters.pop("stream", False):
        with client.messages.stream(model=case["model"], messages=messages, **parameters) as stream:
            return stream.get_final_text()
    return client.messages.create(model=case["model"], messages=messages, **parameters).content[0].text


def outcome(case):
    try:
        return {"text": call(case)}
    except anthropic.APIError as error:
        told = error.body.get("error", {}) if isinstance(error.body, dict) else {}
        status = getattr(error, "status_code", None)
        return {"error": type(error).__name__, "status": status, "code": told.get("code")}


cases = json.loads(sys.argv[1])
with ThreadPoolExecutor(len(cases)) as threads:
    outcomes = list(threads.map(outcome, cases))
print(json.dumps({case["name"]: said for case, said in zip(cases, outcomes, strict=True)}))
