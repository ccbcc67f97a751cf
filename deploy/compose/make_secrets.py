"""Creates this installation's secrets, each once, and a folder of them for each service that only the service can read.

Runs before all else, in a container without a network, with the standard library alone. What is there is kept: the same
command again changes nothing. The broker gets the passwords' hashes, in a volume of its own, and never the passwords.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
from pathlib import Path

KEPT = Path("/run/quintain")
HASHES = Path("/run/definitions/definitions.json")
DEFINITIONS = Path("/deploy/definitions.json")

#: The secrets in each service's folder. The number is the user id of the service: deploy/Dockerfile.
METADATA, WORKER, GATEWAY, HOST, RUNNER = 10001, 10002, 10003, 10004, 10005
ROOT = 0

BROKER = "rabbitmq:5672"
LEDGER = "postgres:5432"


def kept(name: str, owner: int, text: str) -> None:
    """Write a file that only this owner can read."""
    path = KEPT / name
    path.parent.mkdir(exist_ok=True, mode=0o755)
    write(path, owner, text, mode=0o400)


def write(path: Path, owner: int, text: str, *, mode: int) -> None:
    """Write a file of this owner, as a whole or not at all."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    new.touch(mode=mode)
    new.write_text(text, encoding="ascii")
    os.chown(new, owner, owner)
    new.replace(path)


def secret(name: str) -> str:
    """A secret of 256 bits, created the first time."""
    path = KEPT / "all" / name
    if not path.exists():
        kept(f"all/{name}", ROOT, secrets.token_urlsafe(32))
    return path.read_text(encoding="ascii")


def hash_of(password: str, kept_hash: str | None) -> str:
    """RabbitMQ's salted SHA-256 of a password; the previous hash if it matches."""
    if kept_hash is not None:
        salt = base64.b64decode(kept_hash)[:4]
        if _salted(salt, password) == kept_hash:
            return kept_hash
    return _salted(secrets.token_bytes(4), password)


def _salted(salt: bytes, password: str) -> str:
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def definitions() -> str:
    """The broker's definitions, with the hash of every user's password."""
    told = json.loads(DEFINITIONS.read_text(encoding="utf-8"))
    users = json.loads(HASHES.read_text(encoding="utf-8"))["users"] if HASHES.exists() else []
    hashes = {user["name"]: user["password_hash"] for user in users}
    for user in told["users"]:
        user["password_hash"] = hash_of(secret(f"broker-{user['name']}"), hashes.get(user["name"]))
    return json.dumps(told, indent=2)


def broker_url(user: str) -> str:
    """The broker's URL for one of its users."""
    return f"amqp://{user}:{secret(f'broker-{user}')}@{BROKER}/"


def main() -> None:
    """Create the missing secrets."""
    KEPT.mkdir(exist_ok=True)
    (KEPT / "all").mkdir(exist_ok=True, mode=0o700)
    # Readable for any user of the broker's container: its user depends on the image.
    write(HASHES, ROOT, definitions(), mode=0o444)
    (KEPT / "broker" / "definitions.json").unlink(missing_ok=True)
    kept("postgres/password", ROOT, secret("ledger"))
    kept("metadata/broker-url", METADATA, broker_url("metadata"))
    kept("metadata/ledger-url", METADATA, f"postgresql://quintain:{secret('ledger')}@{LEDGER}/quintain")
    kept("metadata/admin-token", METADATA, secret("admin-token"))
    kept("worker/broker-url", WORKER, broker_url("worker"))
    kept("gateway/broker-url", GATEWAY, broker_url("gateway"))
    kept("host/broker-url", HOST, broker_url("host"))
    kept("runner/broker-url", RUNNER, broker_url("evaluator"))
    kept("runner/admin-token", RUNNER, secret("admin-token"))


if __name__ == "__main__":
    main()
