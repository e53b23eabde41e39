"""Pods for the tests of this package."""

from typing import Any

import msgspec

from tests.conformance.kubelets.objects import Json, Pod
from tests.conformance.kubelets.script import PLAY, Script


def manifest(
    name: str, script: Script | None = None, *, node: str = "", namespace: str = "default", **spec: Any
) -> Json:
    """A pod of one container, bound to `node` when that is named; `spec` is merged into its spec."""
    plan = msgspec.json.encode(script or Script()).decode()
    body: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": {PLAY: plan}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "containers": [{"name": "main", "image": "busybox"}],
            **spec,
        },
    }
    if node:
        body["spec"]["nodeName"] = node
    return body


def a_pod(**more: Any) -> Pod:
    """A pod as a kubelet first sees it. `metadata` and `status` are merged; other arguments go into its spec."""
    metadata, status = more.pop("metadata", {}), more.pop("status", {})
    body = manifest("p", node="node-0", **more)
    body["metadata"] |= {"uid": "u-1", "generation": 1, **metadata}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    body["status"] = {"phase": "Pending", "conditions": [scheduled], **status}
    return msgspec.convert(body, Pod)
