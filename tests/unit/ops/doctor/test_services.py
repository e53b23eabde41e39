"""The doctor's findings about the Deployments of the services."""

from typing import Any

import pytest

from slipway.ops.doctor.finding import FindingState
from slipway.ops.doctor.installed import DEPLOYMENTS, OURS, InstalledRelease
from slipway.runtime.clock import SystemClock
from tests.support.small_cluster import a_client, a_core

PLACE = "default"


@pytest.mark.parametrize(
    ("replicas", "available", "state", "said"),
    [
        (2, 2, FindingState.OK, "version 0.1.0, 2 available"),
        (2, 1, FindingState.WARNING, "1 of 2 available"),
        (2, 0, FindingState.FAILED, "0 of 2 available"),
        (0, 0, FindingState.FAILED, "scaled to 0 replicas"),
    ],
)
async def test_a_service_without_a_pod_is_a_failure(
    replicas: int, available: int, state: FindingState, said: str
) -> None:
    """A service without a pod is a failure, also when it was scaled down for a restore, because nothing works until it
    is scaled up again."""
    core = a_core(SystemClock().now)
    core.bootstrap()
    kube = a_client(core)
    label, _, value = OURS.partition("=")
    labels = {label: value, "app.kubernetes.io/component": "podworker", "app.kubernetes.io/version": "0.1.0"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "i"}]}}
    spec: dict[str, Any] = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pod}
    meta = {"name": "slipway-podworker", "namespace": PLACE, "labels": labels}
    made = await kube.create(DEPLOYMENTS, {"metadata": meta, "spec": spec})
    fence = {**meta, "resourceVersion": made.metadata.resource_version}
    await kube.replace_status(
        DEPLOYMENTS, {"metadata": fence, "spec": spec, "status": {"availableReplicas": available, "replicas": replicas}}
    )
    found = {each.check: each for each in await InstalledRelease(kube, PLACE, "0.1.0").services()}
    assert (found["service podworker"].state, found["service podworker"].found) == (state, said)
