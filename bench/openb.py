"""GPU allocation on Alibaba's openb trace (W9): `python -m bench.openb FOLDER [--seeds N]`, with the trace's csv files.

The method is that of the paper on fragmentation gradient descent (Weng et al., USENIX ATC 2023). The pods arrive in
random order. More pods are drawn with replacement until the demand is 1.3 times the GPUs of the cluster. No pod ends,
and a pod that does not fit is dropped. The figure is the percentage of all GPUs that are allocated at the end. Ours is
one `plan` over all arrivals in order, with the GpuFragmentation score. Random and BestFit run on the same arrivals for
comparison, as in the paper. We may not redistribute the data: fetch them from alibaba/clusterdata,
cluster-trace-gpu-v2023.
"""

import argparse
import csv
import random
import statistics
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

from bench.runner import Row, Target, machine_line, row, table, write
from slipway.model.facts import SHARING_LABEL, AllocationFact, NodeFact, PoolFact, QueueFact, RoleFact
from slipway.model.resources import CPU, GPU, MEMORY, PODS, Resources
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.nodes import Ints
from slipway.scheduler.plan.state.pool_state import build

NODES, PODS_FILE = "openb_node_list_all_node.csv", "openb_pod_list_default.csv"
ARRIVED_PERCENT = 130
MILLI = 1000
MIB = 1 << 20
SCORES = {"GpuFragmentation": 101, "BestFit": 1}
PUBLISHED = {"random": 87.47, "bestfit": 93.08, "fgd": 95.39}
FIRST_SEED = 42


class Pod(msgspec.Struct, frozen=True):
    """The request of one arrival."""

    cpu: int
    memory: int
    gpus: int
    milli: int
    models: tuple[str, ...]

    @property
    def demand(self) -> int:
        """The demand, in thousandths of a GPU."""
        return self.milli or self.gpus * MILLI


class Trace(msgspec.Struct, frozen=True):
    """The nodes with GPUs, and the pods sorted by name."""

    nodes: list[NodeFact]
    pods: list[Pod]

    @property
    def capacity(self) -> int:
        """The capacity, in thousandths of a GPU."""
        return sum(node.allocatable.get(GPU) for node in self.nodes) * MILLI


def read(folder: Path) -> Trace:
    """Read the trace in `folder`."""
    with (folder / NODES).open() as file:
        nodes = [_node(item) for item in csv.DictReader(file) if int(item["gpu"])]
    with (folder / PODS_FILE).open() as file:
        pods = [_pod(item) for item in sorted(csv.DictReader(file), key=lambda item: item["name"])]
    return Trace(nodes, pods)


def arrivals(trace: Trace, seed: int) -> list[Pod]:
    """Return all pods in random order, followed by pods drawn at random until the demand is reached."""
    chance = random.Random(seed)
    arrived = list(trace.pods)
    chance.shuffle(arrived)
    demand = sum(pod.demand for pod in arrived)
    while demand * 100 < trace.capacity * ARRIVED_PERCENT:
        arrived.append(chance.choice(trace.pods))
        demand += arrived[-1].demand
    return arrived


def ours(trace: Trace, arrived: list[Pod], scores: dict[str, int]) -> tuple[float, float]:
    """Return (percent of all GPUs allocated, milliseconds of CPU per arrival)."""
    roles = {pod: _role(pod) for pod in set(arrived)}
    work = [
        AllocationFact(
            namespace="bench", name=f"p{at:06d}", uid=f"p{at:06d}", version=1, created=float(at), roles=(roles[pod],)
        )
        for at, pod in enumerate(arrived)
    ]
    pool = PoolFact(name="default", scores=scores)
    queues = [QueueFact(name="default")]
    snapshot = build(trace.nodes, (), work, queues=queues, pool=pool, workspaces=frozenset({"bench"}))
    policy = msgspec.structs.replace(policy_of(pool), decisions_max=len(work), changes_max=0)
    start_s = time.process_time()
    decided = plan(snapshot, policy, 0.0, 0)
    taken_s = time.process_time() - start_s
    allocated = sum(arrived[int(admit.uid[1:])].demand for admit in decided.admits)
    return allocated * 100 / trace.capacity, taken_s * MILLI / len(work)


def peers(trace: Trace, arrived: list[Pod], seed: int) -> tuple[float, float]:
    """Return the percent of all GPUs allocated by (Random, BestFit), as defined in the paper."""
    return _played(trace, arrived, random.Random(seed)), _played(trace, arrived, None)


