"""Slurm: a batch script with `#SBATCH` lines.

A task becomes a rank. The script runs in every rank, and `srun PROGRAM` in it runs the program once in each rank. An
array becomes one launch per index.

Source: Slurm, sbatch(1) and srun(1); Pyxis, --container-image.
"""

import re
import shlex
from collections.abc import Callable
from math import ceil

from slipway.cli.importing.foreign import ForeignDocument, ForeignField, Json
from slipway.cli.importing.kinds import ImportOptions
from slipway.cli.importing.outcome import ImportedLaunch, main_template
from slipway.cli.importing.vocabulary import (
    GPU,
    gpu_types,
    image_of_options,
    missing_variables,
    name_allocation,
    name_of,
    plain_name,
    provided_variables,
    size,
)
from slipway.errors import InvalidError
from slipway.model.ids import NAME_LENGTH_MAX
from slipway.model.numbers import number_in
from slipway.model.times import format_duration

ARRAY_MAX = 200
"""The most launches of one script."""
FILE = "job.sh"
Option = Callable[[str], ForeignField]
"""Returns the field of an option, by its long name without hyphens."""
_MARK = "#SBATCH"
_SRUN = re.compile(r"^(\s*(?:time\s+|exec\s+)?)srun\b")
_LONG = {
    **{"-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-G": "--gpus", "-t": "--time", "-p": "--partition"},
    **{"-A": "--account", "-q": "--qos", "-J": "--job-name", "-o": "--output", "-e": "--error", "-a": "--array"},
    **{
        "-H": "--hold",
        "-D": "--chdir",
        "-d": "--dependency",
        "-C": "--constraint",
        "-w": "--nodelist",
        "-x": "--exclude",
    },
    **{"-b": "--begin", "-L": "--licenses", "-M": "--clusters", "-i": "--input", "-S": "--core-spec", "-W": "--wait"},
}
_FLAGS = {"--hold", "--requeue", "--no-requeue", "--exclusive", "--overcommit", "--wait", "--contiguous", "--verbose"}
_LOST = {
    "--begin": ("starts at a time", "launch it with --hold, and resume it with cron or at"),
    "--mail-type": ("writes mail", "make a webhook: slipway webhook create"),
    "--mail-user": ("writes mail", "make a webhook: slipway webhook create"),
    "--exclusive": ("no other job on the node", "ask for all GPUs of a node"),
    "--nodelist": ("which nodes", "set ranks[].nodeSelector with labels of nodes"),
    "--exclude": ("which nodes not", "set ranks[].affinity with labels of nodes"),
    "--constraint": ("features of the node", "gpuType for a type of GPU; ranks[].nodeSelector for labels"),
    "--reservation": ("a reservation of nodes", "a queue of its own, with a quota"),
    "--licenses": ("licences", "a pool may manage other resources: docs/scheduling.md"),
    "--export": ("variables of your shell", "slipway run --env NAME, or env"),
    "--chdir": ("the working directory", "workingDir of the container, on a volume"),
    "--signal": ("a signal before the limit", "python -m slipway.inside run --preempt-signal USR1 -- PROGRAM"),
    "--nice": ("a lower priority", "set priority: 0 to 1000, the higher goes first (default: 50)"),
    "--switch": ("how far apart the nodes may be", "topology: {key: NODE LABEL, mode: preferred}"),
    "--switches": ("how far apart the nodes may be", "topology: {key: NODE LABEL, mode: preferred}"),
    "--input": ("the standard input", "read the file in the script"),
    "--tmp": ("temporary disk of the node", "ephemeral-storage in ranks[].resources"),
    "--container-mounts": ("folders of the node in the container", "volumes: {PATH: CLAIM}, of a volume claim"),
    "--clusters": ("which clusters", "slipway --server"),
}
_UNNEEDED = {
    "--output": "slipway logs has the output",
    "--error": "slipway logs has the output",
    "--open-mode": "slipway logs has the output of all attempts",
    "--comment": "a note",
    "--no-requeue": "the default here",
    "--gpu-bind": "a rank sees its own GPUs only",
    "--ntasks-per-gpu": "a rank is a task",
    "--distribution": "the scheduler places the ranks",
    "--hint": "the scheduler places the ranks",
    "--cpu-bind": "the scheduler places the ranks",
    "--threads-per-core": "the scheduler places the ranks",
    "--container-workdir": "the script runs in its own folder",
    "--wait": "slipway wait ID",
    "--verbose": "slipway events ID",
    "--overcommit": "requests say how much a rank needs",
    "--contiguous": "the scheduler places the ranks",
}
_WITH_VALUE = {"-n", "-N", "-c", "-p", "-t", "-w", "-x", "-G", "-J", "-o", "-e", "-A", "-q", "-D", "-m"}
"""Options of srun whose value is the next word."""


