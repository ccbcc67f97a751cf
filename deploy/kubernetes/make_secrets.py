"""Print the Secrets that the manifests name, with random values: ``python make_secrets.py | kubectl create -f -``.

``create`` and not ``apply``: a second run then changes no password that something already stands on.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Iterator

#: The services with a broker user and its URL; `scaler` is separate, because KEDA uses HTTP.
SERVICES = ("metadata", "worker", "gateway", "host", "controller", "evaluator", "operator")

#: The messaging topology operator reads a Secret only with this label.
FOR_THE_OPERATOR = {"rabbitmq.com/topology-operator": "true"}


def password() -> str:
    """192 random bits, hexadecimal: KEDA takes no special characters, and a URL has nothing to escape."""
    return secrets.token_hex(24)


def secret(name: str, namespace: str, labels: dict[str, str], data: dict[str, str]) -> dict[str, object]:
    """One Secret manifest."""
    part_of = {"app.kubernetes.io/part-of": "quintain"}
    metadata = {"name": name, "namespace": namespace, "labels": part_of | labels}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "stringData": data}


def broker_secrets(namespace: str) -> Iterator[dict[str, object]]:
    """Name, password and URL for each user of the broker."""
    host = f"rabbitmq.{namespace}.svc"
    for user in SERVICES:
        word = password()
        data = {"username": user, "password": word, "broker-url": f"amqp://{user}:{word}@{host}:5672/"}
        yield secret(f"broker-{user}", namespace, FOR_THE_OPERATOR, data)
    data = {"username": "scaler", "password": password(), "host": f"http://{host}:15672/"}
    yield secret("broker-scaler", namespace, FOR_THE_OPERATOR, data)


def all_secrets(namespace: str, *, with_ledger: bool) -> Iterator[dict[str, object]]:
    """All Secrets; without the ledger's if its database is an external one."""
    yield from broker_secrets(namespace)
    yield secret("admin", namespace, {}, {"admin-token": password()})
    if with_ledger:
        word = password()
        url = f"postgresql://quintain:{word}@postgres.{namespace}.svc:5432/quintain"
        yield secret("ledger", namespace, {}, {"password": word, "ledger-url": url})


def main() -> None:
    """Print them as one JSON list."""
    parser = argparse.ArgumentParser(description="Print the Secrets that deploy/kubernetes names, with random values.")
    parser.add_argument("--namespace", default="quintain", help="where they are made (%(default)s)")
    parser.add_argument(
        "--own-database", action="store_true", help="leave `ledger` out: you make it, with `ledger-url`"
    )
    chosen = parser.parse_args()
    items = list(all_secrets(chosen.namespace, with_ledger=not chosen.own_database))
    json.dump({"apiVersion": "v1", "kind": "List", "items": items}, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
