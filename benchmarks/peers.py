"""Other libraries and proxies beside Quintain: each in an environment of its own, all sides of a row in turn.

    make bench-peers                                       # all tables, into docs/benchmarks.md
    python benchmarks/peers.py --only queues --seconds 2   # one table, printed

The environments are made when they are asked for, in ``~/.cache/quintain/clients``, and kept. A peer that cannot be
installed, started or measured is named NOT MEASURED, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import http_peers
import queue_peers
from calls import Options, one_leader
from harness import Result, machine
from quintain.settings import environment
from report import PEERS, markdown, peers_ahead, write_report
from servers import RABBITMQ, durable_postgres, fresh_database, running_server


async def leader(options: Options, missing: dict[str, str]) -> list[Result]:
    """The most that one metadata service takes on SQLite and on PostgreSQL."""
    with durable_postgres() as postgres_url, fresh_database(postgres_url) as ledger_url:
        return await one_leader(options, ledger_url)


TABLES: dict[str, Callable[[Options, dict[str, str]], Coroutine[None, None, list[Result]]]] = {
    "queues": queue_peers.compare_queues,
    "openai": http_peers.openai_api,
    "agentv": http_peers.agentv_api,
    "leader": leader,
}


def main() -> None:
    """Measure the tables that are asked for; all of them go into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each round takes")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each row, all sides in turn")
    parser.add_argument("--only", choices=TABLES, action="append", help="measure this table, and print it")
    arguments = parser.parse_args()
    results: list[Result] = []
    missing: dict[str, str] = {}
    load, began = os.getloadavg()[0], time.monotonic()
    with running_server(RABBITMQ, environment(), print) as broker:
        for name in arguments.only or TABLES:
            with tempfile.TemporaryDirectory() as folder:
                options = Options(broker.url, Path(folder), arguments.seconds, arguments.rounds)
                results += asyncio.run(TABLES[name](options, missing))
    print(markdown(results), f"\n\n{peers_ahead(results)}\n")
    print(f"{time.monotonic() - began:.0f} s")
    if not arguments.only:
        rounds = f"{arguments.rounds} rounds of {arguments.seconds:g} s"
        loads = f"load {load:.1f} before and {os.getloadavg()[0]:.1f} after"
        parts = [machine(), broker.how.partition(",")[0], rounds, loads, time.strftime("%Y-%m-%d")]
        write_report(PEERS, results, "; ".join(parts), missing)
    for name, reason in missing.items():
        print(f"NOT MEASURED: {name}: {reason}")
    raise SystemExit(bool(missing))


if __name__ == "__main__":
    main()
