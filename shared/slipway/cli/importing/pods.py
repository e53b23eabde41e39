"""The conversion that imported Kubernetes objects share: metadata, Kueue's labels, pod templates.

Owns which fields of a pod Slipway sets itself, and which fields have another meaning here. It has no list of fields
that a pod template must not contain: `outcome.py` applies the rules of the server.

Source: Kubernetes API reference, ObjectMeta and PodSpec; Kueue, labels `kueue.x-k8s.io/*`.
"""

import copy
from typing import cast

from slipway.cli.importing.foreign import ForeignField, Json, each
from slipway.cli.importing.outcome import ImportedLaunch
from slipway.cli.importing.vocabulary import GPU, for_seconds, name_allocation, name_of, plain_name
from slipway.crd.meta import ANNOTATION_MAIN_CONTAINER
from slipway.crd.roleresources import containers_of, object_of
from slipway.crd.v1alpha1 import RANKS_MAX
from slipway.model.ids import NAME_LENGTH_MAX
from slipway.model.numbers import number_in

_QUEUE = "kueue.x-k8s.io/queue-name"
_PRIORITY = "kueue.x-k8s.io/priority-class"
_MAX_TIME = "kueue.x-k8s.io/max-exec-time-seconds"
_SERVER_SET = (
    *("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink", "ownerReferences"),
    *("deletionTimestamp", "finalizers"),
)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_OURS = {
    "schedulerName": "Slipway places the pods",
    "enableServiceLinks": "always false here",
    "setHostnameAsFQDN": "Slipway names the pods",
    "preemptionPolicy": "Slipway preempts by queue and priority",
}
"""{field of a pod that a launch does not need: why}"""
_TOPOLOGIES = {
    "kueue.x-k8s.io/podset-required-topology": "required",
    "kueue.x-k8s.io/podset-preferred-topology": "preferred",
}
"""{annotation of a pod template: the topology mode that it stands for}"""


def frame(launch: ImportedLaunch, root: ForeignField) -> None:
    """Convert the name, workspace, labels and Kueue's labels of an object."""
    each(root, ("apiVersion", "kind"), lambda field: field.carried())
    root.get("status").unneeded("Kubernetes wrote it")
    metadata = root.get("metadata")
    each(metadata, _SERVER_SET, lambda field: field.unneeded("the API server sets it"))
    if metadata.get("name").is_set or not metadata.get("generateName").is_set:
        name_allocation(launch.body, metadata.get("name"))
        metadata.get("generateName").unneeded("metadata.name is set")
    else:
        metadata.get("generateName").changed("a name is made up from it", "leave the name out: one is made up here")
    namespace = metadata.get("namespace")
    if namespace.is_set:
        launch.put("workspace", plain_name(namespace.text()) or "default", namespace)
        namespace.changed("the namespace", "workspace: the namespace must be a workspace of Slipway")
    _labels(launch, metadata.get("labels"))
    for name, note in metadata.get("annotations").fields().items():
        if name == _LAST_APPLIED:
            note.unneeded("kubectl wrote it")
        else:
            note.lost("a note, or an instruction to a controller", "a launch has labels only; write it into labels")


def _labels(launch: ImportedLaunch, field: ForeignField) -> None:
    kept: dict[str, str] = {}
    for name, label in field.fields().items():
        if name == _QUEUE:
            launch.put("queue", name_of(label, "queue", "queue"), label)
        elif name == _PRIORITY:
            label.lost("a priority class of Kueue", "set priority: 0 to 1000, the higher goes first (default: 50)")
        elif name == _MAX_TIME:
            seconds = number_in(label.text())
            if not seconds:
                label.refuse("must be whole seconds")
            launch.body["maxRuntime"] = f"{seconds}s"
            label.changed("seconds from the admission", f"maxRuntime: {seconds}s, measured while it runs")
        elif name.startswith("kueue.x-k8s.io/"):
            label.unneeded("Kueue is not used here")
        else:
            kept[name] = label.text()
            label.carried("labels")
    if kept:
        launch.put("labels", kept, field)


def role(
    launch: ImportedLaunch, template: ForeignField, *, name: str = "worker", count: int = 1, main: str = ""
) -> Json:
    """Add a role of `count` pods from the template and return it; `main` names its main container."""
    if not 1 <= count <= RANKS_MAX:
        template.refuse(f"would be {count} ranks; 1 to {RANKS_MAX} are possible")
    made: Json = {"name": plain_name(name) or "worker", "count": count}
    made["template"] = pod_template(launch, template, main)
    _topology(made, template.get("metadata", "annotations"))
    launch.trace(made, ForeignField(launch.document, template.steps[:-1], None))
    launch.roles().append(made)
    return made


def _topology(made: Json, annotations: ForeignField) -> None:
    """Convert Kueue's annotations that keep the pods of one template together; the first one that is set applies."""
    for name, mode in _TOPOLOGIES.items():
        field = annotations.get(name)
        if field.is_set:
            made.setdefault("topology", {"key": field.text(), "mode": mode})
            field.carried("ranks[].topology")
            cast("Json", made["template"]["metadata"]["annotations"]).pop(name)


