"""Files of other systems that run anywhere, and the output of their programs: run by the tests, listed in the docs."""

from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent.parent / "imports"


class RunnableFile(NamedTuple):
    """A file of the corpus whose launch ends by itself on any cluster."""

    kind: str
    """its name in the table of docs/workloads.md"""
    path: str
    """below tests/imports"""
    prints: tuple[str, ...]
    """each line of its ranks, in alphabetical order"""


RUNNABLE = (
    RunnableFile("Kubernetes Job", "kubernetes/runs.yaml", ("index 0 of 2", "index 1 of 2")),
    RunnableFile("JobSet", "jobset/runs.yaml", ("driver of 3",)),
    RunnableFile("Kueue", "kueue/runs.yaml", ("of a queue",)),
    RunnableFile(
        "PyTorchJob",
        "kubeflow/runs.yaml",
        ("rank 0 of 3 at a port", "rank 1 of 3 at a port", "rank 2 of 3 at a port"),
    ),
    RunnableFile("MPIJob", "mpi/runs.yaml", ("3 hosts",)),
    RunnableFile("Volcano Job", "volcano/runs.yaml", ("master 0", "worker 1", "worker 2")),
    RunnableFile("RayJob", "ray/runs.yaml", ("entrypoint beside a head",)),
    RunnableFile("LeaderWorkerSet", "leaderworkerset/runs.yaml", ("leader of 2", "worker 1")),
    RunnableFile("Determined", "determined/runs.yaml", ("trained with 0.1",)),
    RunnableFile("SkyPilot", "skypilot/runs.yaml", ("prepared node 0 of 2 for 3", "prepared node 1 of 2 for 3")),
    RunnableFile("dstack", "dstack/runs.yaml", ("for 3", "for 3", "node 0 of 2", "node 1 of 2")),
    RunnableFile(
        "RDMA on the network of the host",
        "kubernetes/rdma.yaml",
        ("rank 0 meets its first rank", "rank 1 meets its first rank"),
    ),
)
