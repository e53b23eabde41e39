"""Bounds that only the CRD schemas have: the maximum size of a string, list or map on the server.

The API server estimates the cost of a CEL rule as the product of such bounds, and refuses a whole CRD when one rule may
cost too much. So every field has a bound. The structs do not have these bounds, because a reader must not fail on an
object that the server accepted. Keys are `Struct.wireName`; values are merged into the generated schema.
"""

from collections.abc import Mapping
from typing import Any

from slipway.crd.policies import CODES_MAX, EXIT_CODES_PATTERN
from slipway.crd.v1alpha1 import CONDITIONS_MAX, RANKS_MAX, RING_LENGTH
from slipway.model.resources import LENGTH_MAX

STRING_MAX = 1024
LIST_MAX = 256
MAP_MAX = 256
TEXT_MAX = 32 * 1024
SCRIPT_MAX = 128 * 1024
UID_MAX = 63
TIME_MAX = 40
DAYS_MAX = 4096
"""days of usage of one allocation: eleven years"""
NODES_MAX = 16 * 1024
ENV_MAX = 512
LABELS_MAX = 256
"""labels of one launch; the server has no limit of its own"""
OPAQUE_MAX = 64
EXTENDERS_MAX = 8
"""extenders of one pool: the scheduler calls each before it places pods that the extender manages"""

QUANTITY: Mapping[str, Any] = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
    "maxLength": LENGTH_MAX,
    "pattern": r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,3})?$",
}
_OPAQUE: Mapping[str, Any] = {
    "maxProperties": OPAQUE_MAX,
    "additionalProperties": {"x-kubernetes-preserve-unknown-fields": True},
}
"""An object with any contents, which the server compares key by key to its full depth; `validate.py` checks the
contents."""

_EXIT_CODES: Mapping[str, Any] = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
    "maxLength": 7,
    "pattern": EXIT_CODES_PATTERN,
}

_WHOLE: Mapping[str, Any] = {"x-kubernetes-map-type": "atomic"}
"""A field with a single owner in managedFields. Only Slipway writes it, and always as a whole. Owners of each single
field would take a quarter of a stored allocation, in every LIST and watch. Rules can still compare it with the old
value."""

_CONDITIONS: Mapping[str, Any] = {
    "maxItems": CONDITIONS_MAX,
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
}

BOUNDS: Mapping[str, Mapping[str, Any]] = {
    "Allocation.status": _WHOLE,
    "AllocationSpec.template": _WHOLE,
    "ResourcePool.status": _WHOLE,
    "Queue.status": _WHOLE,
    "Job.status": _WHOLE,
    "Condition.type": {"minLength": 1, "maxLength": 316},
    "Condition.status": {"enum": ["True", "False", "Unknown"]},
    "Condition.message": {"maxLength": TEXT_MAX},
    "Condition.lastTransitionTime": {"maxLength": TIME_MAX},
    "RoleSpec.resources": _OPAQUE,
    "RoleSpec.affinity": _OPAQUE,
    "ResourcePoolSpec.args": {"maxProperties": 32, "additionalProperties": {"type": "object", **_OPAQUE}},
    "RoleSpec.topologySpreadConstraints": {"items": {"type": "object", **_OPAQUE}},
    "KindDefaults.resources": _OPAQUE,
    "AllocationSpec.env": {"maxProperties": ENV_MAX, "additionalProperties": {"type": "string", "maxLength": TEXT_MAX}},
    "AllocationSpec.secretVariables": {"maxItems": ENV_MAX, "items": {"type": "string", "maxLength": 253}},
    "KindDefaults.env": {"maxProperties": ENV_MAX, "additionalProperties": {"type": "string", "maxLength": TEXT_MAX}},
    "KindDefaults.command": {"items": {"type": "string", "maxLength": SCRIPT_MAX}},
    "KindDefaults.args": {"items": {"type": "string", "maxLength": SCRIPT_MAX}},
    "FailureRule.exitCodes": {"maxItems": CODES_MAX, "items": _EXIT_CODES},
    "Signals.acks": {"maxProperties": RANKS_MAX},
    "Signals.daemons": {"maxItems": RANKS_MAX},
    "Admission.placements": {"maxItems": RANKS_MAX},
    "Release.podUIDs": {"maxItems": RANKS_MAX, "items": {"type": "string", "maxLength": UID_MAX}},
    "RankStatus.podUID": {"maxLength": UID_MAX, "default": ""},
    "RankStatus.node": {"maxLength": 253},
    "AllocationStatus.ranks": {"x-kubernetes-list-type": "atomic"},
    "AllocationStatus.message": {"maxLength": TEXT_MAX},
    "Growth.placements": {"maxItems": RANKS_MAX, "x-kubernetes-list-type": "atomic"},
    "Growth.podUIDs": {"maxItems": RANKS_MAX, "items": {"type": "string", "maxLength": UID_MAX}},
    "Growth.left": {"maxItems": RANKS_MAX, "x-kubernetes-list-type": "atomic"},
    "RankRestart.podUID": {"maxLength": UID_MAX},
    "RankRestart.notBefore": {"maxLength": TIME_MAX},
    "AllocationStatus.restartedRanks": {"x-kubernetes-list-type": "atomic"},
    "Shrink.ranks": {"x-kubernetes-list-type": "atomic"},
    "AllocationStatus.preemptions": {"x-kubernetes-list-type": "atomic"},
    "AllocationStatus.transitions": {"maxItems": RING_LENGTH, "x-kubernetes-list-type": "atomic"},
    "AllocationStatus.conditions": _CONDITIONS,
    "Usage.days": {
        "maxProperties": DAYS_MAX,
        "additionalProperties": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
    "Usage.until": {"maxLength": TIME_MAX},
    "ResourcePoolSpec.extenders": {
        "maxItems": EXTENDERS_MAX,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["urlPrefix"],
    },
    "ResourcePoolSpec.windows": {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    "ExtenderSpec.managedResources": {"maxItems": 64},
    "ResourcePoolStatus.nodes": {"maxItems": NODES_MAX},
    "ResourcePoolStatus.decisions": {"maxItems": 4096},
    "ResourcePoolStatus.conditions": _CONDITIONS,
    "QueueStatus.conditions": _CONDITIONS,
    "JobStatus.conditions": _CONDITIONS,
    "WireDecision.placements": {"maxItems": RANKS_MAX},
    "WireDecision.devices": {"maxProperties": RANKS_MAX},
}

UNFILLED = frozenset(
    {
        "RoleSpec.daemon",
        "FailureRule.disruption",
        "AllocationSpec.home",
        "AllocationStatus.uncountedRestarts",
        "Admission.flavor",
        "WindowSpec.maintenance",
        "WindowSpec.onStart",
    }
)
"""Fields whose default the server does not set. In an atomic list, kubectl would see a default that the server set as a
difference, and would never report a repeated apply as unchanged. And a field that few allocations need would be stored
in all of them."""

REQUIRED: Mapping[str, tuple[str, ...]] = {"RankStatus": ("podUID",)}
"""Fields that the server requires although the structs have a default (a default of the schema fills them in)."""
