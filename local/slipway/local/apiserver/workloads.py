"""Kinds that charts contain and that no local controller handles: Deployments, Jobs, Ingresses and others.

Owns their table, their defaults and a few common checks. Clients store, read and patch these objects as in any cluster,
but no controller creates pods for them. Invariant: a stored object has the defaults that `kubectl` and Helm expect.

Source: pkg/apis/{apps,batch,networking,autoscaling}/v*/defaults.go and validation (behaviour, v1.37).
"""

from collections.abc import Mapping
from typing import ClassVar

from slipway.local.apiserver import columns, pods
from slipway.local.apiserver.admission import Strategy
from slipway.local.apiserver.objects import Json, clone, is_map, listing, mapping, metadata
from slipway.local.apiserver.options import WriteOptions
from slipway.local.apiserver.registry import ResourceKind
from slipway.local.apiserver.selectors import selects
from slipway.local.apiserver.status import FieldCause, bad_value, missing

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
        """Complete a new Job. Sets labels and selector, because the server selects a Job's pods by the Job's uid."""
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


def kinds() -> tuple[ResourceKind, ...]:
    scaled = ("scale", "status")
    apps = (
        ("deployments", "Deployment", ("deploy",), TemplateStrategy(_DEPLOYMENT), scaled, columns.DEPLOYMENTS),
        ("replicasets", "ReplicaSet", ("rs",), TemplateStrategy({"replicas": 1}), scaled, columns.REPLICA_SETS),
        ("statefulsets", "StatefulSet", ("sts",), TemplateStrategy(_STATEFUL), scaled, columns.STATEFUL_SETS),
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
