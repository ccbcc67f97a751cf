"""Every object is one that its API takes: Kubernetes' own kinds always, the operators' where schemas are given."""

from __future__ import annotations

import copy

import kubernetes_validate
import pytest

from support.kubernetes_manifests import monitors, object_named, objects
from support.kustomize import Object

#: The newest whose schemas there are, and the one two releases before: as far back as Kubernetes mends anything.
KUBERNETES_VERSIONS = ("1.35", "1.37")

#: Whose schemas no package registry has: as their projects publish them, in the folder that the variable names.
OPERATORS = ("keda.sh/", "monitoring.coreos.com/", "rabbitmq.com/")

OURS = [each for each in [*objects(), *monitors()] if each["apiVersion"].startswith(OPERATORS)]
THEIRS = [each for each in objects() if each not in OURS]


def which(one: Object) -> str:
    return f"{one['kind']}-{one['metadata']['name']}"


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("one", THEIRS, ids=which)
def test_kubernetes_takes_it(one: Object, version: str) -> None:
    assert kubernetes_validate.validate(one, version, strict=True).startswith(version)


def test_kubernetes_would_not_take_a_field_that_it_does_not_know() -> None:
    wrong = copy.deepcopy(object_named("Deployment", "worker"))
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(wrong, KUBERNETES_VERSIONS[-1], strict=True)


def test_the_kinds_that_kubernetes_does_not_have_are_the_operators() -> None:
    assert {(each["apiVersion"], each["kind"]) for each in OURS} == {
        ("keda.sh/v1alpha1", "ScaledObject"),
        ("keda.sh/v1alpha1", "TriggerAuthentication"),
        ("monitoring.coreos.com/v1", "PodMonitor"),
        ("rabbitmq.com/v1beta1", "Permission"),
        ("rabbitmq.com/v1beta1", "Policy"),
        ("rabbitmq.com/v1beta1", "RabbitmqCluster"),
        ("rabbitmq.com/v1beta1", "User"),
        ("rabbitmq.com/v1beta1", "Vhost"),
    }
