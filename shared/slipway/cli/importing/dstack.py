"""dstack: tasks, dev environments and services.

A node becomes a rank. A dev environment becomes a shell; a service becomes one launch with a port.

Source: dstack, configurations.py, profiles.py and resources.py of its core models; "Distributed tasks".
"""

import re
import shlex

from slipway.cli.importing.foreign import ForeignDocument, ForeignField, Json, each, lose
from slipway.cli.importing.kinds import ImportOptions
from slipway.cli.importing.outcome import ImportedLaunch, main_template
from slipway.cli.importing.pods import replicate
from slipway.cli.importing.vocabulary import (
    GPU,
    duration,
    gpu_types,
    image_of_options,
    missing_variables,
    name_allocation,
    plain_name,
    provided_variables,
    size,
    variables,
)
from slipway.model.numbers import number_in

REPLICAS_MAX = 200
_PRIORITY = 50
"""Our priority for a launch without one; dstack's default is 0."""
_MEMORY = re.compile(r"\d+(\.\d+)?\s*[MGT]B(\.\.)?.*|\.\.\d+.*", re.IGNORECASE)
_ID_DIGITS = 10
_COUNT = re.compile(r"\d+(\.\.\d*)?")
_VENDORS = ("nvidia", "amd", "google", "intel", "tenstorrent")
_CLOUD = (
    *("backends", "regions", "availability_zones", "instance_types", "instances", "reservation", "max_price", "fleets"),
    *("creation_policy", "idle_duration", "spot_policy", "single_branch", "home_dir", "repos_dir"),
)
_LOST = {
    "files": ("local files and folders", "send them: files, or context (docs/launching.md, Files)"),
    "repos": ("a Git repository", "send the folder as context, or clone it in the command"),
    "registry_auth": ("the login of the registry", "a Secret: slipway workspace set NAME --pull-secret SECRET"),
    "schedule": ("starts it on a schedule", "Slipway has no schedules: launch it with cron"),
    "utilization_policy": ("ends it when its GPUs idle", "set idleTimeout, which looks at traffic and reports"),
    "tags": ("tags of the machines", "write labels"),
    "privileged": ("the container may do what its node may", "a pool with privilegedTemplates may allow it"),
    "nvcc": ("an image with the CUDA compiler", "name such an image"),
    "docker": ("Docker inside of the container", "use an image that builds without Docker"),
}
_SERVICE = {
    "model": ("an endpoint for a model beside others", "slipway open ID shows the address of the port"),
    "gateway": ("which gateway leads to it", "the API leads to it: slipway open ID"),
    "strip_prefix": ("how the path is passed on", "SLIPWAY_PROXY_PREFIX is the path that the program sees"),
    "https": ("TLS at the gateway", "TLS ends in front of the API"),
    "auth": ("whether a token is needed", "the API asks for one, as it is set up"),
    "scaling": ("adds replicas by load", "write replicas, and apply the launch again with more"),
    "rate_limits": ("limits on requests", "a proxy in front of the API"),
    "probes": ("requests that say whether it is ready", "write a readinessProbe into template.spec.containers"),
}


def configuration(document: ForeignDocument, options: ImportOptions) -> list[ImportedLaunch]:
    """Convert a file for `dstack apply`."""
    root = document.root
    kind = root.get("type").carried("kind").text()
    launch = ImportedLaunch(document, {"dev-environment": "shell"}.get(kind, "training"))
    name_allocation(launch.body, root.get("name"))
    nodes = root.get("nodes")
    count = nodes.whole(1, least=1, most=4096)
    nodes.carried("ranks[].count")
    container: Json = {}
    _image(root, container, options)
    resources = _resources(launch, root.get("resources"))
    if kind == "dev-environment":
        _dev_environment(launch, root)
    else:
        container |= _program(root)
    script = " ".join(root.get("commands").words())
    told = {
        "DSTACK_NODE_RANK": "$(RANK)",
        "DSTACK_NODES_NUM": "$(WORLD_SIZE)",
        "DSTACK_GPUS_PER_NODE": str(resources.get(GPU, 0)),
        "DSTACK_GPUS_NUM": str(int(resources.get(GPU, 0)) * count),
        "DSTACK_MASTER_NODE_IP": "$(MASTER_ADDR)",
    }
    env = {**provided_variables(told, script), **variables(root.get("env"))}
    if env:
        launch.put("env", env, root.get("env"))
    if missing := missing_variables("DSTACK_", told, script):
        root.get("commands").lost(
            f"use {', '.join(missing)}, which dstack sets", "not set here; MASTER_ADDR, RANK and WORLD_SIZE are"
        )
    folder = root.get("working_dir")
    if folder.is_set:
        container["workingDir"] = folder.text()
        folder.carried("workingDir of the container")
    _ports(launch, root, kind)
    pod = _volumes(root, container)
    _user(launch, root.get("user"))
    role: Json = {"name": "worker", "count": count, "template": main_template(launch, container, pod)}
    if resources:
        role["resources"] = resources
    launch.roles().append(role)
    if kind != "dev-environment" and count == 1 and GPU not in resources:
        launch.body["kind"] = "command"
    _limits(launch, root)
    each(root, _CLOUD, lambda item: item.unneeded("the pool has the machines"))
    lose(root, _LOST)
    for name in ("privileged", "nvcc", "docker"):
        if root.get(name).value is False:
            root.get(name).carried()
    if kind == "service":
        lose(root, _SERVICE)
        _replicas(launch, root)
    return [launch]


