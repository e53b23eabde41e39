"""Ray: the RayJob of KubeRay.

The head becomes a role of one rank that starts Ray, runs the entrypoint and ends; worker groups become roles of daemons
that join it.

Source: KubeRay, ray.io/v1 rayjob_types.go and raycluster_types.go; Ray, `ray start`.
"""

import shlex
from typing import Any, cast

from slipway import yaml_reader
from slipway.cli.importing.foreign import ForeignDocument, ForeignField, Json, each, lose
from slipway.cli.importing.outcome import ImportedLaunch
from slipway.cli.importing.pods import frame, role
from slipway.cli.importing.vocabulary import for_seconds
from slipway.crd.expansion import literal
from slipway.crd.roleresources import main_container
from slipway.errors import InvalidError

_PORT = 6379
_IGNORED_PARAMETERS = {"block", "port", "address", "node-ip-address"}
"""Parameters of `ray start` that our command sets itself."""
_LOST = {
    "submitterPodTemplate": ("the pod that submits the job", "the head runs the entrypoint itself"),
    "submitterConfig": ("retries of the submission", "maxRestarts: all ranks start again, as one"),
    "clusterSelector": ("uses a cluster that runs already", "a launch has a cluster of its own"),
    "entrypointNumCpus": ("CPUs that the entrypoint reserves", "reserve them in the script"),
    "entrypointNumGpus": ("GPUs that the entrypoint reserves", "reserve them in the script"),
    "entrypointResources": ("resources that the entrypoint reserves", "reserve them in the script"),
    "metadata": ("notes on the Ray job", "write labels of the launch"),
    "ttlSecondsAfterFinished": ("deletes the cluster later", "the ranks end with the entrypoint"),
    "deletionStrategy": ("what is deleted after the end", "the ranks end with the entrypoint"),
    "schedule": ("starts it on a schedule", "Slipway has no schedules: launch it with cron"),
    "preRunningDeadlineSeconds": ("how long it may take to start", "set pendingTimeout"),
}
_CLUSTER = {
    "autoscalerOptions": ("how the autoscaler works", "a gang grows to its count when there is room"),
    "gcsFaultToleranceOptions": ("keeps the head's state in Redis", "a failed rank ends the others; set maxRestarts"),
    "headServiceAnnotations": ("annotations of the Service", "Slipway makes the Service"),
    "authOptions": ("who may use the cluster", "the API decides who may open a port"),
}


def ray_job(document: ForeignDocument) -> list[ImportedLaunch]:
    """Convert a RayJob: a cluster for one entrypoint."""
    root, launch = document.root, ImportedLaunch(document)
    frame(launch, root)
    spec = root.get("spec")
    entrypoint = spec.get("entrypoint")
    if not entrypoint.text().strip():
        entrypoint.refuse("a job needs one, such as python driver.py")
    cluster = spec.get("rayClusterSpec")
    head = cluster.get("headGroupSpec")
    if not head.is_set:
        cluster.refuse("must have a headGroupSpec: a launch has a cluster of its own")
    made = role(launch, head.get("template"), name="head", main="ray-head")
    before, parameters = _runtime_env(made, spec.get("runtimeEnvYAML")), _parameters(head)
    if "--dashboard-host" not in parameters:
        parameters += " --dashboard-host=0.0.0.0"  # the proxy connects to the address of the pod
    start = f'ray start --head --node-ip-address="$SLIPWAY_POD_IP" --port={_PORT}{parameters}'
    _run(made, f"{before}{start}\n{entrypoint.text().strip()}; code=$?\nray stop; exit $code")
    entrypoint.changed("is submitted to the head", "the head starts Ray, runs it, and ends with its exit code")
    for number, group in enumerate(cluster.get("workerGroupSpecs").items()):
        _workers(launch, group, number)
    launch.body["ports"] = [{"name": "dashboard", "port": 8265}]
    _limits(launch, spec)
    lose(spec, _LOST)
    spec.get("jobId").unneeded("an allocation has an id of its own")
    spec.get("managedBy").unneeded("a controller's own")
    each(spec, ("shutdownAfterJobFinishes",), lambda field: field.unneeded("the ranks end with the entrypoint"))
    mode = spec.get("submissionMode")
    if mode.text() == "InteractiveMode":
        mode.refuse("waits for a user who submits; write a launch of kind shell")
    mode.unneeded("the head runs the entrypoint itself")
    cluster.get("rayVersion").unneeded("the image has it")
    cluster.get("enableInTreeAutoscaling").lost("adds and removes workers by load", "a gang grows to its count")
    each(cluster, ("managedBy", "suspend"), lambda field: field.unneeded("the RayJob sets it"))
    lose(cluster, _CLUSTER)
    lose(head, {"serviceType": ("how the head is reached from outside", "slipway open, or slipway port-forward")})
    lose(head, {"headService": ("the Service of the head", "Slipway makes the Service")})
    lose(head, {"enableIngress": ("an Ingress for the dashboard", "slipway open ID, or slipway port-forward")})
    return [launch]


