"""What a pod asks for, as Kubernetes counts it.

Source: k8s.io/component-helpers/resource/helpers.go v0.36 (PodRequests): the sum over containers and sidecars, raised
to the largest init container step; what the pod itself asks for takes the place of that; overhead comes on top. A limit
without a request is the request. During a resize the largest counts: what is asked for, granted and in force.
"""

from collections.abc import Mapping, Sequence

import msgspec

from slipway.model.quantity import QuantityValue
from slipway.model.resources import CPU, MEMORY, Resources

Quantities = Mapping[str, QuantityValue]
HUGE_PAGES_PREFIX = "hugepages-"
NOTHING: Quantities = {}
UNSTATED: Quantities = {CPU: "100m", MEMORY: 200 * 1024 * 1024}
"""What a container without a request counts as in scoring. Source: kube-scheduler's util/pod_resources.go."""


class ContainerAsk(msgspec.Struct, frozen=True):
    """One container's resources; `sidecar` is an init container with restartPolicy Always.

    `held` is what the kubelet reports as granted and as in force, while that differs from the requests; with
    `is_resize_refused` the node can never grant these, so that only what is held counts.
    """

    requests: Quantities = {}
    limits: Quantities = {}
    sidecar: bool = False
    held: tuple[Quantities, ...] = ()
    is_resize_refused: bool = False
    name: str = ""

    def amounts(self, unstated: Quantities = NOTHING) -> Resources:
        """Requests, filled up from the limits and then from `unstated`, at least what is held."""
        if not self.held:
            return Resources.parse({**unstated, **self.limits, **self.requests})
        stated = {**unstated, **self.limits, **self.requests}
        amounts = Resources() if self.is_resize_refused else Resources.parse(stated)
        for held in self.held:
            amounts = amounts.at_least(Resources.parse(held))
        return amounts


class PodAsk(msgspec.Struct, frozen=True):
    """The resources of a pod that is to be made: of its containers, and what its RuntimeClass adds."""

    containers: tuple[ContainerAsk, ...] = ()
    init_containers: tuple[ContainerAsk, ...] = ()
    overhead: Quantities = NOTHING

    def requests(self, unstated: Quantities = NOTHING) -> Resources:
        """The pod's effective request; `unstated` is what a container counts as that states no request.

        Raises:
            ValueError: a bad quantity; the message names the resource.
        """
        return effective_requests(self.containers, self.init_containers, self.overhead, unstated=unstated)

    def limits(self) -> Resources:
        """What the pod may use at most, as Kubernetes counts it; without what states no limit.

        Raises:
            ValueError: a bad quantity; the message names the resource.
        """
        containers, inits = (
            [ContainerAsk(requests=each.limits, sidecar=each.sidecar) for each in group]
            for group in (self.containers, self.init_containers)
        )
        limits = effective_requests(containers, inits)
        overhead = Resources.parse(self.overhead)
        return limits + Resources.of({name: amount for name, amount in overhead.amounts.items() if limits.get(name)})


def effective_requests(
    containers: Sequence[ContainerAsk],
    init_containers: Sequence[ContainerAsk] = (),
    overhead: Quantities | None = None,
    *,
    own: ContainerAsk | None = None,
    unstated: Quantities = NOTHING,
) -> Resources:
    """The pod's effective request; `own` is what the pod itself asks for (`spec.resources`), `unstated` what a
    container counts as that states no request.

    Raises:
        ValueError: a bad quantity; the message names the resource.
    """
    running = Resources()
    sidecars = Resources()
    peak = Resources()
    for init in init_containers:
        if init.sidecar:
            sidecars = sidecars + init.amounts(unstated)
            peak = peak.at_least(sidecars)
        else:
            peak = peak.at_least(sidecars + init.amounts(unstated))
    for container in containers:
        running = running + container.amounts(unstated)
    result = (running + sidecars).at_least(peak)
    if own is not None:
        amounts = own.amounts()
        replaced = {name: amounts.get(name) for name in own.requests if is_pod_level(name)}
        result = Resources.of({**result.amounts, **replaced})
    return result + Resources.parse(overhead) if overhead else result


def scored_requests(plain: Resources, filled: Resources) -> Resources:
    """cpu and memory of `filled` (with UNSTATED) where they say more than `plain`; nothing when they do not."""
    if all(filled.get(name) == plain.get(name) for name in (CPU, MEMORY)):
        return Resources()
    return Resources.of({name: filled.get(name) for name in (CPU, MEMORY)})


def is_pod_level(name: str) -> bool:
    """Whether a pod itself can ask for the resource."""
    return name in (CPU, MEMORY) or name.startswith(HUGE_PAGES_PREFIX)