def _replicas(launch: ImportedLaunch, root: ForeignField) -> None:
    """Convert a fixed number of replicas; a number that depends on the load is reported as lost."""
    field, does = root.get("replicas"), "how many answer requests"
    if isinstance(field.value, int) and 1 < field.value <= REPLICAS_MAX and "name" in launch.body:
        address = replicate(launch, field.value, int(_port(root.get("port"))), field)
        field.changed(does, f"replicas: {field.value}, behind Service {address} of the workspace")
    elif field.value == 1:
        field.carried()
    else:
        field.lost(does, "write replicas, a number, and service with name and port")


def _image(root: ForeignField, container: Json, options: ImportOptions) -> None:
    image, python = root.get("image"), root.get("python")
    if image.is_set:
        container["image"] = image.carried("image").text()
    elif python.is_set:
        version = "3.10" if python.value == 3.1 else python.text()
        container["image"] = options.image or f"python:{version}"
        python.changed("dstack's image with that Python, and CUDA", f"image: {container['image']}, without CUDA")
    elif root.get("type").value != "dev-environment":
        image_of_options(container, image, options.image, "dstack's own image, with Python and CUDA")
    elif options.image:
        container["image"] = options.image


def _program(root: ForeignField) -> Json:
    commands, entrypoint = root.get("commands"), root.get("entrypoint")
    lines = commands.words()
    if root.get("setup").is_set:
        root.get("setup").unneeded("dstack ignores it")
    if entrypoint.is_set:
        try:
            words = shlex.split(entrypoint.text())
        except ValueError as exc:
            entrypoint.refuse(f"cannot be read as words of a shell ({exc})")
        entrypoint.carried("command")
        commands.carried("args")
        return {"command": words, **({"args": lines} if lines else {})}
    if not lines:
        commands.unneeded()
        return {}
    shell = root.get("shell")
    shell.carried("command")
    name = shell.text("/bin/sh" if root.get("image").is_set else "bash")
    commands.carried("command")
    return {"command": [name, "-c", "\n".join(["set -e", *lines] if len(lines) > 1 else lines)]}


def _dev_environment(launch: ImportedLaunch, root: ForeignField) -> None:
    root.get("ide").changed(
        "opens an editor on the machine", "VS Code over SSH: slipway ssh-config; the image needs sshd"
    )
    root.get("version").unneeded("you choose the editor")
    root.get("setup").unneeded("dstack ignores it")
    if lines := root.get("init").words():
        launch.put("setup", "\n".join(lines), root.get("init"))
        root.get("init").carried("setup")
    idle = root.get("inactivity_duration")
    if idle.is_set and idle.value not in ("off", False):
        launch.put("idleTimeout", duration(idle), idle)
        idle.changed("ends it without SSH connections", "idleTimeout: no traffic, and no program in the terminal")
    else:
        idle.carried()


def _resources(launch: ImportedLaunch, field: ForeignField) -> Json:
    made: Json = {}
    cpu, memory, disk, shm = field.get("cpu"), field.get("memory"), field.get("disk"), field.get("shm_size")
    if cpu.is_set:
        text = cpu.get("count").text() if cpu.is_object else cpu.text().rpartition(":")[2]
        made["cpu"] = _least(cpu, text)
        cpu.changed("CPUs of the machine, or a range", "a request of the rank, without a limit")
    if memory.is_set:
        made["memory"] = size(memory, _least(memory, memory.text()))
        memory.changed("memory of the machine, or a range", "a request of the rank, without a limit")
    if disk.is_set:
        text = disk.get("size").text() if disk.is_object else disk.text()
        made["ephemeral-storage"] = size(disk, _least(disk, text))
        disk.changed("disk of the machine, or a range", "ephemeral-storage: a request of the rank")
    if shm.is_set:
        launch.put("shmSize", size(shm, shm.text()), shm)
        shm.carried("shmSize")
    if field.get("gpu").is_set:
        _gpu(launch, field.get("gpu"), made)
    return made


def _least(field: ForeignField, text: str) -> str:
    """Return the lower end of a range."""
    least = text.partition("..")[0].strip()
    if not least or not least[0].isdigit():
        field.refuse("must begin with a number; a range needs a lower end here, such as 8..")
    return least


