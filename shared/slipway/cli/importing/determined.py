"""Determined AI: configurations of notebooks, shells, commands and TensorBoards, and experiments.

A slot is a GPU. An experiment becomes the one trial of a `single` searcher. Slipway has no search over hyperparameters.

Source: Determined, job configuration reference and experiment configuration reference (0.3x), schemas/expconf/v0.
"""

import json
import re
from typing import cast

from slipway.cli.importing.foreign import ForeignDocument, ForeignField, Json, lose
from slipway.cli.importing.kinds import ImportOptions
from slipway.cli.importing.outcome import ImportedLaunch, main_template
from slipway.cli.importing.vocabulary import (
    GPU,
    duration,
    image_of_options,
    in_shell,
    name_allocation,
    name_of,
    plain_name,
    size,
    variables,
)
from slipway.crd.expansion import literal

RESTARTS = 5
"""max_restarts of an experiment that does not set it."""
_TRIAL_CLASS = re.compile(r"[\w.]*:[\w.]+")
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_TORCH = re.compile(
    r"python3?\s+-m\s+determined\.launch\.(?:torch_distributed|deepspeed)(?:\s+--(?=\s))?(?:\s+python3?(?=\s))?(?=\s|$)"
)
_KINDS = ("notebook", "shell", "command", "tensorboard")
_OF_TRAINER = "Determined's own trainer reads it"
_LOST_OF_EXPERIMENT = {
    "checkpoint_storage": ("where checkpoints are kept", "mount a volume claim, and save there"),
    "checkpoint_policy": ("when a checkpoint is made", "save in the script: docs/tutorials/preemption.md"),
    "min_checkpoint_period": ("how often a checkpoint is made", "save in the script"),
    "min_validation_period": (_OF_TRAINER, "do it in the script"),
    "perform_initial_validation": (_OF_TRAINER, "do it in the script"),
    "scheduling_unit": (_OF_TRAINER, "do it in the script"),
    "records_per_epoch": (_OF_TRAINER, "do it in the script"),
    "optimizations": (_OF_TRAINER, "do it in the script"),
    "data_layer": (_OF_TRAINER, "do it in the script"),
    "profiling": ("profiles the trial", "use a profiler in the script"),
    "reproducibility": ("the seed of the trial", "pass the seed to the script"),
    "tensorboard_storage": ("where metrics are kept", "write to a volume claim; slipway tensorboard start"),
    "log_policies": (
        "what a line of the log means",
        "end with an exit code; maxRestarts says how often it starts again",
    ),
    "log_pattern_policies": ("what a line of the log means", "end with an exit code; maxRestarts says how often"),
    "integrations": ("other systems of the installation", "call them from the script"),
    "security": ("accounts of other systems", "use a Secret of the workspace: --secret NAME=SECRET/KEY"),
    "retention_policy": ("how long logs are kept", "ended work is kept as long as the installation says"),
    "project": ("groups experiments", "group them with --job, or with labels"),
    "internal": ("Determined wrote it", "leave it out"),
}


def interactive(document: ForeignDocument, options: ImportOptions) -> list[ImportedLaunch]:
    """Convert a file of `det notebook start --config-file` or a similar command."""
    root = document.root
    kind = options.kind or _kind_of(root)
    launch = ImportedLaunch(document, kind)
    description = root.get("description")
    if description.is_set:
        name_allocation(launch.body, description)
    container: Json = {}
    entrypoint = root.get("entrypoint")
    if entrypoint.is_set:
        words = entrypoint.words() if entrypoint.is_list else in_shell(entrypoint.text(), "sh")
        container["command"] = words
        entrypoint.carried("command")
    elif kind == "command":
        entrypoint.refuse("a command needs one, such as [python, train.py]; or say --kind notebook, or --kind shell")
    idle = root.get("idle_timeout")
    if idle.is_set:
        launch.put("idleTimeout", duration(idle), idle)
        idle.carried("idleTimeout")
    root.get("notebook_idle_type").changed("what counts as use of a notebook", "kernels, terminals and traffic count")
    root.get("debug").lost("more lines in the log", "set the variables that your program reads")
    folder = root.get("work_dir")
    if folder.is_set:
        container["workingDir"] = folder.text()
        folder.carried("workingDir of the container")
    arguments = root.get("tensorboard_args")
    if arguments.is_set:
        arguments.words()
        arguments.lost("further arguments of TensorBoard", "set command and args: they replace Slipway's own")
    slots = root.get("resources", "slots")
    gpus = slots.whole(1 if kind in ("notebook", "shell", "command") else 0)
    slots.carried(f"ranks[].resources, {GPU}")
    _common(launch, container, gpus, 1, default=options.image)
    _labels(launch, root.get("labels"))
    return [launch]


def _kind_of(root: ForeignField) -> str:
    if root.get("tensorboard_args").is_set:
        return "tensorboard"
    if root.get("notebook_idle_type").is_set:
        return "notebook"
    if root.get("entrypoint").is_set:
        return "command"
    root.refuse(f"the file does not say what it is for; say --kind, one of {', '.join(_KINDS)}")


