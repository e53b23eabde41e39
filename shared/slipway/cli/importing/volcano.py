"""Volcano: the Job.

A task becomes a role. The values that Volcano's plugins set are reported; ranks find each other with Slipway's own
variables.

Source: Volcano, batch.volcano.sh/v1alpha1 job.go; bus/v1alpha1 events and actions; plugins svc, env, ssh, pytorch, mpi.
"""

import re
from typing import cast

from slipway.cli.importing.foreign import ForeignDocument, ForeignField, Json, lose
from slipway.cli.importing.outcome import ImportedLaunch, add_rule, add_target
from slipway.cli.importing.pods import frame, keep_leaders, kind_by_size, role, set_variables
from slipway.cli.importing.vocabulary import name_of
from slipway.crd.policies import EXIT_CODE_MAX
from slipway.crd.roleresources import object_of
from slipway.crd.validate import is_mount_path
from slipway.crd.workspacepods import OBJECT_NAME_PATTERN

RETRIES = 3
"""maxRetry of a Job that does not set it; it limits the restarts by a policy."""
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
_RESTARTING = ("RestartJob", "RestartTask", "RestartPod", "RestartPartition")
_ENDING = ("AbortJob", "TerminateJob")
_LOST = {
    "ttlSecondsAfterFinished": ("deletes the finished Job", "ended work is kept as long as the installation says"),
    "priorityClassName": (
        "a priority class of Kubernetes",
        "set priority: 0 to 1000, the higher goes first (default: 50)",
    ),
    "runningEstimate": ("how long it may run, as an estimate", "set maxRuntime, which ends it"),
}


def job(document: ForeignDocument) -> list[ImportedLaunch]:
    """Convert a Job of batch.volcano.sh."""
    root, launch = document.root, ImportedLaunch(document)
    frame(launch, root)
    spec = root.get("spec")
    tasks = spec.get("tasks")
    if not tasks.items():
        tasks.refuse("has no task; name at least one")
    restarts = False
    completes: list[Json] = []
    for number, task in enumerate(tasks.items()):
        name = task.get("name").carried("ranks[].name").text(f"task{number}")
        made = role(launch, task.get("template"), name=name, count=task.get("replicas").whole(1))
        task.get("replicas").carried("ranks[].count")
        minimum = task.get("minAvailable")
        if minimum.is_set:
            made["minAvailable"] = minimum.whole(most=int(made["count"]))
            minimum.carried("ranks[].minAvailable")
        is_restarting, is_completing = _task_policies(launch, task.get("policies"), str(made["name"]))
        restarts |= is_restarting
        if is_completing:
            completes.append(made)
        task.get("maxRetry").changed("retries of a task", "maxRestarts: all ranks start again, as one")
        task.get("topologyPolicy").lost("how devices are placed on the node", "a node's own topology manager decides")
        _depends(made, task.get("dependsOn"), [str(each["name"]) for each in launch.roles()[:-1]])
        task.get("partitionPolicy").lost("parts of a task", "write a role for each part")
    # Policies of a task have precedence over policies of the Job.
    restarts |= _policies(launch, spec.get("policies"))
    if completes and len(completes) < len(launch.roles()):
        for made in launch.roles():
            made["daemon"] = made not in completes
    _minimum(launch, spec.get("minAvailable"))
    _success(launch, spec.get("minSuccess"))
    _retries(launch, spec.get("maxRetry"), restarts=restarts)
    queue = spec.get("queue")
    if queue.is_set:
        launch.put("queue", name_of(queue, "queue", "queue"), queue)
    spec.get("schedulerName").unneeded("Slipway places the pods")
    _plugins(launch, spec.get("plugins"))
    _volumes(launch, spec.get("volumes"))
    _topology(spec.get("networkTopology"))
    lose(spec, _LOST)
    kind_by_size(launch)
    return [launch]


def _topology(field: ForeignField) -> None:
    """Report a tier as lost.

    A tier is a level of Volcano's network tree (HyperNodes); only this tree maps it to a node label.
    """
    mode = "preferred" if field.get("mode").text("hard") == "soft" else "required"
    field.lost("how far apart the pods may be in the network", f"set topology: {{key: NODE LABEL, mode: {mode}}}")


def _volumes(launch: ImportedLaunch, field: ForeignField) -> None:
    """Convert existing claims to volumes of the launch; claims that the Job would create are reported as lost."""
    claims: dict[str, str] = {}
    for item in field.items():
        path, claim = item.get("mountPath"), item.get("volumeClaimName")
        if not claim.is_set:
            item.lost("a claim that the Job makes", "have a volume claim made, and add volumes: {PATH: CLAIM}")
            continue
        folder, name = path.text(), claim.text()
        if not is_mount_path(folder):
            path.refuse("must be an absolute path, such as /data")
        if not _CLAIM.fullmatch(name):
            claim.refuse("must be the name of a volume claim")
        claims[folder] = name
        item.get("volumeClaim").unneeded("the claim has a name, so it exists")
        path.changed("mounted in all containers", "volumes: mounted in the main container of every role")
        claim.carried("volumes")
    if claims:
        launch.put("volumes", claims, field)


