"""The admission of a pod by its node: what a kubelet refuses, and in which words.

Owns the sums of one node and the match of selectors, affinity and NoExecute taints. Pure.

Invariant: the pods never hold more than the node has, except pods that ran before they were counted.

Source: pkg/kubelet/lifecycle/predicate.go, pkg/kubelet/cm/devicemanager/manager.go (behaviour and words, v1.36).
"""

from collections.abc import Mapping, Sequence

from slipway.model.podresources import ContainerResources, effective_requests
from slipway.model.resources import PODS, Resources
from tests.conformance.kubelets.objects import Container, Pod, Taint, Term, Toleration
from tests.conformance.kubelets.status import Rejection

UNEXPECTED = "UnexpectedAdmissionError"
SHUTDOWN = Rejection(reason="NodeShutdown", message="Pod was rejected as the node is shutting down.")
_ORDER = (PODS, "cpu", "memory", "ephemeral-storage")
_NOT_AFFINE = Rejection(
    reason="NodeAffinity", message="Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
)
_NOT_TOLERATED = Rejection(
    reason="TaintToleration",
    message="Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
)


class NodeResources:
    """The resources of one node and the pods that hold them."""

    def __init__(self, allocatable: Resources) -> None:
        self.allocatable = allocatable
        self._held: dict[str, Resources] = {}
        self._used: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, pod: Pod) -> None:
        """Count a pod that already runs."""
        self._take(pod.uid, asks_of(pod))

    def admit(self, pod: Pod) -> Rejection | None:
        """Count the pod, or return what is missing."""
        if pod.uid in self._held:
            return None
        try:
            asks = asks_of(pod)
        except ValueError as error:
            return Rejection(reason=UNEXPECTED, message=str(error))
        shortage = self._lacks_devices(pod.spec.containers) or self._lacks(asks)
        if shortage is None:
            self._take(pod.uid, asks)
        return shortage

    def release(self, uid: str) -> None:
        """Release what the pod held; nothing of it runs any more."""
        held = self._held.pop(uid, None)
        for name, amount in held.amounts.items() if held else ():
            self._used[name] -= amount

    def _take(self, uid: str, asks: Resources) -> None:
        """Count the pod once, however often this is called."""
        self.release(uid)
        self._held[uid] = asks
        for name, amount in asks.amounts.items():
            self._used[name] = self._used.get(name, 0) + amount

    def _lacks(self, asks: Resources) -> Rejection | None:
        """The first resource that does not fit. A resource that the node does not know is left to its own manager."""
        for name in (*_ORDER, *sorted(set(asks) - set(_ORDER))):
            wanted, has, used = asks.get(name), self.allocatable.get(name), self._used.get(name, 0)
            if not wanted or (is_extended(name) and name not in self.allocatable.amounts):
                continue
            if used + wanted > has:
                words = f"{name}, requested: {wanted}, used: {used}, capacity: {has}"
                return Rejection(reason=f"OutOf{name}", message=f"Node didn't have enough resource: {words}")
        return None

    def _lacks_devices(self, containers: Sequence[Container]) -> Rejection | None:
        """Device plugins are asked first, container by container."""
        taken: dict[str, int] = {}
        for container in containers:
            for name, quantity in container.resources.limits.items():
                if not is_extended(name) or name not in self.allocatable.amounts:
                    continue
                free = self.allocatable.get(name) - self._used.get(name, 0) - taken.get(name, 0)
                wanted = Resources.parse({name: quantity}).get(name)
                if wanted > free:
                    count = f"{name}. Requested: {wanted}, Available: {free}"
                    message = f"requested number of devices unavailable for {count}"
                    return Rejection(
                        reason=UNEXPECTED, message=f"Allocate failed due to {message}, which is unexpected"
                    )
                taken[name] = taken.get(name, 0) + wanted
        return None


def asks_of(pod: Pod) -> Resources:
    """The effective request, including the pod itself.

    Raises:
        ValueError: a quantity is invalid.
    """
    inits = [_ask(item) for item in pod.spec.init_containers]
    asked = effective_requests([_ask(item) for item in pod.spec.containers], inits, pod.spec.overhead)
    return asked + Resources.of({PODS: 1})


def is_extended(resource: str) -> bool:
    """Whether the resource is not one of Kubernetes' own."""
    return "/" in resource and "kubernetes.io/" not in resource


def mismatch(pod: Pod, name: str, labels: Mapping[str, str], taints: Sequence[Taint]) -> Rejection | None:
    """Why the pod may not be on this node, whatever resources are free."""
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return _NOT_AFFINE
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    if affinity is not None and affinity.required is not None:
        # A term without expressions matches nothing.
        named = {"metadata.name": name}
        if not any(
            (term.match_expressions or term.match_fields)
            and all(_holds(each, labels) for each in term.match_expressions)
            and all(_holds(each, named) for each in term.match_fields)
            for term in affinity.required.node_selector_terms
        ):
            return _NOT_AFFINE
    for taint in taints:
        if taint.effect == "NoExecute" and not any(_tolerates(each, taint) for each in pod.spec.tolerations):
            return _NOT_TOLERATED
    return None


def _ask(container: Container) -> ContainerResources:
    return ContainerResources(
        requests=container.resources.requests, limits=container.resources.limits, sidecar=container.is_sidecar
    )


def _holds(term: Term, labels: Mapping[str, str]) -> bool:
    value = labels.get(term.key)
    match term.operator:
        case "In":
            return value is not None and value in term.values
        case "NotIn":
            return value is None or value not in term.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            numbers = [text for text in (value, *term.values) if text is not None and text.lstrip("-").isdigit()]
            if len(numbers) != 2:
                return False
            return int(numbers[0]) > int(numbers[1]) if term.operator == "Gt" else int(numbers[0]) < int(numbers[1])
        case _:
            return False


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value
