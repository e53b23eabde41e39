"""Kubeflow: PyTorchJob and similar kinds, MPIJob, and the TrainJob of the trainer (v2).

A replica type becomes a role; the master comes first, so that its first rank is MASTER_ADDR.

Source: Kubeflow training operator, kubeflow.org/v1 common_types.go and pytorch_types.go; MPI operator, v2beta1
types.go; Kubeflow trainer, v1alpha1 trainjob_types.go.
"""

from slipway.cli.importing.foreign import ForeignDocument, ForeignField, Json, Verdict, lose
from slipway.cli.importing.outcome import RESTARTS, ImportedLaunch, add_rule
from slipway.cli.importing.pods import frame, keep_leaders, role, set_variables
from slipway.cli.importing.vocabulary import for_seconds, name_of
from slipway.crd.roleresources import MAIN_CONTAINER
from slipway.model.numbers import number_in

_REPLICAS = {
    "PyTorchJob": ("pytorchReplicaSpecs", "pytorch"),
    "TFJob": ("tfReplicaSpecs", "tensorflow"),
    "XGBoostJob": ("xgbReplicaSpecs", "xgboost"),
    "PaddleJob": ("paddleReplicaSpecs", "paddle"),
    "JAXJob": ("jaxReplicaSpecs", "jax"),
}
"""{kind: (field with the replicas, name of the main container)}"""
_ON_FAILURE = ("PyTorchJob", "PaddleJob")
"""Kinds whose failed pods restart when no restartPolicy is set; pods of the other kinds do not."""
_FIRST = ("Launcher", "Chief", "Master")
"""Replica types whose first pod is the leader of the others."""
_SERVERS = ("PS", "Evaluator")
"""Replica types that do not decide when the job ends."""
_SCHEDULING = {
    "minResources": ("what must be free before the start", "a gang starts when all of its ranks fit"),
    "priorityClass": ("a priority class of Kubernetes", "set priority: 0 to 1000, the higher goes first (default: 50)"),
}
_RUN_POLICY = {
    "ttlSecondsAfterFinished": ("deletes the finished job", "ended work is kept as long as the installation says"),
}


def replica_job(document: ForeignDocument) -> list[ImportedLaunch]:
    """Convert a PyTorchJob, TFJob, XGBoostJob, PaddleJob or JAXJob."""
    root, launch = document.root, ImportedLaunch(document)
    frame(launch, root)
    spec = root.get("spec")
    replicas, main = _REPLICAS[str(root.get("kind").value)]
    restarts = _replicas(launch, spec.get(replicas), main, is_restarted=root.get("kind").value in _ON_FAILURE)
    _run_policy(launch, spec.get("runPolicy"), restarts)
    processes = spec.get("nprocPerNode")
    if processes.is_set:
        if number_in(count := processes.text()) is not None:
            for role_ in launch.roles():
                set_variables(role_, {"PET_NPROC_PER_NODE": count})
            processes.carried("env.PET_NPROC_PER_NODE")
        else:
            processes.changed("auto, gpu or cpu: processes of a pod", "torchrun starts one for each GPU of the rank")
    _elastic(launch, spec.get("elasticPolicy"))
    _in_place(launch, spec.get("runPolicy").get("backoffLimit"), restarts)
    success = spec.get("successPolicy")
    if success.text() == "AllWorkers":
        success.carried()
    else:
        does = "the job succeeds with its master, chief or first worker"
        does = does if success.is_set else f"absent: {does}"
        document.note(success.steps, Verdict.CHANGED, does, "all ranks that are no daemons must succeed")
    spec.get("enableDynamicWorker").lost("workers are added and removed", "set minAvailable: a gang grows to its count")
    if root.get("kind").value == "TFJob":
        document.note(
            spec.get(replicas).steps,
            Verdict.CHANGED,
            "each pod gets TF_CONFIG",
            "roles of one gang; the program sets TF_CONFIG by itself: docs/inside.md",
        )
    return [launch]


def _replicas(
    launch: ImportedLaunch, field: ForeignField, main: str, *, is_restarted: bool = False
) -> list[ForeignField]:
    """Add the roles; return the restart policies of the roles whose pods restart by themselves.

    `is_restarted`: whether pods restart when their replica type sets no policy."""
    types = field.fields()
    if not types:
        field.refuse("has no replicas; name at least one type, such as Worker")
    by_code: list[tuple[ForeignField, str]] = []
    again: list[ForeignField] = []
    never: list[tuple[ForeignField, str]] = []
    leading = sorted(types, key=lambda name: (name not in _FIRST, name in _SERVERS))
    for name in leading:
        replica = types[name]
        count = replica.get("replicas")
        if count.value == 0:
            replica.unneeded("no replica")
            continue
        made = role(launch, replica.get("template"), name=name, count=count.whole(1), main=main)
        count.carried("ranks[].count")
        if name in _SERVERS:
            made["daemon"] = True
            replica.get("replicas").changed("they do not end by themselves", "daemon: true; they end with the others")
        policy = replica.get("restartPolicy")
        if policy.value == "Never" or not (policy.is_set or is_restarted):
            policy.unneeded("always Never here")
            never.append((policy, str(made["name"])))
        elif policy.value == "ExitCode":
            by_code.append((policy, str(made["name"])))
        else:
            policy.changed("a failed pod starts again by itself", "maxRestarts: all ranks start again, as one")
            again.append(policy)
    if not launch.roles():
        field.refuse("all types have 0 replicas; nothing would run")
    for policy, name in by_code:
        roles = [name] if len(by_code) < len(launch.roles()) else []
        if roles or policy is by_code[0][0]:
            add_rule(launch, policy, "fail", roles=roles, exitCodes=["1-127"])
            add_rule(launch, policy, "retry", roles=roles, exitCodes=["128-255"])
        policy.changed(
            "exit codes from 128 start the pod again, others fail the job",
            "failurePolicy: 1 to 127 fail; from 128 on all ranks start again, as one",
        )
    for policy, name in never if again or by_code else ():
        add_rule(launch, policy, "fail", roles=[name])
        policy.carried("failurePolicy: fail")
    return [*again, *(policy for policy, _ in by_code)]


