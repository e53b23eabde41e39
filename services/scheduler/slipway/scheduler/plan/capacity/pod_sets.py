"""Pod sets: the pods for which an autoscaler is asked for nodes, with everything that decides where they can run.

Owns how the ranks of a gang become such pods: their requests, the nodes that they may use, and their tolerations. Knows
nothing of names, images and objects. Pure.

Promises: equal gangs of equal pools give equal pod sets. A share of a GPU is requested as a whole GPU. Not included:
affinity to other pods, spread constraints and host ports. An autoscaler that adds empty nodes satisfies these anyway,
or cannot help.
"""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from slipway.crd.meta import API_GROUP
from slipway.crd.roleresources import is_extended
from slipway.model.facts import FLAVOR_LABEL, AllocationFact, PoolFact, RoleFact, Toleration, VolumeFact
from slipway.model.resources import GPU, GPU_MILLI, GPU_SHARES, MILLI, PODS, Resources
from slipway.scheduler.plan.state import rank_request
from slipway.scheduler.plan.state.affinity_terms import mapping_of, mappings_of, strings_of

POD_SETS_MAX = 32
"""The most pod sets that a ProvisioningRequest may have."""
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
OTHER_GROUP = f"placeholder.{API_GROUP}"
"""Replaces our own group in labels and selectors: with our own label, a pod would be treated as a rank."""
NO_LABELS: Mapping[str, str] = {}
_INTERNAL = (PODS, GPU_MILLI, GPU_SHARES)
_LABEL_NAMES = ("matchLabelKeys", "mismatchLabelKeys")
"""Fields of an affinity term that list names of pod labels."""

Volumes = Mapping[tuple[str, str], VolumeFact]
"""{(namespace, claim): where its volume can be reached}"""


class PodSet(msgspec.Struct, frozen=True, kw_only=True):
    """`count` pods that are alike; the fields are those of a pod, as JSON."""

    count: int
    labels: dict[str, str] = {}
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    """limits of extended resources, which Kubernetes requires"""
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, Any], ...] = ()
    affinity: dict[str, Any] = {}


def pod_sets(
    fact: AllocationFact, pool: PoolFact, volumes: Volumes, flavors: tuple[str, ...] = ()
) -> tuple[PodSet, ...]:
    """Return a pod set for each role that has ranks in the smallest gang of `fact` that may start.

    `flavors` are the accepted flavors, the best first; nodes of the first known flavor are requested.
    """
    labels = {flavor.name: flavor.node_labels for flavor in pool.flavors}
    chosen: Mapping[str, str] = next((labels[name] for name in flavors if name in labels), NO_LABELS)
    counts = rank_request.targets(fact)
    return tuple(
        _pod_set(role, count, pool, volumes, chosen)
        for role, count in zip(fact.roles, counts, strict=True)
        if count > 0
    )


def _pod_set(role: RoleFact, count: int, pool: PoolFact, volumes: Volumes, flavor: Mapping[str, str]) -> PodSet:
    requests = _requests(role)
    own = {key: value for key, value in role.node_selector.items() if key != FLAVOR_LABEL}
    return PodSet(
        count=count,
        labels={_renamed(key): value for key, value in role.labels.items()},
        requests=requests.quantities(),
        limits=Resources.of({name: much for name, much in requests.amounts.items() if is_extended(name)}).quantities(),
        node_selector={**pool.node_selector, **flavor, **own},
        tolerations=tuple(_toleration(item) for item in dict.fromkeys((*role.tolerations, *pool.tolerations))),
        affinity=_affinity(role, volumes),
    )


def _requests(role: RoleFact) -> Resources:
    amounts = {name: amount for name, amount in role.requests.amounts.items() if name not in _INTERNAL}
    if milli := role.requests.get(GPU_MILLI):
        amounts[GPU] = amounts.get(GPU, 0) + -(-milli // MILLI)
    return Resources.of(amounts)


def _toleration(item: Toleration) -> dict[str, Any]:
    said = msgspec.to_builtins(item)
    return {key: value for key, value in said.items() if value not in ("", None)}


def _affinity(role: RoleFact, volumes: Volumes) -> dict[str, Any]:
    """Return its node affinity, narrowed to nodes that reach its volumes, and its anti-affinity to other pods."""
    found: dict[str, Any] = {}
    node = dict(mapping_of(role.affinity.get("nodeAffinity")))
    terms = [dict(term) for term in mappings_of(mapping_of(node.get(REQUIRED)).get("nodeSelectorTerms"))]
    for claim in role.claims:
        volume = volumes.get((role.namespace, claim))
        if volume is not None:
            zones = [{"key": key, "operator": "In", "values": list(some)} for key, some in sorted(volume.zones.items())]
            terms = _both(terms, [{"matchExpressions": zones}] if zones else [])
            terms = _both(terms, [dict(term) for term in volume.terms])
    if terms:
        node[REQUIRED] = {"nodeSelectorTerms": terms}
    if node:
        found["nodeAffinity"] = node
    if apart := mapping_of(role.affinity.get("podAntiAffinity")):
        found["podAntiAffinity"] = _with_other_group(dict(apart))
    return found


def _both(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return terms that match where one term of each list matches; an empty list matches everywhere."""
    if not first or not second:
        return first or second
    return [_joined(one, other) for one in first for other in second]


def _joined(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    fields = sorted({*one, *other})
    return {field: [*mappings_of(one.get(field)), *mappings_of(other.get(field))] for field in fields}


def _with_other_group(value: Any) -> Any:
    """Return the same terms over renamed labels of pods. Namespaces are selected by their own labels, as before."""
    if isinstance(value, Mapping):
        renamed: dict[str, Any] = {}
        for key, item in mapping_of(cast("Any", value)).items():
            if key == "matchLabels":
                renamed[key] = {_renamed(label): wanted for label, wanted in mapping_of(item).items()}
            elif key in _LABEL_NAMES:
                renamed[key] = [_renamed(label) for label in strings_of(item)]
            elif key == "key":
                renamed[key] = _renamed(str(item))
            elif key == "namespaceSelector":
                renamed[key] = item
            else:
                renamed[key] = _with_other_group(item)
        return renamed
    if isinstance(value, list):
        return [_with_other_group(item) for item in cast("list[Any]", value)]
    return value


def _renamed(label: str) -> str:
    return f"{OTHER_GROUP}{label.removeprefix(API_GROUP)}" if label.startswith(f"{API_GROUP}/") else label
