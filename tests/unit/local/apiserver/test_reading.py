"""A fast check recognizes valid objects, and its result is the same as of reading field by field."""

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
def test_scanning_a_body_finds_the_same_as_decoding_it(given: dict[str, Any]) -> None:
    """The fast check and the full reading have the same result; an object with an unknown field is read in full, and
    differs only by that field."""
    glanced, read_whole = deepcopy(given), {**deepcopy(given), "unknown": 1}
    assert (read(POD, glanced), read(POD, read_whole)) == ([], ["unknown"])
    assert glanced == read_whole