def _played(trace: Trace, arrived: list[Pod], chance: random.Random | None) -> float:
    """Place one pod after the other: at random when `chance` is given, else where the least capacity is left."""
    counts = np.array([node.allocatable.get(GPU) for node in trace.nodes])
    models = np.array([node.labels["model"] for node in trace.nodes])
    cpu = np.array([node.allocatable.get(CPU) for node in trace.nodes])
    memory = np.array([node.allocatable.get(MEMORY) for node in trace.nodes])
    left: Ints = np.where(np.arange(int(counts.max())) < counts[:, None], MILLI, 0)
    allocated = 0
    for pod in arrived:
        fits = (cpu >= pod.cpu) & (memory >= pod.memory)
        need, count = pod.milli or MILLI, 1 if pod.milli else pod.gpus
        fits &= (left >= need).sum(axis=1) >= count
        if pod.models:
            fits &= np.isin(models, pod.models)
        nodes = np.flatnonzero(fits)
        if not nodes.size:
            continue
        if chance is None:
            over = 0.5 * (cpu[nodes] - pod.cpu) / 128000 + 0.5 * (left[nodes].sum(axis=1) - pod.demand) / 8000
            node = int(nodes[np.trunc(100 * (1 - over)).argmax()])
        else:
            node = int(nodes[chance.randrange(nodes.size)])
        cpu[node] -= pod.cpu
        memory[node] -= pod.memory
        devices = np.flatnonzero(left[node] >= need)
        if count and pod.milli:
            chosen = (
                devices[left[node][devices].argmin()] if chance is None else devices[chance.randrange(devices.size)]
            )
            left[node, chosen] -= pod.milli
        else:
            left[node, devices[:count]] = 0
        allocated += pod.demand
    return allocated * 100 / trace.capacity


def _node(item: dict[str, str]) -> NodeFact:
    amounts = {
        CPU: int(item["cpu_milli"]),
        MEMORY: int(item["memory_mib"]) * MIB,
        GPU: int(item["gpu"]),
        PODS: 100_000,
    }
    labels = {SHARING_LABEL: "true", "model": item["model"]}
    return NodeFact(name=item["sn"], labels=labels, allocatable=Resources(amounts))


def _pod(item: dict[str, str]) -> Pod:
    gpus, milli = int(item["num_gpu"]), int(item["gpu_milli"])
    models = tuple(name for name in item["gpu_spec"].split("|") if name)
    is_share = gpus == 1 and milli < MILLI
    return Pod(int(item["cpu_milli"]), int(item["memory_mib"]) * MIB, 0 if is_share else gpus, milli * is_share, models)


def _role(pod: Pod) -> RoleFact:
    asked = Resources.of({CPU: pod.cpu, MEMORY: pod.memory, GPU: pod.gpus})
    affinity = {}
    if pod.models:
        among = {"matchExpressions": [{"key": "model", "operator": "In", "values": list(pod.models)}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [among]}}}
    return RoleFact(name="pod", count=1, minimum=1, requests=asked, gpu_milli=pod.milli, affinity=affinity)


def rows(trace: Trace, seeds: int) -> list[Row]:
    """Return the figures over `seeds` seeds, all three on the same arrivals."""
    found: dict[str, list[float]] = {"ours": [], "ms": [], "default": [], "random": [], "bestfit": []}
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        arrived = arrivals(trace, seed)
        allocated, spent_ms = ours(trace, arrived, SCORES)
        by_default, _ = ours(trace, arrived, {})
        by_random, by_best_fit = peers(trace, arrived, seed)
        parts = {"ours": allocated, "ms": spent_ms, "default": by_default, "random": by_random, "bestfit": by_best_fit}
        for name, value in parts.items():
            found[name].append(value)
        print(f"seed {seed}: {parts}", file=sys.stderr, flush=True)
    what = f"openb, {ARRIVED_PERCENT} % arrived"
    return [
        row(
            "P7",
            f"{what}: GPUs allocated with GpuFragmentation",
            found["ours"],
            "%",
            target=Target(must=1.0, moonshot=96.0 / PUBLISHED["fgd"], better="higher"),
            peer=[PUBLISHED["fgd"]],
            peer_name="FGD as published, mean of ten runs",
            note=f"our mean {statistics.mean(found['ours']):.2f}; BestFit on the same arrivals "
            f"{statistics.mean(found['bestfit']):.2f}, as published {PUBLISHED['bestfit']}",
        ),
        row(
            "W9-default",
            f"{what}: the same with our default scores",
            found["default"],
            "%",
            peer=found["random"],
            peer_name="Random, same arrivals",
        ),
        row("W9-ms", f"{what}: CPU per arrival", found["ms"], "ms", target=Target(must=1.0)),
    ]


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.openb", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder with the trace's csv files")
    parser.add_argument("--seeds", type=int, default=10, help="runs, each with its own arrivals (default 10)")
    options = parser.parse_args()
    found = rows(read(options.folder), options.seeds)
    write("openb", found, command="python -m bench.openb FOLDER")
    print(table(found))
    print(machine_line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