def _depends(made: Json, field: ForeignField, above: list[str]) -> None:
    """Convert the tasks whose pods must be ready before this one starts, when they are listed above it."""
    names = field.get("name").words()
    if not field.is_set or not names:
        return
    if not set(names) <= set(above):
        field.lost("starts when other tasks are ready", "list the roles in order, and set ranks[].dependsOn")
        return
    made["dependsOn"] = [{"role": name, "until": "ready"} for name in names]
    if field.get("iteration").text("all") == "any" and len(names) > 1:
        field.get("iteration").changed("one of the tasks is enough", "ranks[].dependsOn: all of them")
    field.changed(
        "starts when other tasks are ready", "ranks[].dependsOn: ranks wait in their places; the image needs python3"
    )


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
    field.changed("the Job starts with this number of pods", "minAvailable: the launch also ends when fewer are left")


def _success(launch: ImportedLaunch, field: ForeignField) -> None:
    if field.is_set:
        add_target(launch, field, count=field.whole(least=1))
        field.changed(
            "this number of pods is enough", "successPolicy: count; a failed rank ends the others, if no rule says else"
        )


def _retries(launch: ImportedLaunch, field: ForeignField, *, restarts: bool) -> None:
    """Convert how often policies restart the Job; `restarts` is whether one policy restarts it at any failure."""
    most = field.whole(RETRIES, most=1000)
    rules = cast("list[Json]", object_of(launch.body.get("failurePolicy")).get("rules") or [])
    by_code = any(rule["action"] == "retry" for rule in rules)
    if not most or not (restarts or by_code):
        field.unneeded("no policy restarts the Job")
        return
    launch.put("maxRestarts", most, field)
    if restarts:
        field.changed("restarts by a policy", f"maxRestarts: {most}; every failure of a rank counts")
        return
    if "minAvailable" in launch.body or any("minAvailable" in made for made in launch.roles()):
        # Such a gang continues without the ranks that it does not require, as a Job of Volcano does.
        field.changed("restarts by a policy", f"maxRestarts: {most}; failures below the minimum count, too")
        return
    add_rule(launch, field, "fail")
    field.changed("restarts by a policy", f"maxRestarts: {most}, and failurePolicy: other exit codes fail the launch")


def _policies(launch: ImportedLaunch, field: ForeignField, role_name: str = "") -> bool:
    """Convert the policies of a Job, or of a task; return whether one restarts the Job at any failure."""
    is_restarting = False
    for policy in field.items():
        events = [policy.get("event").text(), *policy.get("events").words()]
        action = policy.get("action").text()
        if policy.get("exitCode").is_set:
            _on_exit_code(launch, policy, action, role_name)
        elif action in _RESTARTING:
            is_restarting = True
            policy.changed(
                f"{action} at {', '.join(filter(None, events))}", "maxRestarts: all ranks start again, as one"
            )
        elif action in _ENDING:
            policy.unneeded("a failed rank ends the others")
        elif action == "CompleteJob" and "TaskCompleted" in events:
            policy.changed("the Job is complete when a task is", "all ranks that are no daemons must succeed")
        else:
            policy.lost(f"{action} at {', '.join(filter(None, events))}", "a failed rank ends the others")
    return is_restarting


def _on_exit_code(launch: ImportedLaunch, policy: ForeignField, action: str, role_name: str) -> None:
    code, roles = policy.get("exitCode"), [role_name] if role_name else []
    number = code.whole(least=1, most=2**31 - 1)
    meant = "fail" if action in _ENDING else "retry" if action in _RESTARTING else ""
    if not meant or number > EXIT_CODE_MAX:
        policy.lost(
            f"{action} at exit code {number}", "write a rule of failurePolicy: fail, retry, ignore or notCounted"
        )
        return
    add_rule(launch, policy, meant, roles=roles, exitCodes=[number])
    if meant == "fail":
        policy.changed(f"{action} at an exit code", "failurePolicy: fail; the launch ends as Failed")
    else:
        policy.changed(f"{action} at an exit code", "failurePolicy: retry; all ranks start again, as one")


def _task_policies(launch: ImportedLaunch, field: ForeignField, role_name: str) -> tuple[bool, bool]:
    """Return (whether a policy restarts the Job at any failure, whether the task completes the Job)."""
    for policy in field.items():
        events = [policy.get("event").text(), *policy.get("events").words()]
        if policy.get("action").text() == "CompleteJob" and "TaskCompleted" in events:
            policy.changed("the Job is complete when this task is", "the other roles have daemon: true")
            return False, True
    return _policies(launch, field, role_name), False


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