def _workers(launch: ImportedLaunch, group: ForeignField, number: int) -> None:
    name = group.get("groupName").carried("ranks[].name").text(f"workers-{number}")
    replicas, least, most = group.get("replicas"), group.get("minReplicas"), group.get("maxReplicas")
    count = replicas.whole(least.whole(1) or 1) if replicas.is_set else (least.whole(1) or 1)
    if not count:
        group.unneeded("no worker")
        return
    made = role(launch, group.get("template"), name=name, count=count, main="ray-worker")
    made["daemon"] = True
    replicas.changed("workers", "ranks with daemon: true: they end when the head has ended")
    if least.is_set and least.whole() < count:
        made["minAvailable"] = least.whole()
        least.carried("ranks[].minAvailable")
    else:
        least.carried("all workers, which is the default")
    most.lost("the autoscaler may add workers up to it", "set count to it and minAvailable below: the gang grows")
    start = (
        f'ray start --address="$MASTER_ADDR:{_PORT}" --node-ip-address="$SLIPWAY_POD_IP" --block{_parameters(group)}'
    )
    _run(made, f"until {start}; do sleep 2; done")
    group.get("numOfHosts").lost("several pods for one worker, such as of a TPU", "write count as the number of pods")
    group.get("scaleStrategy").unneeded("the autoscaler's own")
    group.get("suspend").unneeded("the RayJob sets it")
    group.get("idleTimeoutSeconds").lost("removes idle workers", "set idleTimeout, which ends all")


def _run(made: Json, script: str) -> None:
    """Replace the command of the main container by the script."""
    containers = cast("list[Json]", made["template"]["spec"]["containers"])
    container = containers[main_container(made["template"])]
    container["command"] = ["sh", "-c", literal(script)]
    container.pop("args", None)


def _parameters(group: ForeignField) -> str:
    text = ""
    if not group.get("rayStartParams").object():
        group.get("rayStartParams").carried()
    for name, item in group.get("rayStartParams").fields().items():
        if name in _IGNORED_PARAMETERS:
            item.unneeded("the command sets it")
        else:
            text += f" --{name}={shlex.quote(item.text())}"
            item.carried("command")
    return text


def _runtime_env(made: Json, field: ForeignField) -> str:
    """Return the commands to run before the entrypoint; env_vars become variables of the head."""
    if not field.is_set:
        return ""
    try:
        found = yaml_reader.parse(field.text(), yaml_reader.MANIFEST)
    except InvalidError as exc:
        field.refuse(f"is no YAML: {exc}")
    if not isinstance(found, dict):
        field.refuse("must be an object (name: value)")
    told = cast("Json", found)
    before = ""
    lost: list[str] = []
    for name, value in told.items():
        if name == "env_vars" and isinstance(value, dict):
            containers = cast("list[Json]", made["template"]["spec"]["containers"])
            container = containers[main_container(made["template"])]
            own = cast("list[Json]", container.get("env") or [])
            more = [{"name": key, "value": literal(str(each))} for key, each in cast("dict[str, Any]", value).items()]
            container["env"] = [*own, *more]
        elif name == "working_dir" and isinstance(value, str) and value.startswith("/"):
            before += f"cd {shlex.quote(value)}\n"
        elif name == "pip" and isinstance(value, list):
            before += "pip install " + " ".join(shlex.quote(str(each)) for each in cast("list[Any]", value)) + "\n"
        else:
            lost.append(name)
    if lost:
        here = "do it in the image or in the script; files come with slipway run -c FOLDER"
        field.lost(f"what Ray prepares on each node: {', '.join(lost)}", here)
    else:
        field.changed("Ray prepares it on each node", "the head prepares it; for the workers, do it in the image")
    return before


def _limits(launch: ImportedLaunch, spec: ForeignField) -> None:
    limit = spec.get("activeDeadlineSeconds")
    if limit.is_set:
        launch.put("maxRuntime", for_seconds(limit), limit)
        limit.changed("seconds since the job started", "maxRuntime: of each attempt, measured while it runs")
    retries = spec.get("backoffLimit")
    if retries.is_set:
        launch.put("maxRestarts", retries.whole(most=1000), retries)
        retries.carried("maxRestarts")
    if spec.get("suspend").truth():
        launch.body["hold"] = True
    spec.get("suspend").carried("hold")
