"""SkyPilot: a task.

A node becomes a rank. SkyPilot rents machines; here the pool provides them, so fields that choose a cloud are not
needed.

Source: SkyPilot, "SkyPilot YAML" (yaml-spec) and "Environment variables".
"""

from slipway.cli.importing.foreign import ForeignDocument, ForeignField, Json, Verdict, each, lose
from slipway.cli.importing.kinds import ImportOptions
from slipway.cli.importing.outcome import RESTARTS, ImportedLaunch, add_rule, exit_codes, main_template
from slipway.cli.importing.vocabulary import (
    GPU,
    gpu_types,
    image_of_options,
    in_shell,
    missing_variables,
    name_allocation,
    plain_name,
    provided_variables,
    size,
    variables,
)
from slipway.model.numbers import number_in
from slipway.model.resources import GPU_MILLI

PORTS_MAX = 16
_CLOUD = ("infra", "cloud", "region", "zone", "instance_type", "accelerator_args", "disk_tier", "image_tags")
_LOST = {
    "config": ("settings of SkyPilot for this task", "write what the pod needs into template.spec"),
    "experimental": ("settings of SkyPilot for this task", "write what the pod needs into template.spec"),
    "event_callback": ("a command at each change of state", "make a webhook: slipway webhook create"),
    "inputs": ("data of the task, for estimates", "leave it out"),
    "outputs": ("data of the task, for estimates", "leave it out"),
    "service": (
        "replicas behind one address, with a probe",
        "write replicas, service with name and port, and readinessProbe in template",
    ),
    "pool": ("a pool of workers of SkyPilot", "write pool: NAME for a pool of Slipway"),
}


def task(document: ForeignDocument, options: ImportOptions) -> list[ImportedLaunch]:
    """Convert a task for `sky launch` or `sky jobs launch`."""
    root, launch = document.root, ImportedLaunch(document)
    name_allocation(launch.body, root.get("name"))
    nodes = root.get("num_nodes")
    count = nodes.whole(1, least=1, most=4096)
    nodes.carried("ranks[].count")
    setup, run = _phases(launch, root)
    script = f"{setup}\n{run}"
    container: Json = {"command": in_shell(run)}
    resources = _resources(launch, root.get("resources"), container, options)
    gpus = resources.get(GPU, 0)
    told = {
        "SKYPILOT_NODE_RANK": "$(RANK)",
        "SKYPILOT_NUM_NODES": "$(WORLD_SIZE)",
        "SKYPILOT_NUM_GPUS_PER_NODE": str(gpus),
        "SKYPILOT_TASK_ID": "$(SLIPWAY_ALLOCATION_ID)",
    }
    env = {**provided_variables(told, script), **variables(root.get("envs"))}
    if env:
        launch.put("env", env, root.get("envs"))
    if missing := missing_variables("SKYPILOT_", told, script):
        root.get("run").lost(
            f"uses {', '.join(missing)}, which SkyPilot sets",
            "not set here; MASTER_ADDR is the address of the first rank, python -m slipway.inside hostfile lists all",
        )
    _secrets(launch, root.get("secrets"), container)
    pod = _mounts(root, container)
    role: Json = {"name": "worker", "count": count, "template": main_template(launch, container, pod)}
    if resources:
        role["resources"] = resources
    launch.roles().append(role)
    if count == 1 and not resources.keys() & {GPU, GPU_MILLI}:
        launch.body["kind"] = "command"
    lose(root, _LOST)
    return [launch]


def _phases(launch: ImportedLaunch, root: ForeignField) -> tuple[str, str]:
    """Return the scripts of setup and run."""
    setup, run = root.get("setup").text().strip(), root.get("run").text().strip()
    if not run:
        root.get("run").refuse("a task without run only prepares a cluster; write what it runs, or use kind shell")
    root.get("run").carried("command")
    if setup:
        launch.put("setup", setup, root.get("setup"))
    root.get("setup").changed(
        "runs once on a node that is kept",
        "setup: runs in each rank, once in each attempt, and ends it at a command that fails",
    )
    return setup, run


def _resources(launch: ImportedLaunch, field: ForeignField, container: Json, options: ImportOptions) -> Json:
    made: Json = {}
    image = field.get("image_id")
    if image.is_set and not image.is_object and image.text().startswith("docker:"):
        container["image"] = image.text().removeprefix("docker:")
        image.carried("image")
    elif image.is_set:
        container["image"] = options.image or "python:3.12-slim"
        image.lost("the image of a virtual machine", "name a container image: --image")
    else:
        image_of_options(container, image, options.image, "SkyPilot's own image, with conda and CUDA")
    _accelerators(launch, field.get("accelerators"), made)
    cpus, memory = field.get("cpus"), field.get("memory")
    if cpus.is_set:
        made["cpu"] = cpus.text().removesuffix("+")
        cpus.changed("CPUs of the machine", "a request of the rank, without a limit")
    if memory.is_set:
        made["memory"] = size(memory, memory.text().removesuffix("+"))
        memory.changed("memory of the machine", "a request of the rank, without a limit")
    disk = field.get("disk_size")
    if disk.is_set:
        made["ephemeral-storage"] = size(disk, disk.text())
        disk.changed("size of the machine's disk", "ephemeral-storage: a request of the rank")
    spot = field.get("use_spot")
    if spot.truth():
        launch.put("preemptible", value=True, source=spot)
    spot.changed("a machine that the cloud may reclaim", "preemptible: other work may evict it")
    _ports(launch, field.get("ports"))
    labels = {name: item.text() for name, item in field.get("labels").fields().items()}
    if labels:
        launch.put("labels", labels, field.get("labels"))
        field.get("labels").changed("labels of the machines", "labels of the launch")
    recovery = field.get("job_recovery")
    if recovery.is_object:
        restarts = recovery.get("max_restarts_on_errors")
        if restarts.is_set:
            launch.put("maxRestarts", restarts.whole(most=1000), restarts)
            restarts.carried("maxRestarts")
        recovery.get("strategy").unneeded("work is tried again where there is room")
        _recovered(launch, recovery.get("recover_on_exit_codes"))
    else:
        recovery.unneeded("work is tried again where there is room")
    each(field, _CLOUD, lambda item: item.unneeded("the pool has the machines"))
    field.get("autostop").unneeded("ranks end with their command")
    for name in ("any_of", "ordered"):
        field.get(name).lost("other machines that are also accepted", "write flavors: [..] of the pool, the best first")
    field.get("network_tier").lost(
        "a faster network", "choose a pool of such nodes, or ask for its devices in resources"
    )
    return made


