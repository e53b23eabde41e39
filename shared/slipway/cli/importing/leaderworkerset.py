"""LeaderWorkerSet: groups of a leader and its workers.

A group is a gang. A set of several groups becomes one launch with replicas behind one Service, when the leader's
template names a port for it; otherwise it becomes one launch for each group.

Source: LeaderWorkerSet, leaderworkerset.x-k8s.io/v1 leaderworkerset_types.go.
"""

from slipway.cli.importing.foreign import ForeignDocument, ForeignField, lose
from slipway.cli.importing.outcome import ImportedLaunch
from slipway.cli.importing.pods import frame, numbered_name, replicate, role, set_variables
from slipway.crd.roleresources import containers_of, objects_of

GROUPS_MAX = 64
RESTARTS = 1000
"""Kubernetes recreates a group without a limit; a launch restarts at most this many times."""
_EXCLUSIVE = "leaderworkerset.sigs.k8s.io/exclusive-topology"
_LOST = {
    "rolloutStrategy": ("replaces groups one by one at a change", "launch anew, and end the old launch"),
    "networkConfig": ("host names of the pods", "use MASTER_ADDR, or python -m slipway.inside hostfile"),
}
_LOST_OF_TEMPLATE = {
    "subGroupPolicy": ("groups within a group", "write a role for each, and set ranks[].topology"),
    "volumeClaimTemplates": ("makes a volume claim for each pod", "use an ephemeral volume, or make claims"),
    "persistentVolumeClaimRetentionPolicy": (
        "when the claims are deleted",
        "claims of ephemeral volumes are deleted with the pod",
    ),
}


def leader_worker_set(document: ForeignDocument) -> list[ImportedLaunch]:
    """Convert the set to one launch of all groups behind a Service, or to one launch for each group."""
    spec = document.root.get("spec")
    replicas = spec.get("replicas")
    groups = replicas.whole(1, most=GROUPS_MAX)
    if not groups:
        replicas.refuse("0 starts no group")
    launch = _group(document)
    if groups == 1:
        replicas.carried()
        return [launch]
    does = "groups that are kept running and may be scaled"
    port = _port(launch)
    if port and "name" in launch.body:
        address = replicate(launch, groups, port, replicas)
        more = "apply it again with more to add groups, kill one to remove it"
        replicas.changed(does, f"replicas: {groups}, and their leaders behind Service {address}; {more}")
        return [launch]
    replicas.changed(does, f"{groups} launches: no container of the leader names a port, so they have no address")
    made = [launch, *(_group(document) for _ in range(1, groups))]
    for number, each in enumerate(made):
        if "name" in each.body:
            each.body["name"] = numbered_name(each, number)
    return made


def _port(launch: ImportedLaunch) -> int:
    """Return the first port that the leader's containers name; 0 when they name none."""
    for container in containers_of(launch.roles()[0].get("template") or {}):
        for port in objects_of(container.get("ports")):
            if isinstance(number := port.get("containerPort"), int):
                return number
    return 0


def _group(document: ForeignDocument) -> ImportedLaunch:
    root, launch = document.root, ImportedLaunch(document)
    frame(launch, root)
    spec = root.get("spec")
    template = spec.get("leaderWorkerTemplate")
    size = template.get("size")
    pods = size.whole(1, least=1, most=4096)
    size.carried("ranks[].count")
    leader = template.get("leaderTemplate")
    if leader.is_set:
        role(launch, leader, name="leader")
        if pods > 1:
            role(launch, template.get("workerTemplate"), name="worker", count=pods - 1)
        else:
            template.get("workerTemplate").unneeded("size 1 has no worker")
    else:
        role(launch, template.get("workerTemplate"), name="worker", count=pods)
    for made in launch.roles():
        set_variables(
            made,
            {"LWS_LEADER_ADDRESS": "$(MASTER_ADDR)", "LWS_WORKER_INDEX": "$(RANK)", "LWS_GROUP_SIZE": "$(WORLD_SIZE)"},
        )
    _restarts(launch, template.get("restartPolicy"))
    _topology(launch, root.get("metadata", "annotations", _EXCLUSIVE))
    startup = spec.get("startupPolicy")
    if startup.text("LeaderCreated") == "LeaderReady":
        for made in launch.roles()[1:]:
            made["dependsOn"] = [{"role": "leader", "until": "ready"}]
        startup.changed("workers start when the leader is ready", "ranks[].dependsOn; the image needs python3")
    else:
        startup.carried()
    lose(spec, _LOST)
    lose(template, _LOST_OF_TEMPLATE)
    launch.body["kind"] = "training"
    return launch


def _topology(launch: ImportedLaunch, field: ForeignField) -> None:
    """Convert the annotation that keeps a group within one domain."""
    if field.is_set:
        launch.put("topology", {"key": field.text(), "mode": "required"}, field)
        field.changed(
            "a group in one domain, and no other group there", "topology: in one domain; others may be there too"
        )


def _restarts(launch: ImportedLaunch, policy: ForeignField) -> None:
    launch.body["maxRestarts"] = RESTARTS
    if policy.text("RecreateGroupOnPodRestart") in ("Default", "None"):
        launch.put("restart", "rank", policy)
        policy.changed(
            "a failed container starts again in its pod, without a limit",
            f"restart: rank, maxRestarts: {RESTARTS}; it starts again in a new pod",
        )
    else:
        policy.changed("the group starts again as a whole, without a limit", f"maxRestarts: {RESTARTS}")
