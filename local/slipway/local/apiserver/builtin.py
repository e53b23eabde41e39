"""The built-in kinds that the local cluster serves.

One table lists them. Invariant: a kind that is neither in this table nor declared by a CustomResourceDefinition is a
404.

Event objects have two forms, that of the core group and that of events.k8s.io. Both share one storage room, and each
form has its own checks. Invariants: an Event written in one form can be read in the other without loss; the newer form
is checked strictly, and only its series may change.

Source: pkg/apis/core/validation/events.go, pkg/apis/events/v1/conversion.go, pkg/registry/core/event (v1.37).

Charts contain kinds that no local controller handles: Deployments, Jobs, Ingresses and others. Clients store, read and
patch these objects as in any cluster, but no controller creates pods for them. Invariant: a stored object has the
defaults that `kubectl` and Helm expect.

Source: pkg/apis/{apps,batch,networking,autoscaling}/v*/defaults.go and validation (behaviour, v1.37).
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from slipway.local.apiserver import admission, custom, disruption, limitranges, podgroups, pods, rbac, services, table
from slipway.local.apiserver.admission import Strategy
from slipway.local.apiserver.objects import Json, clone, is_map, listing, mapping, metadata
from slipway.local.apiserver.options import WriteOptions
from slipway.local.apiserver.pods import PodStrategy
from slipway.local.apiserver.registry import ResourceKind, VersionView
from slipway.local.apiserver.selectors import selects
from slipway.local.apiserver.status import FieldCause, bad_value, missing
from slipway.local.apiserver.table import DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS

_GROUP = "events.k8s.io"
_ROOM = "events"
_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_CORE_NAMES = {new: old for old, new in _NAMES.items()}
_REFERENCE = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_LENGTHS = {"reportingInstance": 128, "action": 128, "reason": 128, "message": 1024}
_FIXED = (
    *("involvedObject", "reason", "message", "source", "firstTimestamp", "lastTimestamp", "count", "type"),
    *("action", "related", "reportingComponent", "reportingInstance"),
)


class EventStrategy(Strategy):
    allows_create_on_update = True
    controller_field: ClassVar[str] = "reportingComponent"

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        return _loose_causes(obj, self.controller_field)


class NewEventStrategy(EventStrategy):
    controller_field = "reportingController"

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        core = _to_core(obj)
        causes = super().check(core, None)
        if old is None:
            return causes + _series_causes(core) + _strict_causes(core)
        before = _to_core(old)
        if core.get("series") != before.get("series"):
            causes += _series_causes(core)
        fixed = [field for field in _FIXED if (core.get(field) or None) != (before.get(field) or None)]
        names = {"reportingComponent": "reportingController"}
        return causes + [bad_value(names.get(field, field), core.get(field), "field is immutable") for field in fixed]


def event_kinds() -> tuple[ResourceKind, ResourceKind]:
    common = {"reason": ("reason",), "type": ("type",)}
    core = {f"involvedObject.{name}": ("involvedObject", name) for name in _REFERENCE}
    new = {f"regarding.{name}": ("involvedObject", name) for name in _REFERENCE}
    return (
        ResourceKind(
            plural="events",
            kind="Event",
            short_names=("ev",),
            strategy=EventStrategy(),
            fields={
                **common,
                **core,
                "reportingComponent": ("reportingComponent",),
                "source": ("source", "component"),
            },
            columns=table.EVENTS,
        ),
        ResourceKind(
            group=_GROUP,
            plural="events",
            kind="Event",
            short_names=("ev",),
            strategy=NewEventStrategy(),
            fields={**common, **new, "reportingController": ("reportingComponent",)},
            columns=table.EVENTS,
            is_stored=False,
            room=_ROOM,
            view=VersionView(show=_to_new, keep=_to_core),
        ),
    )


def _to_new(obj: Json) -> Json:
    shown = {_NAMES.get(field, field): value for field, value in obj.items()}
    return {**shown, "apiVersion": f"{_GROUP}/v1"}


def _to_core(obj: Json) -> Json:
    stored = {_CORE_NAMES.get(field, field): value for field, value in obj.items()}
    return {**stored, "apiVersion": "v1"}


def _loose_causes(event: Json, controller_field: str) -> list[FieldCause]:
    own = str(metadata(event).get("namespace") or "")
    involved = str(mapping(event, "involvedObject").get("namespace") or "")
    words = "does not match event.namespace"
    if not event.get("eventTime"):
        agrees = involved == own if involved else own in ("", "default")
        return [] if agrees else [bad_value("involvedObject.namespace", involved, words)]
    causes = list[FieldCause]()
    if not involved and own not in ("default", "kube-system"):
        causes.append(bad_value("involvedObject.namespace", involved, words))
    required = (("reportingComponent", controller_field), ("reportingInstance", "reportingInstance"))
    for field, shown in (*required, ("action", "action"), ("reason", "reason")):
        if not event.get(field):
            causes.append(missing(shown))
    for field, longest in _LENGTHS.items():
        if len(str(event.get(field) or "")) > longest:
            causes.append(bad_value(field, "", f"can have at most {longest} characters"))
    return causes


def _strict_causes(event: Json) -> list[FieldCause]:
    causes = list[FieldCause]()
    if not event.get("eventTime"):
        causes.append(missing("eventTime"))
    if event.get("type") not in ("Normal", "Warning"):
        causes.append(bad_value("type", "", f"has invalid value: {event.get('type', '')}"))
    for field in ("firstTimestamp", "lastTimestamp", "count", "source"):
        if event.get(field):
            causes.append(bad_value(field, "", "needs to be unset"))
    return causes


def _series_causes(event: Json) -> list[FieldCause]:
    series: Any = event.get("series")
    if series is None:
        return []
    causes = list[FieldCause]()
    if int(series.get("count", 0)) < 2:
        causes.append(bad_value("series.count", "", "should be at least 2"))
    if not series.get("lastObservedTime"):
        causes.append(missing("series.lastObservedTime"))
    return causes


_ROLLING: Json = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}}
_DEPLOYMENT: Json = {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600, "strategy": _ROLLING}
_STATEFUL: Json = {
    "replicas": 1,
    "revisionHistoryLimit": 10,
    "podManagementPolicy": "OrderedReady",
    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
    "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
}
_DAEMON: Json = {
    "revisionHistoryLimit": 10,
    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
}
_JOB: Json = {
    "completionMode": "NonIndexed",
    "backoffLimit": 6,
    "suspend": False,
    "manualSelector": False,
    "podReplacementPolicy": "TerminatingOrFailed",
}
_CRON: Json = {
    "concurrencyPolicy": "Allow",
    "suspend": False,
    "successfulJobsHistoryLimit": 3,
    "failedJobsHistoryLimit": 1,
}


class PlainStrategy(Strategy):
    """A kind with spec and status; `defaults` fill missing fields of the spec."""

    has_status = True
    counts_generation = True
    defaults: Json = {}

    def __init__(self, defaults: Json | None = None) -> None:
        self.defaults = defaults or {}

    def decode(self, obj: Json, options: WriteOptions) -> None:
        spec = obj.setdefault("spec", {})
        _lay_under(spec, self.defaults)

    def prepare(self, obj: Json) -> None:
        super().prepare(obj)
        obj["status"] = {}


class TemplateStrategy(PlainStrategy):
    """A workload with a pod template that a selector must match."""

    restart_policies: ClassVar[tuple[str, ...]] = ("Always",)

    def decode(self, obj: Json, options: WriteOptions) -> None:
        super().decode(obj, options)
        default_template(obj["spec"])

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        spec = obj["spec"]
        causes = list[FieldCause]()
        labels = mapping(mapping(mapping(spec, "template"), "metadata"), "labels")
        if not is_map(spec.get("selector")):
            causes.append(missing("spec.selector"))
        elif not selects(spec["selector"], labels):
            words = "`selector` does not match template `labels`"
            causes.append(bad_value("spec.template.metadata.labels", labels, words))
        causes += template_causes(spec)
        if old is not None and mapping(old, "spec").get("selector") != spec.get("selector"):
            causes.append(bad_value("spec.selector", spec.get("selector"), "field is immutable"))
        return causes


class JobStrategy(PlainStrategy):
    def decode(self, obj: Json, options: WriteOptions) -> None:
        super().decode(obj, options)
        spec = obj["spec"]
        if spec.get("completions") is None and spec.get("parallelism") is None:
            spec["completions"] = 1
        spec.setdefault("parallelism", 1)
        default_template(spec)

    def prepare(self, obj: Json) -> None:
        """Complete a new Job. Sets labels and selector, because a Job's pods are selected by the Job's uid."""
        super().prepare(obj)
        uid, name = str(metadata(obj)["uid"]), str(metadata(obj)["name"])
        spec = obj["spec"]
        if spec.get("manualSelector") is True:
            return
        labels = {"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name}
        labels |= {"controller-uid": uid, "job-name": name}
        template: Json = spec.setdefault("template", {})
        meta: Json = template.setdefault("metadata", {})
        meta["labels"] = {**mapping(meta, "labels"), **labels}
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}

    def prepare_update(self, new: Json, old: Json) -> None:
        super().prepare_update(new, old)
        if "selector" in old["spec"]:
            new["spec"].setdefault("selector", old["spec"]["selector"])

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        causes = template_causes(obj["spec"], restart=("OnFailure", "Never"))
        if old is not None and mapping(old, "spec").get("selector") != obj["spec"].get("selector"):
            causes.append(bad_value("spec.selector", obj["spec"].get("selector"), "field is immutable"))
        return causes


class CronJobStrategy(PlainStrategy):
    def decode(self, obj: Json, options: WriteOptions) -> None:
        super().decode(obj, options)
        default_template(mapping(mapping(obj["spec"], "jobTemplate"), "spec"))

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        return [] if obj["spec"].get("schedule") else [missing("spec.schedule")]


class NetworkPolicyStrategy(PlainStrategy):
    has_status = False

    def decode(self, obj: Json, options: WriteOptions) -> None:
        super().decode(obj, options)
        spec = obj["spec"]
        if not spec.get("policyTypes"):
            spec["policyTypes"] = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]

    def prepare(self, obj: Json) -> None:
        obj.pop("status", None)


class SchemalessStrategy(Strategy):
    """A kind whose objects are stored as they are sent."""


def default_template(spec: Json) -> None:
    """Set the defaults of the pod template, in place."""
    template = mapping(spec, "template")
    if is_map(template.get("spec")):
        pods.default_spec(template["spec"])


def template_causes(spec: Json, restart: tuple[str, ...] = ("Always",)) -> list[FieldCause]:
    template = mapping(mapping(spec, "template"), "spec")
    if not listing(template, "containers"):
        return [missing("spec.template.spec.containers")]
    policy = str(template.get("restartPolicy"))
    if policy not in restart:
        listed = ", ".join(f'"{name}"' for name in restart)
        body = f'Unsupported value: "{policy}": supported values: {listed}'
        return [FieldCause("spec.template.spec.restartPolicy", "FieldValueNotSupported", body)]
    return []


def workload_kinds() -> tuple[ResourceKind, ...]:
    scaled = ("scale", "status")
    apps = (
        ("deployments", "Deployment", ("deploy",), TemplateStrategy(_DEPLOYMENT), scaled, DEPLOYMENTS),
        ("replicasets", "ReplicaSet", ("rs",), TemplateStrategy({"replicas": 1}), scaled, REPLICA_SETS),
        ("statefulsets", "StatefulSet", ("sts",), TemplateStrategy(_STATEFUL), scaled, STATEFUL_SETS),
        ("daemonsets", "DaemonSet", ("ds",), TemplateStrategy(_DAEMON), ("status",), ()),
    )
    batch = (
        ("jobs", "Job", (), JobStrategy(_JOB), ("status",), ()),
        ("cronjobs", "CronJob", ("cj",), CronJobStrategy(_CRON), ("status",), ()),
    )
    networking = (
        ("networkpolicies", "NetworkPolicy", ("netpol",), NetworkPolicyStrategy(), (), ()),
        ("ingresses", "Ingress", ("ing",), PlainStrategy(), ("status",), ()),
    )
    scaling = (
        ("horizontalpodautoscalers", "HorizontalPodAutoscaler", ("hpa",), PlainStrategy({"minReplicas": 1}),
         ("status",), ()),
    )  # fmt: skip
    groups = (("apps", "v1", apps), ("batch", "v1", batch), ("networking.k8s.io", "v1", networking))
    made = [
        ResourceKind(
            group=group, version=version, plural=plural, kind=kind, short_names=short, strategy=strategy,
            subresources=subresources, columns=shown, categories=("all",) if group in ("apps", "batch") else (),
        )
        for group, version, table in (*groups, ("autoscaling", "v2", scaling))
        for plural, kind, short, strategy, subresources, shown in table
    ]  # fmt: skip
    return (*made, *_schemaless())


def _schemaless() -> tuple[ResourceKind, ...]:
    strategy = SchemalessStrategy()
    return (
        ResourceKind(group="apps", plural="controllerrevisions", kind="ControllerRevision", strategy=strategy),
        ResourceKind(group="discovery.k8s.io", plural="endpointslices", kind="EndpointSlice", strategy=strategy),
        ResourceKind(
            group="networking.k8s.io", plural="ingressclasses", kind="IngressClass", namespaced=False,
            strategy=strategy,
        ),
        ResourceKind(
            group="storage.k8s.io", plural="storageclasses", kind="StorageClass", namespaced=False,
            short_names=("sc",), strategy=strategy,
        ),
        ResourceKind(plural="endpoints", kind="Endpoints", short_names=("ep",), strategy=strategy),
        ResourceKind(plural="podtemplates", kind="PodTemplate", strategy=strategy),
        ResourceKind(
            plural="persistentvolumes", kind="PersistentVolume", namespaced=False, short_names=("pv",),
            strategy=strategy,
        ),
    )  # fmt: skip


def _lay_under(value: Json, defaults: Mapping[str, object]) -> None:
    for field, default in defaults.items():
        if value.get(field) is None:
            value[field] = clone(default)
        elif is_map(default) and is_map(value[field]) and value[field].get("type") in (None, default.get("type")):
            _lay_under(value[field], default)


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
            columns=table.CONFIG_MAPS,
        ),
        ResourceKind(
            plural="secrets", kind="Secret", strategy=admission.SecretStrategy(), fields={"type": ("type",)},
            columns=table.SECRETS,
        ),
        ResourceKind(
            plural="services", kind="Service", short_names=("svc",), categories=("all",),
            strategy=services.ServiceStrategy(), columns=table.SERVICES, subresources=("status",),
        ),
        *event_kinds(),
        ResourceKind(
            plural="namespaces", kind="Namespace", namespaced=False, short_names=("ns",),
            strategy=admission.NamespaceStrategy(), fields={"status.phase": ("status", "phase")},
            columns=table.NAMESPACES, subresources=("finalize", "status"), lacks=("deletecollection",),
        ),
        ResourceKind(
            plural="nodes", kind="Node", namespaced=False, short_names=("no",), strategy=admission.NodeStrategy(),
            fields={"spec.unschedulable": ("spec", "unschedulable")}, columns=table.NODES, subresources=("status",),
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
            strategy=admission.ClaimStrategy(), columns=table.CLAIMS, subresources=("status",),
        ),
        ResourceKind(
            group="coordination.k8s.io", plural="leases", kind="Lease", strategy=admission.LeaseStrategy(),
            columns=table.LEASES,
        ),
        ResourceKind(
            group="scheduling.k8s.io", plural="priorityclasses", kind="PriorityClass", namespaced=False,
            short_names=("pc",), strategy=admission.PriorityClassStrategy(),
        ),
        ResourceKind(
            group="policy", plural="poddisruptionbudgets", kind="PodDisruptionBudget", short_names=("pdb",),
            strategy=disruption.BudgetStrategy(), columns=table.BUDGETS, subresources=("status",),
        ),
        *_rbac_kinds(),
        *workload_kinds(),
        ResourceKind(
            group="apiextensions.k8s.io", plural="customresourcedefinitions", kind="CustomResourceDefinition",
            namespaced=False, short_names=("crd", "crds"), categories=("api-extensions",), strategy=definitions,
            columns=table.DEFINITIONS, subresources=("status",),
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
        columns=table.POD_GROUPS,
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
        columns=table.PODS,
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
            columns=table.ROLES if plural.endswith("roles") else table.BINDINGS,
        )
        for plural, kind, namespaced, strategy in kinds
    )
