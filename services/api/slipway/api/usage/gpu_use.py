"""The utilisation of GPUs by allocation and rank, from the cluster's own Prometheus. Pure.

Owns the PromQL query, how its series are matched to ranks, and when an allocation is idle. Series are matched by the
names of pods, which are unique for each attempt, so that no series is assigned to a wrong attempt.

Source: the labels that NVIDIA's dcgm-exporter gives its series on Kubernetes (`namespace`, `pod`), which a scrape
without `honorLabels` turns into `exported_namespace` and `exported_pod`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from slipway.crd.transitions import id_of, user_of
from slipway.crd.v1alpha1 import Allocation
from slipway.model.ids import pod_name
from slipway.model.lifecycle import Phase
from slipway.model.times import parse_time

WINDOW_S = 300.0
"""The time over which the utilisation is averaged, in seconds."""
DEFAULT_EXPRESSION = "DCGM_FI_DEV_GPU_UTIL"
_LABELS = "namespace, pod, exported_namespace, exported_pod"
_FIGURE = "slipway_figure"
_MEAN, _PEAK, _SAMPLES, _GPUS = "mean", "peak", "samples", "gpus"
_STEPS = 30
_STEP_MAX_S = 60
_COVERED = 0.5
"""The part of the expected samples in the idle time that must exist."""

Sample = tuple[Mapping[str, str], float]
PodKey = tuple[str, str]
"""(namespace, name)"""


class PodGpuUse(msgspec.Struct, frozen=True):
    """The GPUs of one pod. Percents are of a whole GPU, averaged over the GPUs (`mean`), or of the busiest (`peak`)."""

    gpus: int
    mean: float
    peak: float
    samples: float
    """number of samples of the GPU with the fewest samples"""


class RankGpuUse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The GPU use of one rank."""

    rank: int
    gpus: int
    """number of GPUs with figures"""
    percent: float
    """average utilisation of the GPUs over the last `windowSeconds`"""
    peak_percent: float
    """peak utilisation of the busiest GPU over the last `idleSeconds`"""


class AllocationGpuUse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The GPU use of one running allocation."""

    id: str
    workspace: str
    user: str
    kind: str
    pool: str
    queue: str
    gpus: int
    """number of GPUs that it holds"""
    running_since: str
    """when its attempt began to run"""
    percent: float | None
    """average utilisation of its GPUs over the last `windowSeconds`; null without figures"""
    peak_percent: float | None
    """peak utilisation of its busiest GPU over the last `idleSeconds`; null without figures"""
    is_idle: bool
    """whether all its GPUs were idle for `idleSeconds`; false when not all of them have figures"""
    ranks: list[RankGpuUse]
    """the ranks that have figures"""


class GpuUseView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The GPU use of the allocations that the caller may see: idle ones first, then by number of GPUs."""

    is_configured: bool
    """whether the api knows a Prometheus (SLIPWAY_PROMETHEUS_URL); without one there are no items"""
    window_seconds: float
    """the time over which `percent` is the average"""
    idle_seconds: float
    """the time over which `peakPercent` is the peak; an allocation without use for this time is idle"""
    idle_percent: float
    """a GPU below this utilisation is idle"""
    items: list[AllocationGpuUse]


def query_of(expression: str, idle_s: float) -> str:
    """Return one PromQL query for all figures.

    Its series have the label `slipway_figure`: mean, peak, samples or gpus.
    """
    step_s = max(1, min(_STEP_MAX_S, math.ceil(idle_s / _STEPS)))
    window, idle = f"[{WINDOW_S:.0f}s:{step_s}s]", f"[{idle_s:.0f}s:{step_s}s]"
    figures = {
        _MEAN: f"avg by ({_LABELS}) (avg_over_time(({expression}){window}))",
        _PEAK: f"max by ({_LABELS}) (max_over_time(({expression}){idle}))",
        _SAMPLES: f"min by ({_LABELS}) (count_over_time(({expression}){idle}))",
        _GPUS: f"count by ({_LABELS}) ({expression})",
    }
    return " or ".join(f'label_replace({text}, "{_FIGURE}", "{name}", "", "")' for name, text in figures.items())


def expected_samples(idle_s: float) -> float:
    """Return the number of samples that a GPU without gaps has in the idle time."""
    return idle_s / max(1, min(_STEP_MAX_S, math.ceil(idle_s / _STEPS)))


def read_use(samples: Iterable[Sample]) -> dict[PodKey, PodGpuUse]:
    """Read the answer to `query_of` as {pod: its use}. Pods without all four figures are left out."""
    found: dict[PodKey, dict[str, float]] = {}
    for labels, value in samples:
        key = (
            labels.get("exported_namespace") or labels.get("namespace", ""),
            labels.get("exported_pod") or labels.get("pod", ""),
        )
        figure = labels.get(_FIGURE, "")
        if all(key) and figure and math.isfinite(value):
            found.setdefault(key, {})[figure] = value
    return {
        key: PodGpuUse(gpus=round(figures[_GPUS]), mean=figures[_MEAN], peak=figures[_PEAK], samples=figures[_SAMPLES])
        for key, figures in found.items()
        if {_GPUS, _MEAN, _PEAK, _SAMPLES} <= figures.keys()
    }


def use_of(
    allocations: Sequence[Allocation],
    use: Mapping[PodKey, PodGpuUse],
    *,
    now: float,
    idle_s: float,
    idle_percent: float,
) -> list[AllocationGpuUse]:
    """Return the GPU use of each running allocation with GPUs: idle ones first, then by number of GPUs."""
    rows = [
        _row(each, use, now=now, idle_s=idle_s, idle_percent=idle_percent)
        for each in allocations
        if each.status.phase is Phase.RUNNING and each.status.slots
    ]
    return sorted(rows, key=lambda row: (not row.is_idle, -row.gpus, row.id))


def _row(
    allocation: Allocation, use: Mapping[PodKey, PodGpuUse], *, now: float, idle_s: float, idle_percent: float
) -> AllocationGpuUse:
    status, spec, id_ = allocation.status, allocation.spec, id_of(allocation)
    seen = {
        rank: pod
        for rank in range(len(status.ranks or ()))
        if (pod := use.get((allocation.metadata.namespace, pod_name(id_, status.attempt, rank)))) is not None
    }
    gpus = sum(pod.gpus for pod in seen.values())
    peak = max((pod.peak for pod in seen.values()), default=None)
    is_seen = gpus >= status.slots and all(pod.samples >= _COVERED * expected_samples(idle_s) for pod in seen.values())
    has_run = bool(status.started_at) and now - parse_time(status.started_at) >= idle_s
    return AllocationGpuUse(
        id=id_,
        workspace=allocation.metadata.namespace,
        user=user_of(allocation),
        kind=spec.kind,
        pool=spec.pool,
        queue=spec.queue,
        gpus=status.slots,
        running_since=status.started_at,
        percent=round(sum(pod.mean * pod.gpus for pod in seen.values()) / gpus, 1) if gpus else None,
        peak_percent=None if peak is None else round(peak, 1),
        is_idle=is_seen and has_run and peak is not None and peak < idle_percent,
        ranks=[
            RankGpuUse(rank=rank, gpus=pod.gpus, percent=round(pod.mean, 1), peak_percent=round(pod.peak, 1))
            for rank, pod in seen.items()
        ],
    )
