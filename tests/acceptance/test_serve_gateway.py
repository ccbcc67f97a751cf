"""``quintain serve gateway``: waits for its broker, keeps to loopback, answers what runs when it is told to stop."""

from __future__ import annotations

import json
import ssl
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from support.command_line import CommandLine, RunningCommand
from support.process_fleet import ADMIN_TOKEN, fleet_shell

CONFIG = "targets: {slow: {provider: mock, delay_ms: 1500}}\n"


@pytest.fixture(scope="module")
def shell(broker_url: str) -> Iterator[CommandLine]:
    """A shell before a broker with no service on it."""
    with fleet_shell(broker_url, CONFIG, targets=["slow"]) as shell:
        yield shell


def request(url: str, token: str = "", body: object = None, tls: ssl.SSLContext | None = None) -> tuple[int, Any]:
    """A request's status and JSON."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = Request(url, None if body is None else json.dumps(body).encode(), headers)
    try:
        with urlopen(request, timeout=30, context=tls) as response:
            return response.status, json.load(response)
    except HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def ready_object(running: RunningCommand) -> dict[str, Any]:
    """The one object that a service prints when it is ready."""
    running.wait_for(lambda one: "\n" in one.stdout)
    return dict(json.loads(running.stdout))


def test_a_gateway_waits_for_the_others_and_answers_what_runs_when_it_is_stopped(shell: CommandLine) -> None:
    gateway = shell.start("serve", "gateway", "--port", "0", "--json")
    facts = ready_object(gateway)
    url = facts["url"]
    assert (facts["service"], facts["state"]) == ("gateway", "ready")
    assert url.startswith("http://127.0.0.1:")
    assert facts["broker"].startswith("amqp://")
    assert ":" not in facts["broker"].removeprefix("amqp://").partition("@")[0]  # a user, and no password
    assert request(f"{url}/health/live") == (200, {"status": "live"})
    assert request(f"{url}/health/ready")[0] == 503
    shell.serve("metadata", "worker")
    opened = request(f"{url}/sessions", ADMIN_TOKEN, {"defaultTarget": "slow", "maxCalls": 3})
    assert opened[0] == 201
    while (health := request(f"{url}/health/ready"))[0] != 200:
        time.sleep(0.1)  # the last result is kept for a second
    assert health == (200, {"status": "ready"})
    with ThreadPoolExecutor() as pool:
        running = pool.submit(request, f"{url}/invoke", opened[1]["token"], {"question": "still there?"})
        while request(f"{url}/info", opened[1]["token"])[1]["callCount"] == 0:
            pass
        ended = gateway.stop(seconds=20)
        status, answer = running.result()
    assert (status, answer["rawText"]) == (200, "still there?")
    assert ended.code == 0
    assert ended.stdout.count("\n") == 1
    assert "route=/invoke status=200" in ended.stderr
    for secret in (ADMIN_TOKEN, opened[1]["token"], "still there?"):
        assert secret not in ended.stderr


@pytest.mark.parametrize(
    ("words", "mend"),
    [
        (("--host", "0.0.0.0"), "--insecure-plain-http"),
        (("--host", "gateway.example"), "can be reached from other machines"),
        (("--tls-cert", "cert.pem"), "both --tls-cert and --tls-key"),
        (("--tls-cert", "cert.pem", "--tls-key", "no.pem"), "cert.pem with --tls-key no.pem cannot be used"),
        (("--host", "192.0.2.1", "--insecure-plain-http"), "choose another with --port"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_address_that_may_not_or_cannot_be_opened_is_refused(
    shell: CommandLine, words: tuple[str, ...], mend: str
) -> None:
    refused = shell.run("serve", "gateway", "--port", "0", *words, code=2)
    assert mend in refused.stderr
    assert refused.stdout == ""


def test_with_a_certificate_it_speaks_tls(shell: CommandLine, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)],
        capture_output=True, check=True, timeout=30,
    )  # fmt: skip
    words = ("--host", "0.0.0.0", "--tls-cert", str(cert), "--tls-key", str(key), "--port", "0", "--json")
    url = ready_object(shell.start("serve", "gateway", *words))["url"]
    assert url.startswith("https://0.0.0.0:")
    trusted = ssl.create_default_context(cafile=str(cert))
    assert request(f"https://localhost:{url.rpartition(':')[2]}/health/live", tls=trusted) == (200, {"status": "live"})
    with pytest.raises(OSError, match="."):
        request(f"http://localhost:{url.rpartition(':')[2]}/health/live")
    # Beyond loopback without a certificate it goes where somebody insists.
    url = ready_object(shell.start("serve", "gateway", *words[:2], "--insecure-plain-http", "--port", "0", "--json"))[
        "url"
    ]
    assert request(f"http://127.0.0.1:{url.rpartition(':')[2]}/health/live")[0] == 200
    # A key of another certificate is refused before anything is opened.
    other = shell.run("serve", "gateway", "--tls-cert", str(cert), "--tls-key", str(cert), code=2)
    assert "cannot be used" in other.stderr