def experiment(document: ForeignDocument, options: ImportOptions) -> list[ImportedLaunch]:
    """Convert an experiment to its one trial."""
    root, launch = document.root, ImportedLaunch(document)
    name_allocation(launch.body, root.get("name"))
    root.get("description").lost("a text for people", "a launch has labels only")
    workspace = root.get("workspace")
    if workspace.is_set:
        launch.put("workspace", plain_name(workspace.text()) or "default", workspace)
        workspace.changed("a workspace of Determined", f"workspace: {launch.body['workspace']}; it must exist here")
    container: Json = {"command": _entrypoint(root.get("entrypoint"))}
    values = _hyperparameters(root.get("hyperparameters"))
    data = root.get("data")
    if data.is_set:
        data.object()
        data.changed("get_data_config() returns it", "the variable DET_DATA has it as JSON; read it in the script")
    _searcher(root.get("searcher"))
    restarts = root.get("max_restarts")
    launch.put("maxRestarts", restarts.whole(RESTARTS, most=1000), restarts)
    restarts.carried("maxRestarts")
    _labels(launch, root.get("labels"))
    slots = root.get("resources", "slots_per_trial")
    gpus = slots.whole(1)
    ranks, per_rank = _spread(gpus, options.gpus_per_node, slots)
    environment: Json = {}
    if values:
        environment["DET_HPARAMS"] = literal(json.dumps(values, sort_keys=True))
    if data.is_set:
        environment["DET_DATA"] = literal(json.dumps(data.value, sort_keys=True))
    _common(launch, container, per_rank, ranks, environment, default=options.image)
    lose(root, _LOST_OF_EXPERIMENT)
    root.get("debug").lost("more lines in the log", "set the variables that your program reads")
    where = root.get("resources")
    where.get("max_slots").lost("GPUs of all trials together", "slipway job create NAME --max-slots N, then --job NAME")
    return [launch]


def _spread(gpus: int, per_node: int, slots: ForeignField) -> tuple[int, int]:
    """Return (ranks, GPUs of each rank)."""
    if gpus <= per_node:
        slots.changed("GPUs, on one agent or several", "GPUs of one rank, on one node")
        return 1, gpus
    if gpus % per_node:
        slots.refuse(f"is no multiple of {per_node}, the GPUs of a rank; say --gpus-per-node")
    slots.changed("GPUs, on as many agents as it takes", f"{gpus // per_node} ranks of {per_node} GPUs each")
    return gpus // per_node, per_node


def _entrypoint(field: ForeignField) -> list[str]:
    if not field.is_set:
        field.refuse("an experiment needs one, such as python3 train.py")
    text = " ".join(field.words()) if field.is_list else field.text()
    if _TRIAL_CLASS.fullmatch(text.strip()) or "--trial" in text:
        field.refuse("names a trial class, which only Determined can run; write a script with its own training loop")
    if "determined.launch.horovod" in text:
        field.refuse(
            "starts Horovod by Determined's launcher; start the processes with torchrun or mpirun: docs/inside.md"
        )
    if _TORCH.search(text):
        made = _TORCH.sub("torchrun", text)
        field.changed("starts a process for each GPU by Determined's launcher", f"command: {made}")
        return in_shell(made, "sh")
    field.carried("command")
    return field.words() if field.is_list else in_shell(text, "sh")


def _hyperparameters(field: ForeignField) -> Json:
    """Return the constant hyperparameters, by name."""
    found: Json = {}
    for name, item in field.fields().items():
        told = cast("Json", item.value) if item.is_object else {}
        if told.get("type") == "const":
            found[name] = told.get("val")
        elif "type" in told:
            item.lost("a range that the search tries", "launch each value by itself, with --job NAME")
            continue
        else:
            found[name] = item.value
        item.changed("get_hparam() returns it", "the variable DET_HPARAMS has it as JSON; read it in the script")
    return found


def _searcher(field: ForeignField) -> None:
    name = field.get("name").text("single")
    if name == "single":
        field.get("name").carried()
        field.get("metric").lost("which metric chooses the checkpoint", "choose it in the script")
        field.get("smaller_is_better").lost("how the metric is compared", "choose it in the script")
        field.get("max_length").lost("how long it trains", "pass it to the script; maxRuntime limits the time")
        for other in ("source_trial_id", "source_checkpoint_uuid"):
            field.get(other).lost("begins with a checkpoint of another trial", "load it in the script from a volume")
        return
    field.lost(f"the search {name} over hyperparameters", "launch the trials yourself, and group them with --job NAME")


