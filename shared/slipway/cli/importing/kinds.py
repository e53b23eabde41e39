"""The kinds of files that can be imported, and the conversion of a text to launches and a report.

Owns the table of kinds and the recognition of a document. The module of a system is imported when one of its documents
is found. Pure.
"""

import importlib
from collections.abc import Callable
from typing import Any, cast

import msgspec
import yaml

from slipway import yaml_reader
from slipway.cli.importing.foreign import ForeignDocument, ImportEntry, Json, Verdict
from slipway.cli.importing.outcome import ImportedLaunch
from slipway.crd.roleresources import object_of
from slipway.errors import InvalidError

ITEMS_MAX = 500
"""The most documents in one file."""
KNOWN = (
    "Kubernetes Job, JobSet, PyTorchJob (TFJob, XGBoostJob, PaddleJob, JAXJob), TrainJob, MPIJob, Volcano Job, RayJob, "
    "LeaderWorkerSet; Determined notebook, shell, command, tensorboard, experiment; SkyPilot task; dstack task, "
    "dev-environment, service; Slurm batch script"
)


class ImportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Values that a file does not contain."""

    kind: str = ""
    """the kind of a Determined configuration: notebook, shell, command, tensorboard"""
    image: str = ""
    """the image for a file without one; empty: a small image with Python"""
    gpus_per_node: int = 8
    """the most GPUs of one rank, when a file gives only their sum"""


class ImportedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one document of a file."""

    file: str
    number: int
    """the number of the document in its file, from 1"""
    system: str
    """the name of the kind, such as `Kubernetes Job`; empty for an unknown kind"""
    bodies: list[Json] = []
    """launch bodies; empty when the document was refused"""
    entries: list[ImportEntry] = []
    """the verdicts on the fields; empty when the document was refused"""
    error: str = ""
    """why the document was refused; else empty"""

    def count(self, verdict: Verdict) -> int:
        """Return the number of fields with that verdict."""
        return sum(entry.verdict is verdict for entry in self.entries)


_OF_SKYPILOT = {"run", "num_nodes", "file_mounts", "workdir"}
_RESOURCES_OF_SKYPILOT = {"accelerators", "infra", "cloud", "cpus", "instance_type", "use_spot", "any_of", "ordered"}
Converter = Callable[..., list[ImportedLaunch]]

OBJECTS: dict[tuple[str, str], tuple[str, str, str]] = {
    ("batch", "Job"): ("Kubernetes Job", "kubernetes", "job"),
    ("jobset.x-k8s.io", "JobSet"): ("JobSet", "kubernetes", "job_set"),
    ("kubeflow.org", "PyTorchJob"): ("PyTorchJob", "kubeflow", "replica_job"),
    ("kubeflow.org", "TFJob"): ("TFJob", "kubeflow", "replica_job"),
    ("kubeflow.org", "XGBoostJob"): ("XGBoostJob", "kubeflow", "replica_job"),
    ("kubeflow.org", "PaddleJob"): ("PaddleJob", "kubeflow", "replica_job"),
    ("kubeflow.org", "JAXJob"): ("JAXJob", "kubeflow", "replica_job"),
    ("kubeflow.org", "MPIJob"): ("MPIJob", "kubeflow", "mpi_job"),
    ("trainer.kubeflow.org", "TrainJob"): ("TrainJob", "kubeflow", "train_job"),
    ("batch.volcano.sh", "Job"): ("Volcano Job", "volcano", "job"),
    ("ray.io", "RayJob"): ("RayJob", "ray", "ray_job"),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): ("LeaderWorkerSet", "leaderworkerset", "leader_worker_set"),
}
"""{(API group, kind): (name for people, module, function)}"""

_NEXT_STEPS = {
    "CronJob": "Slipway has no schedules: import its jobTemplate as a Job, and launch that with cron",
    "Allocation": "is an object of Slipway: slipway apply -f",
    "RayCluster": "has no end and no command: write a RayJob, or a launch of kind shell",
    "Notebook": "slipway notebook start --image IMAGE",
    "ClusterQueue": "write a Queue of Slipway: docs/tutorials/from-kubeflow.md",
    "LocalQueue": "write a Queue of Slipway: docs/tutorials/from-kubeflow.md",
    "ResourceFlavor": "write a flavor of the ResourcePool: docs/gpu-types.md",
    "PodGroup": "a launch is one gang: minAvailable says how many ranks must start",
    "ClusterTrainingRuntime": "make a template of it: slipway template set NAME -f FILE",
    "TrainingRuntime": "make a template of it: slipway template set NAME -f FILE",
}
_AS_IT_IS = {"ConfigMap", "Secret", "PersistentVolumeClaim", "Service", "ServiceAccount", "Role", "RoleBinding"}


