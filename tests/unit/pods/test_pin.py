"""The affinity that leaves a pod one node: narrower than before, whatever it was."""

import pytest

from slipway.crd.meta import RawObject
from slipway.pods.podspec import is_pinned, pinned

HERE = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
SSD = {"key": "disk", "operator": "In", "values": ["ssd"]}
FAST = {"key": "speed", "operator": "Exists"}


def _required(*terms: RawObject, **more: object) -> RawObject:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}, **more}}


def _terms(affinity: RawObject) -> list[RawObject]:
    found = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return list(found)


NARROWED: list[tuple[tuple[RawObject, ...], list[RawObject]]] = [
    ((), [{"matchFields": [HERE]}]),
    (({"matchExpressions": [SSD]},), [{"matchExpressions": [SSD], "matchFields": [HERE]}]),
    (
        ({"matchExpressions": [SSD]}, {"matchFields": [{**HERE, "values": ["n2"]}]}),
        [
            {"matchExpressions": [SSD], "matchFields": [HERE]},
            {"matchFields": [{**HERE, "values": ["n2"]}, HERE]},
        ],
    ),
    (({}, {"matchExpressions": [FAST]}), [{}, {"matchExpressions": [FAST], "matchFields": [HERE]}]),
]


@pytest.mark.parametrize(("before", "after"), NARROWED)
def test_every_term_gets_the_node(before: tuple[RawObject, ...], after: list[RawObject]) -> None:
    """Every term gets the node, because terms are alternatives: a term without it would admit other nodes. An empty
    term matches nothing."""
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(before)}}}
    narrowed = pinned(affinity if before else {}, "n1")
    assert _terms(narrowed) == after
    assert is_pinned(narrowed, "n1")
    assert not is_pinned(narrowed, "n2")


def test_everything_else_is_kept() -> None:
    """Preferences and pod affinity are kept."""
    away = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}]}}
    prefers: list[RawObject] = [{"weight": 1, "preference": {"matchExpressions": [SSD]}}]
    affinity = {**away, "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": prefers}}
    narrowed = pinned(affinity, "n1")
    assert narrowed["podAntiAffinity"] == away["podAntiAffinity"]
    assert narrowed["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == prefers


@pytest.mark.parametrize(
    "affinity",
    [{}, {"nodeAffinity": {}}, _required({"matchFields": [HERE]}, {"matchExpressions": [SSD]}), _required({})],
)
def test_what_admits_another_node_or_none_is_not_pinned(affinity: RawObject) -> None:
    """An affinity with one term that admits another node is not pinned; neither is one that admits none."""
    assert not is_pinned({**affinity}, "n1")
