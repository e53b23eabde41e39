"""What is in shape already is told at a glance, and comes out as if it had been read field by field."""

from copy import deepcopy
from typing import Any

import pytest

from slipway.local.apiserver.fields.reading import read
from slipway.local.apiserver.fields.shapes import ANY, builtin_shapes

POD = builtin_shapes().of_kind("v1", "Pod") or ANY
READY = {"type": "Ready", "status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-01-02T03:04:05Z"}


@pytest.mark.parametrize(
    "given",
    [
        {"metadata": {"name": "a", "creationTimestamp": None}},
        {"status": {"conditions": [READY]}},
        {"status": {"conditions": [READY | {"lastTransitionTime": None}]}},
        {"status": {"conditions": [READY | {"lastProbeTime": "2026-01-02T03:04:05Z", "message": None}]}},
        {"spec": {"containers": [{"name": "a", "resources": None}]}},
        {"spec": {"containers": [{"name": None, "image": ""}], "nodeSelector": {}}},
        {"spec": {"containers": None, "priority": 0, "hostNetwork": False}},
    ],
)
def test_a_glance_finds_what_reading_finds(given: dict[str, Any]) -> None:
    """A field that the kind does not have makes all of it be read; but for its name the answers are equal."""
    glanced, read_whole = deepcopy(given), {**deepcopy(given), "unknown": 1}
    assert (read(POD, glanced), read(POD, read_whole)) == ([], ["unknown"])
    assert glanced == read_whole
