"""The resources that a pod requests, as Kubernetes computes them.

Source: k8s.io/component-helpers/resource/helpers.go v0.37 (PodRequests): the sum over containers and sidecars, raised
to the largest init container step. Requests of the pod itself replace that sum; the overhead is added. A limit without
a request is also the request. During a resize there are three sums: of the requests, of the amounts that the kubelet
has granted, and of those in force. For each resource the largest sum is used.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from slipway.model.resources import CPU, MEMORY, QuantityValue, Resources

Quantities = Mapping[str, QuantityValue]
HUGE_PAGES_PREFIX = "hugepages-"
NOTHING: Quantities = {}
UNSTATED: Quantities = {CPU: "100m", MEMORY: 200 * 1024 * 1024}
"""The requests that scoring assumes for a container without a request. Source: kube-scheduler's
util/pod_resources.go."""


class ContainerResources(msgspec.Struct, frozen=True):
    """One container's resources; `sidecar` is an init container with restartPolicy Always.

    `granted` and `in_force` are the amounts that the kubelet reports; they are empty when it reports none.
    """

    requests: Quantities = {}
    limits: Quantities = {}
    sidecar: bool = False
    granted: Quantities = {}
    in_force: Quantities = {}
    name: str = ""

    def asked(self, unstated: Quantities = NOTHING) -> Quantities:
        """Return the requests; a missing one is the limit, or else the amount in `unstated`."""
        return {**unstated, **self.limits, **self.requests}


class KubeletAmounts(msgspec.Struct, frozen=True):
    """The amounts that the kubelet reports for the whole pod, and whether its node can never grant the requests.

    After a refused resize the requests are ignored: only the amounts that the kubelet reports are used.
    """

    granted: Quantities = {}
    in_force: Quantities = {}
    is_reported: bool = False
    """whether the kubelet reports resources in force"""
    is_resize_refused: bool = False


class PodResources(msgspec.Struct, frozen=True):
    """The resources of a pod before its creation: those of its containers, and the overhead of its RuntimeClass."""

    containers: tuple[ContainerResources, ...] = ()
    init_containers: tuple[ContainerResources, ...] = ()
    overhead: Quantities = NOTHING

    def requests(self, unstated: Quantities = NOTHING) -> Resources:
        """Return the effective request of the pod; `unstated` are the requests assumed for a container without a
        request.

        Raises:
            ValueError: a bad quantity; the message names the resource.
        """
        return effective_requests(self.containers, self.init_containers, self.overhead, unstated=unstated)

    def limits(self) -> Resources:
        """Return the limits of the whole pod, as Kubernetes computes them; a resource without a limit is absent.

        Raises:
            ValueError: a bad quantity; the message names the resource.
        """
        containers, inits = (
            [ContainerResources(requests=each.limits, sidecar=each.sidecar) for each in group]
            for group in (self.containers, self.init_containers)
        )
        limits = effective_requests(containers, inits)
        overhead = Resources.parse(self.overhead)
        return limits + Resources.of({name: amount for name, amount in overhead.amounts.items() if limits.get(name)})


def effective_requests(
    containers: Sequence[ContainerResources],
    init_containers: Sequence[ContainerResources] = (),
    overhead: Quantities | None = None,
    *,
    own: Quantities = NOTHING,
    held: KubeletAmounts | None = None,
    unstated: Quantities = NOTHING,
) -> Resources:
    """Return the effective request of a pod.

    `own` are the requests of the pod itself (`spec.resources`). `unstated` are the requests assumed for a container
    without a request. `held` is the report of the kubelet; None: only the requests are used.

    Raises:
        ValueError: a bad quantity; the message names the resource.
    """
    result = _summed(containers, init_containers, lambda each: each.asked(unstated))
    if held is not None:
        result = _with_held(result, containers, init_containers, held, unstated)
    if any(map(is_pod_level, own)):
        amounts = _own(own, held)
        result = Resources.of({**result.amounts, **{name: amounts[name] for name in amounts if is_pod_level(name)}})
    return result + Resources.parse(overhead) if overhead else result


def _summed(
    containers: Sequence[ContainerResources],
    init_containers: Sequence[ContainerResources],
    amounts_of: Callable[[ContainerResources], Quantities],
) -> Resources:
    running = Resources()
    sidecars = Resources()
    peak = Resources()
    for init in init_containers:
        amounts = Resources.parse(amounts_of(init))
        if init.sidecar:
            sidecars = sidecars + amounts
            peak = peak.at_least(sidecars)
        else:
            peak = peak.at_least(sidecars + amounts)
    for container in containers:
        running = running + Resources.parse(amounts_of(container))
    return (running + sidecars).at_least(peak)


def _with_held(
    asked: Resources,
    containers: Sequence[ContainerResources],
    init_containers: Sequence[ContainerResources],
    held: KubeletAmounts,
    unstated: Quantities,
) -> Resources:
    """Return the largest of requested, granted and in-force amounts; without the requested ones when the resize is
    refused."""

    def granted(each: ContainerResources) -> Quantities:
        if each.granted:
            return {**unstated, **each.granted}
        return unstated if held.is_resize_refused else each.asked(unstated)

    def in_force(each: ContainerResources) -> Quantities:
        return {**unstated, **each.in_force} if each.in_force else granted(each)

    if held.granted and held.in_force:
        result = Resources.parse(held.granted).at_least(Resources.parse(held.in_force))
    else:
        result = _summed(containers, init_containers, granted)
        result = result.at_least(_summed(containers, init_containers, in_force))
    return result if held.is_resize_refused else result.at_least(asked)


def _own(own: Quantities, held: KubeletAmounts | None) -> Mapping[str, int]:
    """Return {resource: units} of the requests of the pod itself, or of the kubelet's amounts where they are larger."""
    if held is None or not held.is_reported:
        return Resources.parse(own).amounts
    amounts = Resources.parse(held.granted).at_least(Resources.parse(held.in_force))
    return (amounts if held.is_resize_refused else amounts.at_least(Resources.parse(own))).amounts


def scored_requests(plain: Resources, filled: Resources) -> Resources:
    """Return cpu and memory of `filled` (with UNSTATED) when they differ from `plain`; no amounts when they do not."""
    if all(filled.get(name) == plain.get(name) for name in (CPU, MEMORY)):
        return Resources()
    return Resources.of({name: filled.get(name) for name in (CPU, MEMORY)})


def is_pod_level(name: str) -> bool:
    """Whether a pod itself (`spec.resources`) can request the resource."""
    return name in (CPU, MEMORY) or name.startswith(HUGE_PAGES_PREFIX)
