"""What a pod asks for, as Kubernetes counts it.

Source: k8s.io/component-helpers/resource/helpers.go (PodRequests): the sum over containers and sidecars, raised to
the largest init container step, plus overhead. A limit without a request is the request.
"""

from collections.abc import Mapping, Sequence

import msgspec

from slipway.model.quantity import QuantityValue
from slipway.model.resources import Resources


class ContainerAsk(msgspec.Struct, frozen=True):
    """One container's resources; `sidecar` is an init container with restartPolicy Always."""

    requests: Mapping[str, QuantityValue] = {}
    limits: Mapping[str, QuantityValue] = {}
    sidecar: bool = False

    def amounts(self) -> Resources:
        """Requests, filled up from the limits."""
        return Resources.parse({**self.limits, **self.requests})


def effective_requests(
    containers: Sequence[ContainerAsk],
    init_containers: Sequence[ContainerAsk] = (),
    overhead: Mapping[str, QuantityValue] | None = None,
) -> Resources:
    """The pod's effective request.

    Raises:
        ValueError: a bad quantity; the message names the resource.
    """
    running = Resources()
    sidecars = Resources()
    peak = Resources()
    for init in init_containers:
        if init.sidecar:
            sidecars = sidecars + init.amounts()
            peak = peak.at_least(sidecars)
        else:
            peak = peak.at_least(sidecars + init.amounts())
    for container in containers:
        running = running + container.amounts()
    result = (running + sidecars).at_least(peak)
    return result + Resources.parse(overhead) if overhead else result
