"""Volcano: its Job.

A task becomes a role. What Volcano's plugins set is reported: ranks find each other by Slipway's own variables.

Source: Volcano, batch.volcano.sh/v1alpha1 job.go; bus/v1alpha1 events and actions; plugins svc, env, ssh, pytorch, mpi.
"""

import re

from slipway.cli.importing.foreign import ForeignDocument, ForeignField, Json, lose
from slipway.cli.importing.outcome import ImportedLaunch
from slipway.cli.importing.pods import frame, keep_leaders, kind_by_size, role, set_variables
from slipway.cli.importing.vocabulary import name_of
from slipway.crd.validate import is_mount_path
from slipway.crd.workspacepods import OBJECT_NAME_PATTERN

RETRIES = 3
"""maxRetry of a Job that says none; it counts restarts by a policy."""
_CLAIM = re.compile(OBJECT_NAME_PATTERN)
_TASK_INDEX = "VK_TASK_INDEX"
_PLUGINS = {
    "svc": (
        "host names and files with the hosts of the tasks",
        "use MASTER_ADDR, or python -m slipway.inside hostfile",
    ),
    "ssh": ("SSH keys for the tasks of the Job", "run sshd with keys of a Secret: docs/inside.md"),
    "mpi": ("hosts and SSH keys for mpirun", "use python -m slipway.inside hostfile, and run sshd: docs/inside.md"),
    "tensorflow": ("TF_CONFIG", "the program sets TF_CONFIG by itself: docs/inside.md"),
    "hcclrank": ("ranks of Ascend devices", "use RANK"),
    "ray": ("starts Ray in the tasks", "start it in the command: docs/inside.md"),
}
_LOST = {
    "ttlSecondsAfterFinished": ("deletes the finished Job", "ended work is kept as long as the installation says"),
    "priorityClassName": (
        "a priority class of Kubernetes",
        "set priority: 0 to 1000, the higher goes first (default: 50)",
    ),
    "minSuccess": (
        "so many pods that succeed are enough",
        "give the other ranks a role of their own with daemon: true",
    ),
    "runningEstimate": ("how long it may run, as an estimate", "set maxRuntime, which ends it"),
}


def job(document: ForeignDocument) -> list[ImportedLaunch]:
    """A Job of batch.volcano.sh."""
    root, launch = document.root, ImportedLaunch(document)
    frame(launch, root)
    spec = root.get("spec")
    tasks = spec.get("tasks")
    if not tasks.items():
        tasks.refuse("has no task; name at least one")
    restarts = _policies(spec.get("policies"))
    completes: list[Json] = []
    for number, task in enumerate(tasks.items()):
        name = task.get("name").carried("ranks[].name").text(f"task{number}")
        made = role(launch, task.get("template"), name=name, count=task.get("replicas").whole(1))
        task.get("replicas").carried("ranks[].count")
        minimum = task.get("minAvailable")
        if minimum.is_set:
            made["minAvailable"] = minimum.whole(most=int(made["count"]))
            minimum.carried("ranks[].minAvailable")
        is_restarting, is_completing = _task_policies(task.get("policies"))
        restarts |= is_restarting
        if is_completing:
            completes.append(made)
        task.get("maxRetry").changed("retries of a task", "maxRestarts: all ranks start again, as one")
        task.get("topologyPolicy").lost("how devices lie on the node", "a node's own topology manager decides")
        task.get("dependsOn").lost(
            "starts when other tasks are so far", "all ranks start together; let the program wait"
        )
        task.get("partitionPolicy").lost("parts of a task", "write a role for each part")
    if completes and len(completes) < len(launch.roles()):
        for made in launch.roles():
            made["daemon"] = made not in completes
    _minimum(launch, spec.get("minAvailable"))
    retries = spec.get("maxRetry")
    most = retries.whole(RETRIES, most=1000)
    if restarts and most:
        launch.put("maxRestarts", most, retries)
        retries.changed("restarts by a policy", f"maxRestarts: {most}; every failure of a rank counts")
    else:
        retries.unneeded("no policy restarts the Job")
    queue = spec.get("queue")
    if queue.is_set:
        launch.put("queue", name_of(queue, "queue", "queue"), queue)
    spec.get("schedulerName").unneeded("Slipway places the pods")
    _plugins(launch, spec.get("plugins"))
    _volumes(launch, spec.get("volumes"))
    topology = spec.get("networkTopology")
    topology.lost(
        "how far apart the pods may be in the network", "set ranks[].topology: {key: NODE LABEL, mode: required}"
    )
    lose(spec, _LOST)
    kind_by_size(launch)
    return [launch]