def _gpu(launch: ImportedLaunch, field: ForeignField, made: Json) -> None:
    names: list[str] = []
    count, lost = "1", ""
    if field.is_object:
        name = field.get("name")
        names = name.words() if name.is_list else [word for word in name.text().split(",") if word]
        count = field.get("count").text("1")
        for part in ("memory", "total_memory", "compute_capability"):
            field.get(part).lost("how large or new a GPU must be", "name the flavor: gpuType")
        field.get("vendor").lost("who makes the GPU", f"AMD's are amd.com/gpu in resources; this launch asks for {GPU}")
        for part in ("name", "count"):
            field.get(part).carried("gpuType" if part == "name" else f"ranks[].resources, {GPU}")
    else:
        for word in (part.strip() for part in field.text().split(":")):
            if _COUNT.fullmatch(word):
                count = word
            elif _MEMORY.fullmatch(word):
                lost = word
            elif word.lower() not in _VENDORS:
                names += [name for name in word.split(",") if name]
    number = number_in(_least(field, count))
    if number is None or number > 1024:
        field.refuse("must be a number of GPUs, such as 8, H100:8 or A100:80GB:2")
    if number:
        made[GPU] = number
    here = f"GPUs of each rank: {number}"
    if names:
        here += f"; {gpu_types(launch.body, names)}"
    if lost:
        field.lost(f"a GPU with {lost} of memory", f"{here}; name the flavor that has so much: gpuType")
    elif not field.is_object:
        field.changed("GPUs of a node", here)


def _ports(launch: ImportedLaunch, root: ForeignField, kind: str) -> None:
    made: list[Json] = []
    fields = root.get("ports").items()
    if kind == "service":
        fields = [*fields, root.get("port")]
        if not root.get("port").is_set:
            root.get("port").refuse("a service needs one")
    for item in fields:
        number = number_in(_port(item))
        if number is None or not 0 < number <= 65_535:
            item.refuse("must be a port, such as 8000 or 80:8000")
        if number not in [port["port"] for port in made]:
            made.append({"name": f"port-{number}", "port": number})
        item.changed(
            "a port that is forwarded to your machine", f"ports: slipway port-forward ID {number}, or slipway open"
        )
    if len(made) > 16:
        root.get("ports").refuse("at most 16 ports are possible")
    if made:
        launch.put("ports", made, root.get("ports"))


def _port(item: ForeignField) -> str:
    """Return the port in the container, as text."""
    return item.get("container_port").text() if item.is_object else item.text().rpartition(":")[2]


def _volumes(root: ForeignField, container: Json) -> Json:
    volumes: list[Json] = []
    mounts: list[Json] = []
    for number, item in enumerate(root.get("volumes").items()):
        if item.is_object:
            name, path = item.get("name").text(), item.get("path").text()
            is_of_machine = item.get("instance_path").is_set
        else:
            name, _, path = item.text().partition(":")
            is_of_machine = name.startswith("/")
        if is_of_machine:
            item.lost("a folder of the machine", "have a volume claim made, and add volumes: {PATH: CLAIM}")
            continue
        if not path.startswith("/") or not plain_name(name):
            item.refuse("must be NAME:PATH, with an absolute path")
        volumes.append({"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": name}})
        mounts.append({"name": f"volume-{number}", "mountPath": path})
        item.changed("a volume of dstack", f"the volume claim {name} of the workspace")
    if mounts:
        container["volumeMounts"] = mounts
    return {"volumes": volumes} if volumes else {}


def _user(launch: ImportedLaunch, field: ForeignField) -> None:
    if not field.is_set:
        return
    named, _, of_group = field.text().partition(":")
    user, group = number_in(named, _ID_DIGITS), number_in(of_group, _ID_DIGITS)
    if not user or (of_group and group is None):
        field.lost("the user inside of the container", "write its number: runAs: {user: 1001}; root is not possible")
        return
    launch.put("runAs", {"user": user, **({"group": group} if group is not None else {})}, field)
    field.carried("runAs")


def _limits(launch: ImportedLaunch, root: ForeignField) -> None:
    limit, stop = root.get("max_duration"), root.get("stop_duration")
    if limit.is_set and limit.value not in ("off", False):
        launch.put("maxRuntime", duration(limit), limit)
        limit.changed("ends the run", "maxRuntime: of each attempt, measured while it runs")
    else:
        limit.carried()
    stop.lost("how long it may take to end", "set terminationGracePeriodSeconds in template.spec")
    priority = root.get("priority")
    if priority.is_set:
        launch.put("priority", _PRIORITY + priority.whole(most=100), priority)
        priority.changed(
            "0 to 100, default 0", f"priority: {launch.body['priority']} of 0 to 1000, default {_PRIORITY}"
        )
    retry = root.get("retry")
    if retry.is_set and retry.value is not False:
        launch.put("maxRestarts", 3, retry)
        retry.changed("tries again, by events and for some time", "maxRestarts: 3; lost nodes never count")
    else:
        retry.carried()
    order, stops = root.get("startup_order"), root.get("stop_criteria")
    if order.value in (None, "any"):
        order.carried()
    else:
        order.lost("which node starts first", "all ranks start together; let the program wait")
    if stops.value in (None, "all-done"):
        stops.carried()
    else:
        stops.lost("ends when the master node has ended", "write the other ranks as a role with daemon: true")
