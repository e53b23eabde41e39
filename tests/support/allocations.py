"""Builders of custom resources: as plain JSON the way the API server stores them, and as structs."""

import copy
from collections.abc import Mapping
from typing import Any

import msgspec

from slipway.crd.v1alpha1 import Allocation, ResourcePool

Json = dict[str, Any]


def a_spec(**changes: Any) -> Json:
    """A stored spec: the server has filled in the schema's defaults."""
    spec: Json = {
        "kind": "training",
        "pool": "default",
        "queue": "default",
        "priority": 50,
        "preemptible": False,
        "maxRestarts": 0,
        "hold": False,
        "desired": "Running",
        "ranks": [{"name": "worker", "count": 2}],
    }
    return {**spec, **changes}


def a_status(**changes: Any) -> Json:
    """A stored status; by default the status of every new object."""
    return {"phase": "Pending", "seq": 0, "attempt": 1, **changes}


def a_stored(*, name: str = "llm", spec: Json | None = None, status: Json | None = None) -> Json:
    """A stored Allocation as plain JSON."""
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "Allocation",
        "metadata": {"name": name},
        "spec": a_spec() if spec is None else spec,
        "status": a_status() if status is None else status,
    }


def changed(stored: Mapping[str, Any], path: str, value: Any) -> Json:
    """A copy of `stored` with `value` at the slash-separated path; None removes the field."""
    result = copy.deepcopy(dict(stored))
    *steps, last = path.split("/")
    place: Any = result
    for step in steps:
        place = place.setdefault(step, {})
    if value is None:
        del place[last]
    else:
        place[last] = value
    return result


def an_allocation(*, name: str = "llm", **spec: Any) -> Allocation:
    """An Allocation from its wire form; `kind` is training when absent."""
    return msgspec.convert({"metadata": {"name": name}, "spec": {"kind": "training", **spec}}, Allocation)


def a_pool(**spec: Any) -> ResourcePool:
    """A ResourcePool named `default`."""
    return msgspec.convert({"metadata": {"name": "default"}, "spec": spec}, ResourcePool)


def a_template(*containers: Json, **spec: Any) -> Json:
    """A pod template of these containers; by default one container `main` with an image and a command."""
    main: Json = {"name": "main", "image": "python:3.11", "command": ["python", "train.py"]}
    return {"spec": {"containers": list(containers) or [main], **spec}}