def pod_template(launch: ImportedLaunch, field: ForeignField, main: str = "") -> Json:
    """Return the pod template without the fields that Slipway sets itself; its parts can be traced."""
    field.object()
    spec = field.get("spec")
    if not spec.get("containers").items():
        spec.get("containers").refuse("has no container; a pod needs one, with an image")
    field.carried("template")
    made = cast("Json", launch.copied(field))
    pod = cast("Json", made["spec"])
    _check_shape(field)
    _metadata(made, field.get("metadata"))
    for name, why in _OURS.items():
        spec.get(name).unneeded(why)
        pod.pop(name, None)
    restart = spec.get("restartPolicy")
    if restart.is_set:
        if restart.value == "Never":
            restart.unneeded("always Never here")
        else:
            restart.changed("a failed container starts again in its pod", "maxRestarts: all ranks start again, as one")
        del pod["restartPolicy"]
    if spec.get("activeDeadlineSeconds").is_set:
        limit = spec.get("activeDeadlineSeconds")
        launch.body.setdefault("maxRuntime", for_seconds(limit))
        limit.changed("ends the pod", "maxRuntime: ends all ranks, measured while they run")
        del pod["activeDeadlineSeconds"]
    _account(pod, spec)
    for name in ("automountServiceAccountToken", "enableServiceLinks"):
        if spec.get(name).value is False:
            spec.get(name).unneeded("always false here")
            pod.pop(name, None)
    _main_container(launch, made, field, main)
    return made


def _check_shape(field: ForeignField) -> None:
    """Refuse wrong types of the fields that are read here; the rules of the server check the other fields."""
    for name in ("labels", "annotations"):
        field.get("metadata", name).object()
    spec = field.get("spec")
    for group in ("containers", "initContainers"):
        for container in spec.get(group).items():
            container.filled()
            container.get("resources", "limits").object()
            container.get("resources", "requests").object()
            for name in ("env", "volumeMounts", "ports", "envFrom"):
                for item in container.get(name).items():
                    item.filled()
            for variable in container.get("env").items():
                variable.get("valueFrom", "secretKeyRef").object()
            for name in ("command", "args"):
                container.get(name).words()
    for item in spec.get("volumes").items():
        item.filled()
    spec.get("securityContext").object()


def _metadata(made: Json, field: ForeignField) -> None:
    if not field.is_set:
        return
    names = field.fields()
    kept = cast("Json", made["metadata"])
    for name, item in names.items():
        if name not in ("labels", "annotations"):
            item.unneeded("Slipway names the pods")
            kept.pop(name, None)
    for name, label in field.get("labels").fields().items():
        if name.startswith("kueue.x-k8s.io/"):
            label.unneeded("Kueue is not used here")
            kept["labels"].pop(name)


def _account(pod: Json, spec: ForeignField) -> None:
    old, account = spec.get("serviceAccount"), spec.get("serviceAccountName")
    if old.is_set:
        name = old.text()
        old.unneeded("the old name of serviceAccountName")
        del pod["serviceAccount"]
        if not account.is_set:
            pod["serviceAccountName"] = name
            old.changed("the service account of the pod", "serviceAccount; the workspace must allow it")
    if account.is_set and account.text() != "default":
        account.changed("the service account of the pod", "serviceAccount; the workspace must allow it")


def _main_container(launch: ImportedLaunch, made: Json, field: ForeignField, wanted: str) -> None:
    """Record which container decides the end of a rank, when there are several."""
    containers = containers_of(made)
    names = [container.get("name") for container in containers]
    main = wanted if wanted in names else "main" if "main" in names else names[0]
    if len(containers) > 1:
        here = f"the container {main} decides how a rank ends; the others are sidecars"
        field.get("spec", "containers").changed("all containers of a pod decide", here)
    if main != "main" and main != names[0]:
        metadata = object_of(made.get("metadata"))
        annotations = {**object_of(metadata.get("annotations")), ANNOTATION_MAIN_CONTAINER: main}
        made["metadata"] = {**metadata, "annotations": annotations}


def gpus_of(template: Json) -> int:
    """Return the whole GPUs of the first container that requests any; 0 if none does, or the amount is unreadable."""
    for container in containers_of(template):
        resources = object_of(container.get("resources"))
        for part in ("limits", "requests"):
            amount = str(object_of(resources.get(part)).get(GPU, ""))
            if (gpus := number_in(amount)) is not None:
                return gpus
    return 0


def kind_by_size(launch: ImportedLaunch) -> None:
    """Set the kind: training for several ranks or for GPUs, else command."""
    roles = launch.roles()
    is_large = sum(int(role["count"]) for role in roles) > 1 or any(gpus_of(role["template"]) for role in roles)
    launch.body["kind"] = "training" if is_large else "command"


def keep_leaders(launch: ImportedLaunch) -> None:
    """Make roles with one rank, such as a master, required in a gang that may start with fewer ranks."""
    roles = launch.roles()
    for made in roles if len(roles) > 1 else ():
        if made["count"] == 1:
            made["minAvailable"] = 1


def replicate(launch: ImportedLaunch, count: int, port: int, source: ForeignField) -> str:
    """Give the launch `count` replicas behind a Service of its name; return the address of the Service."""
    name = launch.body["name"] = numbered_name(launch, count - 1).rpartition("-")[0]
    launch.put("service", {"name": name, "port": port}, source)
    launch.put("replicas", count, source)
    return f"{name}:{port}"


def numbered_name(launch: ImportedLaunch, number: int) -> str:
    """Return the name of the launch with a number appended, cut to the maximum length of a name."""
    end = f"-{number}"
    return str(launch.body["name"])[: NAME_LENGTH_MAX - len(end)].rstrip("-") + end


def set_variables(role: Json, values: dict[str, str]) -> None:
    """Add variables to each container of a role, before its own variables, which may refer to them.

    Init containers get them too: a Job, the plugin `env` of Volcano and a LeaderWorkerSet set theirs in all containers.
    """
    pod = cast("Json", role["template"]["spec"])
    containers = [*(pod.get("initContainers") or ()), *pod["containers"]]
    for container in cast("list[Json]", containers):
        own = copy.copy(cast("list[Json]", container.get("env") or []))
        taken = {str(object_of(item).get("name")) for item in own}
        more: list[Json] = [{"name": name, "value": value} for name, value in values.items() if name not in taken]
        if more:
            container["env"] = [*more, *own]
