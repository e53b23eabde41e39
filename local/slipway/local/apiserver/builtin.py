"""The built-in kinds that the local cluster serves.

Owns one table. Invariant: a kind that is neither in this table nor declared by a CustomResourceDefinition is a 404.
"""

from slipway.local.apiserver import (
    admission,
    columns,
    custom,
    disruption,
    event_objects,
    limitranges,
    podgroups,
    rbac,
    services,
    workloads,
)
from slipway.local.apiserver.pods import PodStrategy
from slipway.local.apiserver.registry import ResourceKind

_POD_FIELDS = {
    "status.phase": ("status", "phase"),
    "status.podIP": ("status", "podIP"),
    "spec.nodeName": ("spec", "nodeName"),
    "spec.restartPolicy": ("spec", "restartPolicy"),
    "spec.schedulerName": ("spec", "schedulerName"),
    "spec.serviceAccountName": ("spec", "serviceAccountName"),
    "status.nominatedNodeName": ("status", "nominatedNodeName"),
}


def builtin_kinds(definitions: custom.DefinitionStrategy) -> tuple[ResourceKind, ...]:
    return (
        _pods(PodStrategy()),
        ResourceKind(
            plural="configmaps", kind="ConfigMap", short_names=("cm",), strategy=admission.ConfigMapStrategy(),
            columns=columns.CONFIG_MAPS,
        ),
        ResourceKind(
            plural="secrets", kind="Secret", strategy=admission.SecretStrategy(), fields={"type": ("type",)},
            columns=columns.SECRETS,
        ),
        ResourceKind(
            plural="services", kind="Service", short_names=("svc",), categories=("all",),
            strategy=services.ServiceStrategy(), columns=columns.SERVICES, subresources=("status",),
        ),
        *event_objects.kinds(),
        ResourceKind(
            plural="namespaces", kind="Namespace", namespaced=False, short_names=("ns",),
            strategy=admission.NamespaceStrategy(), fields={"status.phase": ("status", "phase")},
            columns=columns.NAMESPACES, subresources=("finalize", "status"), lacks=("deletecollection",),
        ),
        ResourceKind(
            plural="nodes", kind="Node", namespaced=False, short_names=("no",), strategy=admission.NodeStrategy(),
            fields={"spec.unschedulable": ("spec", "unschedulable")}, columns=columns.NODES, subresources=("status",),
        ),
        ResourceKind(
            plural="serviceaccounts", kind="ServiceAccount", short_names=("sa",),
            strategy=admission.ServiceAccountStrategy(), subresources=("token",),
        ),
        ResourceKind(
            plural="resourcequotas", kind="ResourceQuota", short_names=("quota",), strategy=admission.QuotaStrategy(),
            subresources=("status",),
        ),
        ResourceKind(
            plural="limitranges", kind="LimitRange", short_names=("limits",), strategy=limitranges.LimitRangeStrategy(),
        ),
        ResourceKind(
            plural="persistentvolumeclaims", kind="PersistentVolumeClaim", short_names=("pvc",),
            strategy=admission.ClaimStrategy(), columns=columns.CLAIMS, subresources=("status",),
        ),
        ResourceKind(
            group="coordination.k8s.io", plural="leases", kind="Lease", strategy=admission.LeaseStrategy(),
            columns=columns.LEASES,
        ),
        ResourceKind(
            group="scheduling.k8s.io", plural="priorityclasses", kind="PriorityClass", namespaced=False,
            short_names=("pc",), strategy=admission.PriorityClassStrategy(),
        ),
        ResourceKind(
            group="policy", plural="poddisruptionbudgets", kind="PodDisruptionBudget", short_names=("pdb",),
            strategy=disruption.BudgetStrategy(), columns=columns.BUDGETS, subresources=("status",),
        ),
        *_rbac_kinds(),
        *workloads.kinds(),
        ResourceKind(
            group="apiextensions.k8s.io", plural="customresourcedefinitions", kind="CustomResourceDefinition",
            namespaced=False, short_names=("crd", "crds"), categories=("api-extensions",), strategy=definitions,
            columns=columns.DEFINITIONS, subresources=("status",),
        ),
    )  # fmt: skip


def pod_group_kinds() -> tuple[ResourceKind, ...]:
    """Return the kinds PodGroup and Pod, where a pod may name its group."""
    groups = ResourceKind(
        group=podgroups.GROUP,
        version=podgroups.VERSION,
        plural=podgroups.PLURAL,
        kind="PodGroup",
        strategy=podgroups.PodGroupStrategy(),
        columns=columns.POD_GROUPS,
        subresources=("status",),
    )
    return groups, _pods(PodStrategy(has_groups=True))


def _pods(strategy: PodStrategy) -> ResourceKind:
    return ResourceKind(
        plural="pods",
        kind="Pod",
        short_names=("po",),
        categories=("all",),
        strategy=strategy,
        fields=_POD_FIELDS,
        columns=columns.PODS,
        subresources=("binding", "eviction", "exec", "log", "status"),
    )


def _rbac_kinds() -> tuple[ResourceKind, ...]:
    kinds = (
        ("roles", "Role", True, rbac.RoleStrategy()),
        ("rolebindings", "RoleBinding", True, rbac.BindingStrategy()),
        ("clusterroles", "ClusterRole", False, rbac.ClusterRoleStrategy()),
        ("clusterrolebindings", "ClusterRoleBinding", False, rbac.ClusterBindingStrategy()),
    )
    return tuple(
        ResourceKind(
            group=rbac.GROUP,
            plural=plural,
            kind=kind,
            namespaced=namespaced,
            strategy=strategy,
            columns=columns.ROLES if plural.endswith("roles") else columns.BINDINGS,
        )
        for plural, kind, namespaced, strategy in kinds
    )