def _volumes(launch: ImportedLaunch, field: ForeignField) -> None:
    """Claims that are there become volumes of the launch; those that the Job would make do not."""
    claims: dict[str, str] = {}
    for item in field.items():
        path, claim = item.get("mountPath"), item.get("volumeClaimName")
        if not claim.is_set:
            item.lost("a claim that the Job makes", "have a volume claim made, and add volumes: {PATH: CLAIM}")
            continue
        folder, name = path.text(), claim.text()
        if not is_mount_path(folder):
            path.refuse("must be a whole path, such as /data")
        if not _CLAIM.fullmatch(name):
            claim.refuse("must be the name of a volume claim")
        claims[folder] = name
        item.get("volumeClaim").unneeded("the claim has a name, so it is there")
        path.changed("mounted in all containers", "volumes: mounted in the main container of every role")
        claim.carried("volumes")
    if claims:
        launch.put("volumes", claims, field)


def _minimum(launch: ImportedLaunch, field: ForeignField) -> None:
    if not field.is_set:
        return
    total = sum(int(made["count"]) for made in launch.roles())
    minimum = field.whole(least=0)
    if minimum > total:
        field.refuse(f"is above the {total} pods of the tasks")
    if not minimum or minimum == total:
        field.carried("all ranks, which is the default")
        return
    launch.put("minAvailable", minimum, field)
    keep_leaders(launch)
    field.changed("the Job starts with so many", "minAvailable: and it is torn down when fewer are left")


def _policies(field: ForeignField) -> bool:
    """Reports the policies of a Job; whether one restarts it."""
    is_restarting = False
    for policy in field.items():
        events = [policy.get("event").text(), *policy.get("events").words()]
        action = policy.get("action").text()
        if policy.get("exitCode").is_set:
            policy.lost(f"{action} at an exit code", "every exit code but 0 is a failure")
        elif action in ("RestartJob", "RestartTask", "RestartPod"):
            is_restarting = True
            policy.changed(
                f"{action} at {', '.join(filter(None, events))}", "maxRestarts: all ranks start again, as one"
            )
        elif action in ("AbortJob", "TerminateJob"):
            policy.unneeded("a failed rank ends the others")
        elif action == "CompleteJob" and "TaskCompleted" in events:
            policy.changed("the Job is complete when a task is", "all ranks that are no daemons must succeed")
        else:
            policy.lost(f"{action} at {', '.join(filter(None, events))}", "a failed rank ends the others")
    return is_restarting


def _task_policies(field: ForeignField) -> tuple[bool, bool]:
    """(whether one restarts the Job, whether the task completes the Job)."""
    for policy in field.items():
        events = [policy.get("event").text(), *policy.get("events").words()]
        if policy.get("action").text() == "CompleteJob" and "TaskCompleted" in events:
            policy.changed("the Job is complete when this task is", "the other roles have daemon: true")
            return False, True
    return _policies(field), False


def _plugins(launch: ImportedLaunch, field: ForeignField) -> None:
    for name, plugin in field.fields().items():
        if name == "env":
            roles = launch.roles()
            if len(roles) == 1:
                set_variables(roles[0], {_TASK_INDEX: "$(RANK)", "VC_TASK_INDEX": "$(RANK)"})
                plugin.changed(f"sets {_TASK_INDEX} and VC_TASK_INDEX", "they are set to RANK")
            else:
                plugin.lost(
                    f"sets {_TASK_INDEX} and VC_TASK_INDEX, counted in each task",
                    "RANK counts over all roles: subtract",
                )
        elif name == "pytorch":
            plugin.unneeded("MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE are always set")
        elif name in _PLUGINS:
            plugin.lost(*_PLUGINS[name])
        else:
            plugin.lost("a plugin that this import does not know", "check what it does, and do it by hand")