def _in_place(launch: ImportedLaunch, retries: ForeignField, restarts: list[ForeignField]) -> None:
    """Set `restart: rank`, except for an elastic gang, because Kubeflow restarts single pods."""
    roles = launch.roles()
    is_elastic = "minAvailable" in launch.body or any("minAvailable" in role_ for role_ in roles)
    if not restarts or is_elastic or sum(int(role_["count"]) for role_ in roles) < 2:
        return
    launch.put("restart", "rank", restarts[0])
    for policy in restarts:
        if policy.value == "ExitCode":
            policy.carried("failurePolicy, and restart: rank")
        else:
            policy.changed("a failed container starts again in its pod", "restart: rank; it starts again in a new pod")
    if retries.is_set:
        retries.carried("maxRestarts")
    else:
        does, here = "absent: pods start again without a limit", f"restart: rank, maxRestarts: {RESTARTS}"
        launch.document.note(retries.steps, Verdict.CHANGED, does, here)


def _run_policy(launch: ImportedLaunch, policy: ForeignField, restarts: list[ForeignField]) -> None:
    policy.get("cleanPodPolicy").unneeded("pods of ended work are deleted, after their logs are read")
    limit = policy.get("activeDeadlineSeconds")
    if limit.is_set:
        launch.put("maxRuntime", for_seconds(limit), limit)
        limit.changed("seconds since the job started", "maxRuntime: of each attempt, measured while it runs")
    retries = policy.get("backoffLimit")
    if retries.is_set:
        launch.put("maxRestarts", retries.whole(most=1000), retries)
        retries.changed("retries of single pods", "maxRestarts: all ranks start again, as one")
    elif restarts:
        launch.body["maxRestarts"] = RESTARTS
        here = f"maxRestarts: {RESTARTS}"
        launch.document.note(retries.steps, Verdict.CHANGED, "absent: pods start again without a limit", here)
    if policy.get("suspend").truth():
        launch.body["hold"] = True
    policy.get("suspend").carried("hold")
    policy.get("managedBy").unneeded("a controller's own")
    lose(policy, _RUN_POLICY)
    scheduling = policy.get("schedulingPolicy")
    queue = scheduling.get("queue")
    if queue.is_set and "queue" not in launch.body:
        launch.put("queue", name_of(queue, "queue", "queue"), queue)
    else:
        queue.unneeded("Kueue's label names the queue")
    minimum = scheduling.get("minAvailable")
    if minimum.is_set:
        _minimum(launch, minimum)
    waits = scheduling.get("scheduleTimeoutSeconds")
    if waits.is_set:
        launch.put("pendingTimeout", for_seconds(waits), waits)
        waits.carried("pendingTimeout")
    lose(scheduling, _SCHEDULING)


def _minimum(launch: ImportedLaunch, field: ForeignField) -> None:
    total = sum(int(role_["count"]) for role_ in launch.roles())
    minimum = field.whole(least=1)
    if minimum > total:
        field.refuse(f"is above the {total} ranks")
    if minimum < total:
        launch.put("minAvailable", minimum, field)
        keep_leaders(launch)
    field.carried("minAvailable")


def _elastic(launch: ImportedLaunch, policy: ForeignField) -> None:
    if not policy.is_set:
        return
    roles = launch.roles()
    workers = next((role_ for role_ in roles if role_["name"] == "worker"), roles[-1])
    most, least = policy.get("maxReplicas"), policy.get("minReplicas")
    if most.is_set:
        workers["count"] = most.whole(least=1, most=4096)
        most.changed(
            "an autoscaler may add workers up to it", f"count: {workers['count']}; the gang grows as room allows"
        )
    if least.is_set:
        minimum = least.whole(least=1)
        if minimum > int(workers["count"]):
            least.refuse(f"is above the {workers['count']} workers")
        workers["minAvailable"] = minimum
        least.carried("ranks[].minAvailable")
    policy.get("maxRestarts").lost("restarts by torchrun", "torchrun --max-restarts N in the command")
    policy.get("nProcPerNode").lost("processes of a pod", "set PET_NPROC_PER_NODE in env")
    policy.get("metrics").lost("an autoscaler", "a gang grows to its count when there is room")
    for name in ("rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId", "rdzvConf", "standalone"):
        policy.get(name).changed("how torchrun's processes meet", "Slipway sets PET_RDZV_* of an elastic gang")