def _common(
    launch: ImportedLaunch, container: Json, gpus: int, ranks: int, environment: Json | None = None, *, default: str
) -> None:
    """Convert environment, resources and bind_mounts, which all kinds have."""
    root = launch.document.root
    env = root.get("environment")
    image = env.get("image")
    if image.is_object:
        which = "cuda" if gpus else "cpu"
        chosen = image.get(which) if image.get(which).is_set else image.get("gpu")
        for name, item in image.fields().items():
            if name == chosen.steps[-1]:
                container["image"] = item.carried("image").text()
            else:
                item.unneeded(f"the image {which} is used, as there are {gpus or 'no'} slots")
    elif image.is_set:
        container["image"] = image.carried("image").text()
    elif launch.body["kind"] in ("training", "command"):
        image_of_options(container, image, default, "Determined's own image, with PyTorch and CUDA")
    told = env.get("environment_variables")
    if told.is_object and told.object().keys() & {"cpu", "cuda", "gpu", "rocm"}:
        found: dict[str, str] = {}
        for name, item in told.fields().items():
            if name == ("cuda" if gpus else "cpu") or (name == "gpu" and gpus):
                found |= variables(item)
            else:
                item.unneeded(f"not set, as there are {gpus or 'no'} slots")
    else:
        found = variables(told)
    if found or environment:
        launch.put("env", {**(environment or {}), **found}, told)
    pull = env.get("force_pull_image")
    if pull.is_set:
        container["imagePullPolicy"] = "Always" if pull.truth() else "IfNotPresent"
        pull.carried("imagePullPolicy of the container")
    env.get("registry_auth").lost(
        "the login of the registry", "keep it in a Secret: slipway workspace set NAME --pull-secret SECRET"
    )
    for name in ("add_capabilities", "drop_capabilities"):
        env.get(name).lost("Linux capabilities", "add privileges: [NAME], where the pool allows them")
    env.get("proxy").lost("proxies of the network", "set HTTP_PROXY and its like in env")
    _ports(launch, env)
    pod = _pod_spec(launch, env.get("pod_spec"), container)
    for mount in root.get("bind_mounts").items():
        mount.lost("mounts a folder of the node", "have a volume claim made, and add volumes: {PATH: CLAIM}")
    _resources(launch, root.get("resources"))
    role: Json = {"name": "worker", "count": ranks, "template": main_template(launch, container, pod)}
    if gpus:
        role["resources"] = {GPU: gpus}
    launch.roles().append(role)


def _ports(launch: ImportedLaunch, env: ForeignField) -> None:
    ports: list[Json] = []
    for name, item in env.get("ports").fields().items():
        number = item.whole(least=1, most=65_535)
        ports.append({"name": plain_name(name, 15) or f"port-{number}", "port": number})
        item.carried("ports")
    for item in env.get("proxy_ports").items():
        number = item.get("proxy_port").whole(least=1, most=65_535)
        if not number:
            item.get("proxy_port").refuse("must be a port")
        scheme = "tcp" if item.get("proxy_tcp").truth() else "http"
        ports.append({"name": f"port-{number}", "port": number, "scheme": scheme})
        item.changed("a port that the master leads to", f"ports: {number}; open it with slipway open, or port-forward")
    if ports:
        launch.put("ports", ports, env.get("ports"))


def _pod_spec(launch: ImportedLaunch, field: ForeignField, container: Json) -> Json:
    """Return the rest of the pod; the fields of its first container are moved into `container`."""
    spec = field.get("spec")
    if not spec.is_set:
        return {}
    field.carried("template")
    pod = cast("Json", launch.copied(spec))
    containers = spec.get("containers").items()
    if len(containers) > 1:
        containers[1].refuse("a second container is not supported in pod_spec; write it into template.spec.containers")
    pod.pop("containers", None)
    if containers:
        containers[0].filled()
        own = cast("Json", launch.copied(containers[0]))
        own.pop("name", None)
        container |= {name: value for name, value in own.items() if name not in container}
    return pod


def _resources(launch: ImportedLaunch, field: ForeignField) -> None:
    pool = field.get("resource_pool")
    if pool.text():
        launch.put("pool", name_of(pool, "pool", "pool"), pool)
    else:
        pool.unneeded("the default pool")
    priority = field.get("priority")
    if priority.is_set:
        ours = 100 - priority.whole(least=1, most=99)
        launch.put("priority", ours, priority)
        priority.changed("the lower number goes first", f"priority: {ours}; the higher number goes first")
    shm = field.get("shm_size")
    if shm.is_set:
        launch.put("shmSize", size(shm, shm.text(), ""), shm)
        shm.carried("shmSize")
    field.get("weight").lost("the share of a job in its pool", "shares are between queues: Queue.spec.weight")
    field.get("agent_label").unneeded("Determined ignores it since 0.20")
    field.get("native_parallel").unneeded("Determined's own")
    field.get("is_single_node").unneeded("a rank is always on one node")
    field.get("devices").lost("devices of the node", "ask for a device plugin's resource in ranks[].resources")


def _labels(launch: ImportedLaunch, field: ForeignField) -> None:
    kept: dict[str, str] = {}
    for item in field.items():
        if _LABEL.fullmatch(item.text()):
            kept[item.text()] = "true"
            item.changed("a word", f'labels: {item.text()}: "true"')
        else:
            item.lost("a word", "a label has letters, digits, '-', '_' and '.' only")
    if kept:
        launch.put("labels", kept, field)
