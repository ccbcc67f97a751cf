"""The users of the broker in a cluster: their rights are those that test_broker_users.py tries on a real broker.

`test_deployments_agree` holds that Compose and Kubernetes give the same ones.
"""

from __future__ import annotations

import re

import pytest

from support.kubernetes_manifests import generated_secrets, names_of_kind, objects_of_kind

PERMISSIONS = {
    each["spec"]["userReference"]["name"]: each["spec"]["permissions"] for each in objects_of_kind("Permission")
}


def allowed(user: str, right: str, name: str) -> bool:
    return re.search(PERMISSIONS[user][right], name) is not None


def test_each_user_has_its_password_and_one_permission() -> None:
    users = names_of_kind("User")
    assert PERMISSIONS.keys() == users
    assert {name.removeprefix("broker-") for name in generated_secrets() if name.startswith("broker-")} == users
    assert len(objects_of_kind("Permission")) == len(users)


@pytest.mark.parametrize("user", PERMISSIONS)
def test_nobody_has_the_default_exchange_or_what_is_not_ours(user: str) -> None:
    for right in ("configure", "write", "read"):
        assert not any(allowed(user, right, name) for name in ("amq.default", "amq.topic", "other", "xquintain.invoke"))
        assert PERMISSIONS[user][right].startswith("^")
        assert PERMISSIONS[user][right].endswith("$")


def test_the_scaler_may_look_and_nothing_else() -> None:
    (scaler,) = [each for each in objects_of_kind("User") if each["metadata"]["name"] == "scaler"]
    assert scaler["spec"]["tags"] == ["management"]
    assert set(PERMISSIONS["scaler"].values()) == {"^$"}
    tags = {
        each["metadata"]["name"]: each["spec"]["tags"] for each in objects_of_kind("User") if "tags" in each["spec"]
    }
    assert tags == {"scaler": ["management"], "operator": ["monitoring"]}