def _accelerators(launch: ImportedLaunch, field: ForeignField, made: Json) -> None:
    if not field.is_set:
        return
    if field.is_object:
        told = [(name, item.text()) for name, item in field.fields().items()]
        pairs = [(name, count) if count else (name.partition(":")[0], name.partition(":")[2]) for name, count in told]
    else:
        words = field.words() if field.is_list else [field.text()]
        pairs = [(word.partition(":")[0], word.partition(":")[2]) for word in words]
    counts = {count.strip() or "1" for _, count in pairs}
    if len(counts) != 1 or not pairs:
        field.refuse("names several numbers of GPUs; write one number, and the types as flavors")
    count = counts.pop()
    try:
        amount = float(count)
    except ValueError:
        field.refuse("must be TYPE:NUMBER, such as H100:8")
    if amount <= 0 or amount > 1024 or (amount > 1 and amount != int(amount)):
        field.refuse("must be TYPE:NUMBER, such as H100:8")
    if any(name.lower().startswith("tpu") for name, _ in pairs):
        field.refuse("TPUs are no GPUs; write the resource of their device plugin into ranks[].resources")
    if amount < 1:
        made[GPU_MILLI] = int(amount * 1000)
    else:
        made[GPU] = int(amount)
    types = [name.strip() for name, _ in pairs]
    field.changed("type and number of GPUs of a node", f"GPUs of each rank: {count}; {gpu_types(launch.body, types)}")


def _recovered(launch: ImportedLaunch, field: ForeignField) -> None:
    """Convert the exit codes (one, or a list) at which a job restarts without a limit."""
    if not field.is_set:
        return
    codes = [item.whole(most=255) for item in (field.items() if field.is_list else [field])]
    if not any(codes):
        field.lost("starts again at an end with 0", "an end with 0 is a success")
        return
    add_rule(launch, field, "notCounted", exitCodes=exit_codes(code for code in codes if code))
    field.changed("exit codes at which it always starts again", f"failurePolicy: notCounted, at most {RESTARTS} times")


def _ports(launch: ImportedLaunch, field: ForeignField) -> None:
    if not field.is_set:
        return
    words = field.words() if field.is_list else [field.text()]
    numbers: list[int] = []
    for word in words:
        low, _, high = word.partition("-")
        first, last = number_in(low), number_in(high or low)
        if first is None or last is None or not 0 < first <= last <= 65_535:
            field.refuse("must be a port, or a range such as 8000-8010")
        numbers += range(first, min(last, first + PORTS_MAX) + 1)
    kept = list(dict.fromkeys(numbers))[:PORTS_MAX]
    launch.put("ports", [{"name": f"port-{number}", "port": number} for number in kept], field)
    if len(kept) < len(numbers):
        field.lost(f"{len(numbers)} ports or more", f"the first {PORTS_MAX} of them; more are not possible")
    else:
        field.changed("ports that are open to the internet", "ports: through the API, for its users: slipway open")


def _secrets(launch: ImportedLaunch, field: ForeignField, container: Json) -> None:
    name = f"{launch.body.get('name') or 'sky'}-secrets"
    made: list[Json] = []
    for key, item in field.fields().items():
        variable: Json = {"name": key, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}
        made.append(launch.trace(variable, item))
        here = f"a key of the Secret {name}: make it in the workspace, with the value"
        item.document.note(item.steps, Verdict.CHANGED, "a secret value", here)
    if made:
        container["env"] = made


def _mounts(root: ForeignField, container: Json) -> Json:
    """Return the volumes of the pod."""
    folder = root.get("workdir")
    folder.lost(
        "a folder that is copied to ~/sky_workdir", "upload it, and name it as context: docs/launching.md, Files"
    )
    for _, item in root.get("file_mounts").fields().items():
        if item.is_object and item.get("store").value == "volume":
            item.lost("a volume of the cloud", "have a volume claim made, and add volumes: {PATH: CLAIM}")
        elif item.is_object or "://" in item.text():
            item.lost("a bucket, copied or mounted", "mount it with a CSI driver, or fetch it in the script")
        else:
            item.lost("a local file or folder", "send it: files, or context (docs/launching.md, Files)")
    volumes: list[Json] = []
    mounts: list[Json] = []
    for path, item in root.get("volumes").fields().items():
        if item.is_object:
            item.lost("a volume that is made for the task", "have a volume claim made, and add volumes: {PATH: CLAIM}")
            continue
        claim = plain_name(item.text())
        if not claim or not path.startswith("/"):
            item.refuse("must be PATH: NAME, with an absolute path")
        volumes.append({"name": claim, "persistentVolumeClaim": {"claimName": item.text()}})
        mounts.append({"name": claim, "mountPath": path})
        item.changed("a volume of SkyPilot", f"the volume claim {item.text()} of the workspace")
    if mounts:
        container["volumeMounts"] = mounts
    return {"volumes": volumes} if volumes else {}
