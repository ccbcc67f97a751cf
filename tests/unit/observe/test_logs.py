"""Lines of a log: which call they are about, and what hostile ids make of them."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import subprocess
import sys

import pytest

from quintain.errors import ConfigError
from quintain.observe import logs
from quintain.observe.semconv import SpanStart
from quintain.observe.spans import span
from quintain.settings import read_log_settings

THEIRS = f"00-{'ab' * 16}-{'cd' * 8}-01"

#: A line's end, a terminal's escape, and what Unicode has of both.
HOSTILE = 'x\n2026-01-01T00:00:00.000Z ERROR forged\r\x1b[31m\u2028\u202e"}'


def lines(form: logging.Formatter, write: object) -> list[str]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(form)
    log = logging.Logger("quintain_test")
    log.addHandler(handler)
    assert callable(write)
    write(log)
    return stream.getvalue().splitlines()


def log_in_call(log: logging.Logger) -> None:
    with span(SpanStart("work"), parent=THEIRS), logs.log_context(request_id="r-1", session_id="s-1", run_id="run-1"):
        with logs.log_context(target="echo", request_id=None):
            log.warning("It happened %d times", 3)
        log.info("after")


def test_a_line_of_json_says_which_call_it_is_about() -> None:
    first, second = (json.loads(line) for line in lines(logs.JsonFormatter(), log_in_call))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {
        "level": "warning",
        "logger": "quintain_test",
        "message": "It happened 3 times",
        "requestId": "r-1",
        "sessionId": "s-1",
        "runId": "run-1",
        "target": "echo",
        "traceId": "ab" * 16,
    }
    assert "target" not in second


def test_a_line_of_text_says_it_briefly() -> None:
    first, _ = lines(logs.TextFormatter(), log_in_call)
    words = f"WARNING quintain_test It happened 3 times [call=r-1 session=s-1 run=run-1 target=echo trace={'ab' * 16}]"
    assert first.endswith(words)


@pytest.mark.parametrize("form", [logs.TextFormatter(), logs.JsonFormatter()], ids=["text", "json"])
def test_hostile_text_forges_no_line_and_steers_no_terminal(form: logging.Formatter) -> None:
    def write(log: logging.Logger) -> None:
        with logs.log_context(request_id=HOSTILE, session_id="s" * 10_000):
            log.error("about %s", HOSTILE)

    [line] = lines(form, write)
    assert line.isprintable()
    assert len(line) < 1000
    if isinstance(form, logs.JsonFormatter):
        assert json.loads(line)["requestId"] == HOSTILE


def test_a_traceback_in_text_is_indented_and_in_json_a_field() -> None:
    def write(log: logging.Logger) -> None:
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            log.exception("failed")

    first, *rest = lines(logs.TextFormatter(), write)
    assert first.endswith("failed")
    assert len(rest) > 2
    assert all(line.startswith("  ") and line.isprintable() for line in rest)
    [line] = lines(logs.JsonFormatter(), write)
    assert "ValueError" in json.loads(line)["exception"]


async def test_each_task_has_the_ids_of_its_own_call() -> None:
    async def call(number: int) -> dict[str, str]:
        with logs.log_context(request_id=f"r-{number}"):
            await asyncio.sleep(0)
            return logs.current_ids()

    assert await asyncio.gather(call(1), call(2)) == [{"requestId": "r-1"}, {"requestId": "r-2"}]
    assert logs.current_ids() == {}


def test_the_environment_says_form_and_level() -> None:
    assert read_log_settings({}) == read_log_settings({"QUINTAIN_LOG_FORMAT": "", "QUINTAIN_LOG_LEVEL": ""})
    said = read_log_settings({"QUINTAIN_LOG_FORMAT": "JSON", "QUINTAIN_LOG_LEVEL": "Debug"})
    assert (said.as_json, said.level) == (True, logging.DEBUG)
    with pytest.raises(ConfigError, match="QUINTAIN_LOG_LEVEL is 'loud': it is one of debug, info, warning, error"):
        read_log_settings({"QUINTAIN_LOG_LEVEL": "loud"})
    with pytest.raises(ConfigError, match="QUINTAIN_LOG_FORMAT is 'xml': it is one of text, json"):
        read_log_settings({"QUINTAIN_LOG_FORMAT": "xml"})


WRITES_PAST_THE_LOGGERS = r"""
import json, logging, os, sys, threading, warnings
from quintain.observe import logs
sys.excepthook = sys.__excepthook__
logs.configure_logging(logging.WARNING, as_json=True)
logs.log_stderr()
print("half a ", end="", file=sys.stderr)
print("line\nand another \ud83d\x1b[31m\n\n", file=sys.stderr)
print('{"not": "closed"', file=sys.stderr)
print(json.dumps({"from": "a child"}), file=sys.stderr)
sys.stderr.buffer.write(b"bytes \xff\n")
warnings.warn("an old way", stacklevel=1)
own = logging.getLogger("elsewhere")
own.addHandler(logging.StreamHandler())
own.propagate = False
own.error("with a handler of its own\nof two lines")
logging.getLogger("aio_pika").error("of a library %s %s", "too few")
def fail(): raise ValueError("ses_0123456789abcdef_0123456789abcdef0123456789abcdef")
thread = threading.Thread(target=fail)
thread.start()
thread.join()
class Late:
    def __del__(self): fail()
Late()
print("without an end", end="", file=sys.stderr)
fail()
"""


def test_every_line_is_json_whoever_wrote_it() -> None:
    done = subprocess.run([sys.executable, "-c", WRITES_PAST_THE_LOGGERS], capture_output=True, text=True, check=False)
    said = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1
    assert {"from": "a child"} in said
    messages = [line.get("message") for line in said]
    for text in ("half a line", '{"not": "closed"', "bytes \\xff", "with a handler of its own", "of two lines"):
        assert text in messages
    assert any("an old way" in (message or "") for message in messages)
    assert "without an end" in messages
    failed = [line["exception"] for line in said if "exception" in line and "ValueError" in line["exception"]]
    assert len(failed) == 3