def convert(text: str, name: str, options: ImportOptions) -> list[ImportedDocument]:
    """Convert each document of a text; `name` is the file.

    Raises:
        InvalidError: the text is no YAML, no JSON and no batch script. The message has line and column.
    """
    if text.startswith("#!") and "#SBATCH" in text:
        return [_converted(text, name, 1, ("Slurm batch script", "slurm", "script"), options)]
    try:
        documents = [each.value for each in yaml_reader.documents(text, yaml_reader.MANIFEST)]
    except InvalidError as exc:
        mark: Any = getattr(exc.__cause__, "problem_mark", None)
        column = f" (column {mark.column + 1})" if isinstance(exc.__cause__, yaml.MarkedYAMLError) and mark else ""
        raise InvalidError(f"{name}: {exc}{column}") from exc
    values = [item for value in documents if value is not None for item in _items(value)]
    if not values:
        raise InvalidError(f"{name}: it contains no document")
    if len(values) > ITEMS_MAX:
        raise InvalidError(f"{name}: {len(values)} documents; at most {ITEMS_MAX} are read from one file")
    return [_read(value, name, number, options) for number, value in enumerate(values, 1)]


def _items(value: Any) -> list[Any]:
    """Return the items of a Kubernetes List; any other document is one item."""
    document = object_of(value)
    items = document.get("items")
    is_list = isinstance(items, list) and str(document.get("kind", "")).endswith("List")
    return cast("list[Any]", items) if is_list else [value]


def _read(value: Any, name: str, number: int, options: ImportOptions) -> ImportedDocument:
    known = recognised(value, options)
    if isinstance(known, str):
        return ImportedDocument(file=name, number=number, system="", error=known)
    return _converted(value, name, number, known, options)


def recognised(value: Any, options: ImportOptions) -> tuple[str, str, str] | str:
    """Return (name for people, module, function) for a document; for an unknown kind, the reason as text."""
    if not isinstance(value, dict):
        return f"a document must be an object (name: value). Known kinds: {KNOWN}"
    document = cast("Json", value)
    if "apiVersion" in document and "kind" in document:
        group, kind = str(document["apiVersion"]).rpartition("/")[0], str(document["kind"])
        if (known := OBJECTS.get((group, kind))) is not None:
            return known
        what = f"{document['apiVersion']} {kind}"
        if kind in _AS_IT_IS:
            return f"{what} is no workload: kubectl apply it in the workspace as it is"
        return f"{what}: {_NEXT_STEPS.get(kind, f'is of no known kind. Known kinds: {KNOWN}')}"
    if document.get("type") in ("task", "dev-environment", "service"):
        return f"dstack {document['type']}", "dstack", "configuration"
    if document.keys() <= {"name", "execution"}:
        return "begins a pipeline or group of SkyPilot: Slipway has none; launch its tasks one after the other"
    if "searcher" in document or ("hyperparameters" in document and "entrypoint" in document):
        return "Determined experiment", "determined", "experiment"
    if options.kind or _is_determined(document):
        return "Determined configuration", "determined", "interactive"
    if document.keys() & _OF_SKYPILOT or object_of(document.get("resources")).keys() & _RESOURCES_OF_SKYPILOT:
        return "SkyPilot task", "skypilot", "task"
    return f"it is of no known kind. Known kinds: {KNOWN}"


def _is_determined(document: Json) -> bool:
    """Whether the document is a configuration for `det notebook start --config-file`."""
    if document.keys() & {"environment", "bind_mounts", "tensorboard_args", "notebook_idle_type", "work_dir"}:
        return True
    resources = document.get("resources")
    return isinstance(resources, dict) and bool(cast("Json", resources).keys() & {"slots", "resource_pool", "weight"})


def _converted(
    value: Any, name: str, number: int, known: tuple[str, str, str], options: ImportOptions
) -> ImportedDocument:
    system, module, function = known
    document = ForeignDocument(value)
    converter: Converter = getattr(importlib.import_module(f"slipway.cli.importing.{module}"), function)
    try:
        launches = converter(document, options) if module in _WITH_OPTIONS else converter(document)
        bodies = [launch.settle() for launch in launches]
    except InvalidError as exc:
        return ImportedDocument(file=name, number=number, system=system, error=str(exc))
    return ImportedDocument(file=name, number=number, system=system, bodies=bodies, entries=document.entries())


_WITH_OPTIONS = ("determined", "skypilot", "dstack", "slurm")
"""Modules whose converters take the options."""
