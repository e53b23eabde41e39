"""The Kubernetes resources that Slipway uses: the API path of each, and the struct that decodes its objects."""

import functools
from typing import Any, Generic, TypeVar

import msgspec

from slipway.crd import meta, v1alpha1
from slipway.crd.meta import API_GROUP, API_VERSION
from slipway.kube import objects

T = TypeVar("T")


class Resource(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One resource of the API; `struct` is the type to which its objects are decoded."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    struct: type[T]
    nameless: bool = False
    """a review: the API server answers it without storing it, so it may have no name"""
    is_brief: bool = False
    """the server returns only the metadata; see `brief`"""

    @property
    def api_version(self) -> str:
        """`v1` or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the URL path of the collection, an object or a subresource."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if self.namespaced and namespace:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        parts.extend(part for part in (name, subresource) if part)
        return "/".join(parts)


class MetadataOnly(msgspec.Struct, frozen=True, kw_only=True):
    """An object of which only the metadata is read."""

    metadata: meta.ObjectMeta


@functools.cache
def brief(resource: Resource[Any]) -> Resource[MetadataOnly]:
    """Return the resource for reads of metadata only: the server then encodes only the metadata of each object."""
    return msgspec.structs.replace(resource, struct=MetadataOnly, is_brief=True)


ALLOCATIONS = Resource(
    group=API_GROUP,
    version=API_VERSION,
    plural="allocations",
    kind="Allocation",
    namespaced=True,
    struct=v1alpha1.Allocation,
)
RESOURCE_POOLS = Resource(
    group=API_GROUP,
    version=API_VERSION,
    plural="resourcepools",
    kind="ResourcePool",
    namespaced=False,
    struct=v1alpha1.ResourcePool,
)
QUEUES = Resource(
    group=API_GROUP, version=API_VERSION, plural="queues", kind="Queue", namespaced=False, struct=v1alpha1.Queue
)
JOBS = Resource(group=API_GROUP, version=API_VERSION, plural="jobs", kind="Job", namespaced=True, struct=v1alpha1.Job)
TEMPLATES = Resource(
    group=API_GROUP, version=API_VERSION, plural="templates", kind="Template", namespaced=True, struct=v1alpha1.Template
)
PODS = Resource(group="", version="v1", plural="pods", kind="Pod", namespaced=True, struct=objects.Pod)
POD_TEMPLATES = Resource(
    group="", version="v1", plural="podtemplates", kind="PodTemplate", namespaced=True, struct=objects.PodTemplate
)
PROVISIONING_REQUESTS = Resource(
    group="autoscaling.x-k8s.io",
    version="v1",
    plural="provisioningrequests",
    kind="ProvisioningRequest",
    namespaced=True,
    struct=objects.ProvisioningRequest,
)
POD_GROUPS = Resource(
    group="scheduling.k8s.io",
    version="v1beta1",
    plural="podgroups",
    kind="PodGroup",
    namespaced=True,
    struct=MetadataOnly,
)
NODES = Resource(group="", version="v1", plural="nodes", kind="Node", namespaced=False, struct=objects.Node)
CONFIG_MAPS = Resource(
    group="", version="v1", plural="configmaps", kind="ConfigMap", namespaced=True, struct=objects.ConfigMap
)
SECRETS = Resource(group="", version="v1", plural="secrets", kind="Secret", namespaced=True, struct=objects.Secret)
SERVICES = Resource(group="", version="v1", plural="services", kind="Service", namespaced=True, struct=objects.Service)
VOLUME_CLAIMS = Resource(
    group="",
    version="v1",
    plural="persistentvolumeclaims",
    kind="PersistentVolumeClaim",
    namespaced=True,
    struct=objects.VolumeClaim,
)
PERSISTENT_VOLUMES = Resource(
    group="",
    version="v1",
    plural="persistentvolumes",
    kind="PersistentVolume",
    namespaced=False,
    struct=objects.PersistentVolume,
)
STORAGE_CLASSES = Resource(
    group="storage.k8s.io",
    version="v1",
    plural="storageclasses",
    kind="StorageClass",
    namespaced=False,
    struct=objects.StorageClass,
)
NAMESPACES = Resource(
    group="", version="v1", plural="namespaces", kind="Namespace", namespaced=False, struct=objects.Namespace
)
TOKEN_REVIEWS = Resource(
    group="authentication.k8s.io",
    version="v1",
    plural="tokenreviews",
    kind="TokenReview",
    namespaced=False,
    struct=objects.TokenReview,
    nameless=True,
)
SUBJECT_ACCESS_REVIEWS = Resource(
    group="authorization.k8s.io",
    version="v1",
    plural="subjectaccessreviews",
    kind="SubjectAccessReview",
    namespaced=False,
    struct=objects.SubjectAccessReview,
    nameless=True,
)
RESOURCE_QUOTAS = Resource(
    group="", version="v1", plural="resourcequotas", kind="ResourceQuota", namespaced=True, struct=objects.ResourceQuota
)
LIMIT_RANGES = Resource(
    group="", version="v1", plural="limitranges", kind="LimitRange", namespaced=True, struct=objects.LimitRange
)
EVENTS = Resource(group="", version="v1", plural="events", kind="Event", namespaced=True, struct=objects.KubeEvent)
STORY_EVENTS = Resource(
    group="events.k8s.io", version="v1", plural="events", kind="Event", namespaced=True, struct=objects.OwnEvent
)
LEASES = Resource(
    group="coordination.k8s.io", version="v1", plural="leases", kind="Lease", namespaced=True, struct=objects.Lease
)
CRDS = Resource(
    group="apiextensions.k8s.io",
    version="v1",
    plural="customresourcedefinitions",
    kind="CustomResourceDefinition",
    namespaced=False,
    struct=objects.CustomResourceDefinition,
)