def script(document: ForeignDocument, options: ImportOptions) -> list[ImportedLaunch]:
    """Convert a batch script for `sbatch`."""
    text = str(document.root.value)
    document.root = ForeignField(document, (), {**_options(text), "script": text})
    indexes = _indexes(document.root.get(f"{_MARK} --array"))
    return [_launch(document, text, options, index) for index in indexes or [None]]


def _options(text: str) -> dict[str, str]:
    """Return {`#SBATCH --nodes`: its value}."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith(_MARK):
            if line.strip() and not line.lstrip().startswith("#"):
                break
            continue
        try:
            words = shlex.split(re.sub(r"\s#.*$", "", line.removeprefix(_MARK)))
        except ValueError as exc:
            raise InvalidError(f"line {number}: cannot be read ({exc})") from exc
        while words:
            word = words.pop(0)
            name, has_value, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
            if not word.startswith("-") or len(name) < 2:
                raise InvalidError(f"line {number}: {word[:40]!r} is no option; write --NAME=VALUE")
            name = _LONG.get(name, name)
            if not has_value and name not in _FLAGS and words and not words[0].startswith("-"):
                value = words.pop(0)
            found[f"{_MARK} {name}"] = value
    return found


def _launch(document: ForeignDocument, text: str, options: ImportOptions, index: int | None) -> ImportedLaunch:
    root, launch = document.root, ImportedLaunch(document)

    def option(name: str) -> ForeignField:
        return root.get(f"{_MARK} --{name}")

    name_allocation(launch.body, option("job-name"))
    container: Json = {"command": ["bash", FILE]}
    image = option("container-image")
    if image.text():
        container["image"] = image.text().removeprefix("docker://").replace("#", "/")
        image.carried("image")
    else:
        image_of_options(container, image, options.image, "the programs of the node")
    count, per_node = _tasks(option)
    resources = _resources(launch, option, count, per_node)
    _queueing(launch, option)
    own = _own_script(text)
    told = {
        "SLURM_PROCID": "$(RANK)",
        "SLURM_NODEID": "$(RANK)",
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": "$(WORLD_SIZE)",
        "SLURM_NNODES": "$(WORLD_SIZE)",
        "SLURM_JOB_NUM_NODES": "$(WORLD_SIZE)",
        "SLURM_JOB_ID": "$(SLIPWAY_ALLOCATION_ID)",
        "SLURM_JOBID": "$(SLIPWAY_ALLOCATION_ID)",
        "SLURM_CPUS_PER_TASK": str(resources.get("cpu", 1)),
        "SLURM_GPUS_ON_NODE": str(resources.get(GPU, 0)),
        "SLURM_JOB_NAME": option("job-name").text() or "job",
    }
    if index is not None:
        told |= {"SLURM_ARRAY_TASK_ID": str(index)}
        _name_index(launch, index)
    _note_script(root.get("script"), text, missing_variables("SLURM_", told, own))
    if env := provided_variables(told, own):
        launch.body["env"] = env
    launch.body["files"] = [{"path": FILE, "content": own}]
    role: Json = {"name": "worker", "count": count, "template": main_template(launch, container)}
    if resources:
        role["resources"] = resources
    launch.roles().append(role)
    if count == 1 and GPU not in resources:
        launch.body["kind"] = "command"
    _dependency(option("dependency"))
    for name, (does, here) in _LOST.items():
        option(name.removeprefix("--")).lost(does, here)
    for name, here in _UNNEEDED.items():
        option(name.removeprefix("--")).unneeded(here)
    return launch


_AFTER = {"afterok": "ok", "afterany": "end", "afternotok": "failed"}


def _dependency(field: ForeignField) -> None:
    """Report dependencies as lost: job numbers of Slurm do not exist here. The report names our options."""
    if not field.is_set:
        return
    kinds = [part.partition(":")[0] for part in re.split(r"[,?]", field.text())]
    options = list(dict.fromkeys(f"--after ID:{_AFTER[kind]}" for kind in kinds if kind in _AFTER))
    others = list(dict.fromkeys(kind for kind in kinds if kind not in _AFTER))
    here = f"launch with {' '.join(options)}, where ID is the allocation that the job became" if options else ""
    if others:
        here += f"{'; ' if here else ''}{', '.join(others)}: launch it when it may start, or slipway run --hold"
    field.lost("starts after other jobs", here)


def _name_index(launch: ImportedLaunch, index: int) -> None:
    end = f"-{index}"
    if "name" in launch.body:
        launch.body["name"] = str(launch.body["name"])[: NAME_LENGTH_MAX - len(end)] + end


def _number(field: ForeignField, default: int) -> int:
    text = field.text()
    if not field.is_set:
        return default
    first = number_in(text.partition("-")[0])
    if first is None or not 0 < first <= 4096:
        field.refuse("must be a whole number from 1 to 4096")
    return first


def _tasks(option: Option) -> tuple[int, int]:
    """Return (ranks, ranks of a node)."""
    nodes, tasks, per_node = option("nodes"), option("ntasks"), option("ntasks-per-node")
    node_count = _number(nodes, 1)
    each_node = _number(per_node, 1)
    count = _number(tasks, node_count * each_node)
    if tasks.is_set and not per_node.is_set:
        each_node = max(1, ceil(count / node_count))
    if each_node > 1 or count != node_count:
        nodes.changed("how many nodes", f"{count} ranks, one for each task; they may share nodes, or not")
    else:
        nodes.carried("ranks[].count")
    tasks.carried("ranks[].count")
    per_node.changed("tasks of a node", f"{count} ranks, one for each task; each counts as a node of its own")
    if count > 4096:
        tasks.refuse("more than 4096 ranks are not possible")
    return count, each_node


def _resources(launch: ImportedLaunch, option: Option, count: int, per_node: int) -> Json:
    made: Json = {}
    cpus = option("cpus-per-task")
    if cpus.is_set:
        made["cpu"] = _number(cpus, 1)
        cpus.carried("ranks[].resources, cpu")
    gpus = _gpus(launch, option, count, per_node)
    if gpus:
        made[GPU] = gpus
    memory, of_cpu, of_gpu = option("mem"), option("mem-per-cpu"), option("mem-per-gpu")
    for field, times, parts, what in (
        (memory, 1, per_node, "memory of a node"),
        (of_cpu, int(made.get("cpu", 1)), 1, "memory of a CPU"),
        (of_gpu, gpus or 1, 1, "memory of a GPU"),
    ):
        if field.is_set and field.text() == "0":
            field.lost("all memory of the node", "ask for as much as the program needs: ranks[].resources, memory")
        elif field.is_set:
            made["memory"] = _share(field, times, parts)
            field.changed(what, f"memory: {made['memory']} of each rank, as a request")
    return made


def _share(field: ForeignField, times: int, parts: int) -> str:
    quantity = size(field, field.text(), "M")
    number, unit = re.fullmatch(r"(\d+)(\D*)", quantity).groups()  # pyright: ignore[reportOptionalMemberAccess]
    if int(number) * times % parts == 0:
        return f"{int(number) * times // parts}{unit}"
    powers = {"": 0, "Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5}
    return f"{int(number) * times * 1024 ** powers[unit] // parts // 1024**2}Mi"


def _gpus(launch: ImportedLaunch, option: Option, count: int, per_node: int) -> int:
    """Return the GPUs of each rank."""
    found = 0
    for name, ranks in (("gres", per_node), ("gpus-per-node", per_node), ("gpus", count), ("gpus-per-task", 1)):
        field = option(name)
        if not field.is_set:
            continue
        words = field.text().split(":")
        if name == "gres":
            if words[0] != "gpu":
                field.lost("another resource of the node", "its device plugin's resource in ranks[].resources")
                continue
            words = words[1:] or ["1"]
        number = words[-1].partition("(")[0] if words[-1][:1].isdigit() else "1"
        types = words if not words[-1][:1].isdigit() else words[:-1]
        gpus = number_in(number)
        if gpus is None or gpus % ranks:
            field.refuse(f"must be a number of GPUs that {ranks} ranks can share")
        found = gpus // ranks
        here = f"GPUs of each rank: {found}"
        if types and plain_name(types[0]):
            here += f"; {gpu_types(launch.body, types[:1])}"
        field.changed("GPUs of the job, a node or a task", here)
    return found


def _queueing(launch: ImportedLaunch, option: Option) -> None:
    partition, account, qos = option("partition"), option("account"), option("qos")
    if partition.is_set:
        launch.body["pool"] = name_of(partition, "pool", "pool")
    if account.is_set:
        launch.body["queue"] = name_of(account, "queue", "queue")
    qos.lost("a class of service", "set queue and priority")
    limit = option("time")
    if limit.is_set:
        launch.body["maxRuntime"] = format_duration(_seconds(limit))
        limit.changed("the time limit of the job", "maxRuntime: of each attempt, measured while it runs")
    if option("requeue").is_set:
        launch.body |= {"preemptible": True, "maxRestarts": 3}
        option("requeue").changed("starts again after a node or a preemption", "preemptible, and maxRestarts: 3")
    if option("hold").is_set:
        launch.body["hold"] = True
        option("hold").carried("hold")


def _seconds(field: ForeignField) -> int:
    """Parse a time: `MIN`, `MIN:SEC`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`."""
    days, has_days, rest = field.text().partition("-")
    parts = (rest if has_days else days).split(":")
    numbers = [number for part in parts if (number := number_in(part, 6)) is not None]
    whole_days = number_in(days, 6) if has_days else 0
    if len(parts) > 3 or len(numbers) < len(parts) or whole_days is None:
        field.refuse("must be a time such as 90, 02:00:00 or 1-12")
    if has_days:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
        total = whole_days * 86_400 + hours * 3600 + minutes * 60 + seconds
    elif len(numbers) == 3:
        total = numbers[0] * 3600 + numbers[1] * 60 + numbers[2]
    else:
        total = numbers[0] * 60 + (numbers[1] if len(numbers) > 1 else 0)
    if not total:
        field.refuse("must be longer than zero; leave it out for no limit")
    return total


def _indexes(field: ForeignField) -> list[int]:
    """Return the indexes of an array; empty without an array."""
    if not field.is_set:
        return []
    text, has_limit, limit = field.text().partition("%")
    found: dict[int, None] = {}
    for part in text.split(","):
        shape = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", part.strip())
        if shape is None or shape[3] == "0" or (shape[2] and int(shape[2]) < int(shape[1])):
            field.refuse("must be indexes such as 1-10, 0-20:2 or 1,3,5")
        indexes = range(int(shape[1]), int(shape[2] or shape[1]) + 1, int(shape[3] or 1))
        # The length of a range is known without its indexes, of which a document can name ten million.
        found |= dict.fromkeys(indexes[: ARRAY_MAX + 1])
        if len(found) > ARRAY_MAX:
            field.refuse(f"has more than {ARRAY_MAX} indexes; launch them in a loop: docs/tutorials/from-slurm.md")
    if has_limit:
        field.lost(f"at most {limit} at once", "group them with --job, whose --max-slots limits their GPUs")
    else:
        field.changed("one job for each index", f"{len(found)} launches; SLURM_ARRAY_TASK_ID is set")
    return list(found)


def _own_script(text: str) -> str:
    """Return the script for each rank: without `srun`, which would start the tasks again."""
    lines: list[str] = []
    for line in _unbroken(text):
        found = _SRUN.match(line)
        lines.append(found[1] + _after_srun(line[found.end() :]) if found else line)
    return "\n".join(lines) + "\n"


def _unbroken(text: str) -> list[str]:
    """Return the lines of a script; an `srun` command that continues on the next lines becomes one line."""
    lines: list[str] = []
    is_open = False
    for line in text.splitlines():
        if is_open:
            lines[-1] = f"{lines[-1]} {line.strip()}"
        else:
            lines.append(line)
        is_open = lines[-1].endswith("\\") and _SRUN.match(lines[-1]) is not None
        if is_open:
            lines[-1] = lines[-1].removesuffix("\\").rstrip()
    return lines


def _note_script(field: ForeignField, text: str, missing: list[str]) -> None:
    """Report the parts of the script that have another meaning here, or none."""
    said: list[str] = []
    for line in _commands(text):
        if re.match(r"^\s*(module|ml|spack)\s", line):
            said.append("modules of the node: put the programs into the image")
        if re.search(r"\b(scontrol|squeue|sinfo|scancel|sacct)\b", line):
            said.append("asks Slurm: use MASTER_ADDR, or python -m slipway.inside hostfile")
        if re.search(r"\b(mpirun|mpiexec)\b", line):
            said.append("mpirun would run in each rank: run it on rank 0 only, with sshd (docs/inside.md)")
    if any("srun" in re.findall(r"\w+", line) and not _SRUN.match(line) for line in _commands(text)):
        said.append("srun within a line: take it out, each rank runs the program once")
    if missing:
        said.append(f"{', '.join(missing)}: not set here; MASTER_ADDR, RANK and WORLD_SIZE are")
    field.carried("files, command")
    has_srun = any(_SRUN.match(line) for line in text.splitlines())
    if has_srun:
        field.changed("srun starts a program in each task", "files; each rank runs the program once, without srun")
    if said:
        field.lost("parts of it need Slurm or its node", "; ".join(dict.fromkeys(said)))


def _commands(text: str) -> list[str]:
    """Return the lines that are not comments."""
    return [line for line in text.splitlines() if not line.lstrip().startswith("#")]


def _after_srun(rest: str) -> str:
    """Return the text after the options of srun."""
    while True:
        found = re.match(r"\s*(-\S+)(=\"[^\"]*\")?", rest)
        if found is None:
            return rest.lstrip()
        rest = rest[found.end() :]
        if found[1] in _WITH_VALUE or (found[1] == "--mpi" and not rest.startswith("=")):
            rest = re.sub(r"^\s*\S+", "", rest, count=1)
