"""Bad affinities, spread constraints, volumes, images and args: each complaint begins with the path of the field."""

import pytest

from slipway.errors import InvalidError
from slipway.scheduler.simulate.scenario import decode

NODES = "nodes: [{name: n, cpu: 1}]\n"
RANK = "allocations[0].ranks[0]"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def of_rank(text: str) -> str:
    return f"allocations: [{{name: a, ranks: [{{{text}}}]}}]"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (of_rank("affinity: {podAfinity: {}}"), f"{RANK}.affinity.podAfinity: unknown field"),
        (
            of_rank(f"affinity: {{podAffinity: {{{REQUIRED}: [{{}}]}}}}"),
            f"{RANK}.affinity.podAffinity.{REQUIRED}[0].topologyKey: required",
        ),
        (
            of_rank(f"affinity: {{podAntiAffinity: {{{REQUIRED}: [{{topologyKey: ''}}]}}}}"),
            f"{RANK}.affinity.podAntiAffinity.{REQUIRED}[0].topologyKey: ",
        ),
        (
            of_rank(
                f"affinity: {{podAffinity: {{{PREFERRED}: [{{weight: 0, podAffinityTerm: {{topologyKey: k}}}}]}}}}"
            ),
            f"{RANK}.affinity.podAffinity.{PREFERRED}[0].weight: ",
        ),
        (
            of_rank(f"affinity: {{nodeAffinity: {{{REQUIRED}: {{nodeSelectorTerms: []}}}}}}"),
            f"{RANK}.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms: ",
        ),
        (
            of_rank("topologySpreadConstraints: [{topologyKey: zone, maxSkew: 0}]"),
            f"{RANK}.topologySpreadConstraints[0].maxSkew: ",
        ),
        (of_rank("topologySpreadConstraints: [{maxSkew: 1}]"), f"{RANK}.topologySpreadConstraints[0].topologyKey: "),
        (
            of_rank("topologySpreadConstraints: [{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: Maybe}]"),
            f"{RANK}.topologySpreadConstraints[0].whenUnsatisfiable: ",
        ),
        (of_rank("volumes: [gone]"), f"{RANK}.volumes[0]: there is no volume gone"),
        ("volumes: [{name: v}, {name: v}]", "volumes[1].name: v is defined twice"),
        ("volumes: [{name: v, zone: a}]", "volumes[0].zone: unknown field"),
        ("pool: {args: {LeastAllocated: {resources: {cpu: -1}}}}", "pool.args.LeastAllocated.resources.cpu: "),
        ("pool: {args: {Nonsense: {}}}", "pool.args.Nonsense: "),
        ("pool: {sampling: often}", "pool.sampling: "),
    ],
)
def test_bad_neighbours(text: str, complaint: str) -> None:
    """A bad field is refused; none is ignored or half understood."""
    with pytest.raises(InvalidError) as caught:
        decode(NODES + text)
    assert str(caught.value).startswith(complaint)


def test_images_have_a_size() -> None:
    """A bad size is refused with the path of the node's image."""
    with pytest.raises(InvalidError) as caught:
        decode('nodes: [{name: n, images: {"a:1": -5}}]')
    assert str(caught.value).startswith("nodes[0].images.a:1: ")