def mpi_job(document: ForeignDocument) -> list[ImportedLaunch]:
    """Convert an MPIJob: the launcher becomes the first rank, and the workers become daemons."""
    root, launch = document.root, ImportedLaunch(document)
    frame(launch, root)
    spec = root.get("spec")
    replicas = spec.get("mpiReplicaSpecs")
    if not replicas.get("Launcher").is_set or not replicas.get("Worker").is_set:
        replicas.refuse("must have a Launcher and a Worker")
    restarts = _replicas(launch, replicas, "")
    for role_ in launch.roles():
        if role_["name"] == "worker" and len(launch.roles()) > 1:
            role_["daemon"] = True
            here = "daemon: true; the workers end when the launcher has ended"
            replicas.get("Worker", "replicas").changed("number of workers, which wait for the launcher", here)
    slots = spec.get("slotsPerWorker")
    if slots.is_set:
        slots.whole(1, least=1)
    slots.changed("slots of a line of the hostfile", "python -m slipway.inside hostfile counts the GPUs of a rank")
    document.note(
        replicas.get("Launcher").steps,
        Verdict.LOST,
        "the operator gives the launcher a hostfile and SSH keys",
        "write the hostfile with python -m slipway.inside hostfile; run sshd with keys of a Secret: docs/inside.md",
    )
    spec.get("sshAuthMountPath").lost("where the SSH keys are", "mount a Secret with keys there")
    spec.get("mpiImplementation").changed("how the hostfile is written", "one line HOST slots=N for each rank")
    spec.get("waitForWorkers").changed("the launcher starts after the workers", "all ranks start together")
    spec.get("launcherCreationPolicy").changed("when the launcher starts", "all ranks start together")
    spec.get("runLauncherAsWorker").lost(
        "the launcher is a worker too", "give the launcher GPUs, and list it as a host"
    )
    _run_policy(launch, spec.get("runPolicy"), restarts)
    spec.get("cleanPodPolicy").unneeded("pods of ended work are deleted, after their logs are read")
    return [launch]


def train_job(document: ForeignDocument) -> list[ImportedLaunch]:
    """Convert a TrainJob. The file does not contain what its runtime would add."""
    root, launch = document.root, ImportedLaunch(document)
    frame(launch, root)
    spec = root.get("spec")
    spec.get("runtimeRef").lost(
        "a runtime of the cluster gives image, command and volumes",
        "write them into a template of the workspace (slipway template set), and launch with --template",
    )
    initializer = spec.get("initializer")
    for part in ("dataset", "model"):
        initializer.get(part).lost(
            f"fetches the {part} before the training", "fetch it in an init container, or in the script"
        )
    trainer = spec.get("trainer")
    image = trainer.get("image")
    if not image.is_set:
        image.refuse("the image comes from the runtime, which is not in the file; write it here")
    container: Json = {}
    for name in ("image", "command", "args", "env"):
        part = trainer.get(name)
        if part.is_set:
            container[name] = launch.copied(part)
            part.carried(name)
    image.text()
    for name in ("command", "args"):
        trainer.get(name).words()
    for item in trainer.get("env").items():
        item.filled()
        item.get("valueFrom", "secretKeyRef").object()
    resources = trainer.get("resourcesPerNode")
    if resources.is_set:
        resources.get("limits").object()
        resources.get("requests").object()
        container["resources"] = launch.copied(resources)
        resources.carried("ranks[].resources")
    nodes = trainer.get("numNodes")
    count = nodes.whole(1, least=1, most=4096)
    nodes.carried("ranks[].count")
    processes = trainer.get("numProcPerNode")
    made: Json = {
        "name": "worker",
        "count": count,
        "template": {"spec": {"containers": [{"name": MAIN_CONTAINER, **container}]}},
    }
    launch.roles().append(made)
    if processes.is_set:
        text = processes.text()
        if number_in(text) is not None:
            set_variables(made, {"PET_NPROC_PER_NODE": text})
            processes.carried("env.PET_NPROC_PER_NODE")
        else:
            processes.changed("auto, gpu or cpu: processes of a node", "torchrun starts one for each GPU of the rank")
    limit = spec.get("activeDeadlineSeconds")
    if limit.is_set:
        launch.put("maxRuntime", for_seconds(limit), limit)
        limit.changed("seconds since the job started", "maxRuntime: of each attempt, measured while it runs")
    if spec.get("suspend").truth():
        launch.body["hold"] = True
    spec.get("suspend").carried("hold")
    spec.get("managedBy").unneeded("a controller's own")
    for name in ("labels", "annotations"):
        spec.get(name).lost(f"{name} of the objects that the job makes", "write labels of the launch")
    for name in ("runtimePatches", "podTemplateOverrides", "podSpecOverrides"):
        spec.get(name).lost("changes of the pods of the runtime", "write them into template.spec")
    return [launch]
