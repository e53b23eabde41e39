"""A pod as a node reads it: the object's metadata as structs, spec and status as plain JSON.

Owns the resources that a node reads completely, and small derived facts about a pod. Pure. The spec stays JSON, because
a node reads fields that no other part of Slipway knows. The metadata is complete, because a write of the status sends
it back.
"""

from slipway.crd.meta import ObjectMeta, RawObject
from slipway.crd.roleresources import JsonMap, object_of, objects_of
from slipway.crd.v1alpha1 import Wire
from slipway.kube.resources import Resource
from slipway.model.podresources import ContainerResources, effective_requests
from slipway.model.resources import PODS as POD_COUNT
from slipway.model.resources import Resources

GRACE_S = 30
OVER = ("Succeeded", "Failed")


class NodePod(Wire, kw_only=True, frozen=True):
    """A complete pod."""

    metadata: ObjectMeta
    spec: RawObject = {}
    status: RawObject = {}

    @property
    def node(self) -> str:
        """The node that the pod is bound to; empty while it is unbound."""
        return str(self.spec.get("nodeName") or "")

    @property
    def phase(self) -> str:
        return str(self.status.get("phase") or "Pending")

    @property
    def is_over(self) -> bool:
        """Whether the pod's end has been reported."""
        return self.phase in OVER

    @property
    def is_deleting(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def hostname(self) -> str:
        """The pod's hostname: the spec's, else the pod's name."""
        return str(self.spec.get("hostname") or self.metadata.name)

    @property
    def subdomain(self) -> str:
        return str(self.spec.get("subdomain") or "")

    @property
    def restart_policy(self) -> str:
        return str(self.spec.get("restartPolicy") or "Always")

    @property
    def grace_s(self) -> float:
        """Seconds between SIGTERM and SIGKILL: the deletion's value, else the spec's."""
        asked = self.metadata.deletion_grace_period_seconds
        if asked is None:
            asked = self.spec.get("terminationGracePeriodSeconds")
        return float(GRACE_S if asked is None else asked)

    @property
    def containers(self) -> list[JsonMap]:
        return objects_of(self.spec.get("containers"))

    @property
    def init_containers(self) -> list[JsonMap]:
        return objects_of(self.spec.get("initContainers"))

    def asks(self) -> Resources:
        """Return the effective request, including one of the resource `pods`.

        Raises:
            ValueError: a quantity is invalid.
        """
        asked = effective_requests(
            [_container_resources(container) for container in self.containers],
            [_container_resources(container) for container in self.init_containers],
            object_of(self.spec.get("overhead")),
        )
        return asked + Resources.of({POD_COUNT: 1})

    def reported(self, container: str) -> JsonMap:
        """Return the last reported state of a container; empty when none was reported."""
        for field in ("containerStatuses", "initContainerStatuses"):
            for status in objects_of(self.status.get(field)):
                if status.get("name") == container:
                    return object_of(status.get("state"))
        return {}


class ConfigSource(Wire, kw_only=True, frozen=True):
    """A ConfigMap or a Secret. Base64 values are in `data` of a Secret and in `binary_data` of a ConfigMap."""

    metadata: ObjectMeta
    data: dict[str, str] = {}
    binary_data: dict[str, str] = {}


class PlainNode(Wire, kw_only=True, frozen=True):
    """A complete Node."""

    metadata: ObjectMeta
    spec: RawObject = {}
    status: RawObject = {}


PODS: Resource[NodePod] = Resource(group="", version="v1", plural="pods", kind="Pod", namespaced=True, struct=NodePod)
NODES: Resource[PlainNode] = Resource(
    group="", version="v1", plural="nodes", kind="Node", namespaced=False, struct=PlainNode
)
CONFIG_MAPS: Resource[ConfigSource] = Resource(
    group="", version="v1", plural="configmaps", kind="ConfigMap", namespaced=True, struct=ConfigSource
)
SECRETS: Resource[ConfigSource] = Resource(
    group="", version="v1", plural="secrets", kind="Secret", namespaced=True, struct=ConfigSource
)


class TokenRequest(Wire, kw_only=True, frozen=True):
    """The API server's answer to a request for a service account's token."""

    status: RawObject = {}


class AccountTokens(Resource[TokenRequest], kw_only=True, frozen=True):
    """The subresource that creates tokens of a service account; its body belongs to another API group."""

    account: str

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the URL path of the subresource."""
        return f"/api/v1/namespaces/{namespace}/serviceaccounts/{self.account}/token"


def tokens_of(account: str) -> AccountTokens:
    """Return the token subresource of the account."""
    return AccountTokens(
        group="authentication.k8s.io",
        version="v1",
        plural="serviceaccounts/token",
        kind="TokenRequest",
        namespaced=True,
        struct=TokenRequest,
        account=account,
    )


def is_sidecar(container: JsonMap) -> bool:
    """Whether an init container is a sidecar, which runs next to the other containers."""
    return container.get("restartPolicy") == "Always"


def _container_resources(container: JsonMap) -> ContainerResources:
    resources = object_of(container.get("resources"))
    return ContainerResources(
        requests=object_of(resources.get("requests")),
        limits=object_of(resources.get("limits")),
        sidecar=is_sidecar(container),
    )
