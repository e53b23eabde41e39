"""The utilisation of GPUs on each day, and how long they were held: sums from the cluster's Prometheus. Pure.

Owns the PromQL of a day and the grouping. A GPU is held while its series names a pod, and used for the part of that
time in which it was busy. Both figures come from the same samples, so that used is never more than held. The user and
the queue of a pod are known while the object of its allocation exists; after that they are empty.

Not promised: that the figures equal those of `usage`. Prometheus samples a GPU at intervals, and deletes old days.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from slipway.api.usage.gpu_use import PodKey, Sample
from slipway.crd.transitions import id_of, user_of
from slipway.crd.v1alpha1 import Allocation

STEP_S = 900
"""The time that one sample represents, in seconds."""
DAY_S = 86_400
DAYS_MAX = 31
TYPE_LABELS = ("modelName", "card_model", "gpu_type")
"""Labels by which exporters name the type of a GPU: NVIDIA's, AMD's, and one for a query of the operator's own."""
_LABELS = ("namespace", "pod", "exported_namespace", "exported_pod", *TYPE_LABELS)
_FIGURE = "slipway_figure"
_BUSY, _HELD = "busy", "held"
_PERCENT = 100.0


class GpuDay(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of one type that one pod held on one day (UTC)."""

    day: str
    pod: PodKey
    gpu_type: str
    held_s: float
    """GPU-seconds in which the pod held the GPUs"""
    used_s: float
    """GPU-seconds, weighted by how busy each GPU was"""


class GpuDayRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The figures of one group, in GPU-seconds: two GPUs for one second are two."""

    by: dict[str, str]
    held_seconds: float
    """GPU-seconds in which a pod held the GPU"""
    used_seconds: float
    """GPU-seconds, weighted by how busy each GPU was"""
    percent: float | None
    """how busy the GPUs were while they were held; null when none was held"""


class GpuDaysView(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from", "is_configured": "isConfigured"}):
    """GPU figures by group. Days are UTC, both included. Days that Prometheus has deleted have no rows."""

    is_configured: bool
    """whether the api knows a Prometheus (SLIPWAY_PROMETHEUS_URL); without one there are no items"""
    by: list[str]
    from_: str
    to: str
    items: list[GpuDayRow]
    total: GpuDayRow


Owners = Mapping[tuple[str, str], Allocation]
"""{(workspace, id): allocation}"""
DIMENSIONS: Mapping[str, Callable[[GpuDay, Owners], str]] = {
    "day": lambda each, _: each.day,
    "month": lambda each, _: each.day[:7],
    "gpuType": lambda each, _: each.gpu_type,
    "workspace": lambda each, _: each.pod[0],
    "user": lambda each, owners: user_of(owner) if (owner := owner_of(each, owners)) else "",
    "queue": lambda each, owners: owner.spec.queue if (owner := owner_of(each, owners)) else "",
}


def day_query(expression: str) -> str:
    """Return the PromQL query of a day, to run at its last second.

    Its series have the label `slipway_figure`: busy or held.
    """
    window, labels = f"[{DAY_S}s:{STEP_S}s]", ", ".join(_LABELS)
    figures = {
        _BUSY: f"sum by ({labels}) (sum_over_time(({expression}){window}))",
        _HELD: f"sum by ({labels}) (count_over_time(({expression}){window}))",
    }
    return " or ".join(f'label_replace({text}, "{_FIGURE}", "{name}", "", "")' for name, text in figures.items())


def read_day(day: str, samples: Iterable[Sample]) -> list[GpuDay]:
    """Read the answer to `day_query`. A series without a pod is of a GPU that is not held, and is skipped."""
    found: dict[tuple[PodKey, str], dict[str, float]] = {}
    for labels, value in samples:
        pod = (
            labels.get("exported_namespace") or labels.get("namespace", ""),
            labels.get("exported_pod") or labels.get("pod", ""),
        )
        if all(pod) and math.isfinite(value):
            gpu_type = next(filter(None, (labels.get(name, "") for name in TYPE_LABELS)), "")
            figures = found.setdefault((pod, gpu_type), {})
            figure = labels.get(_FIGURE, "")
            figures[figure] = figures.get(figure, 0.0) + value * STEP_S
    return [
        GpuDay(day=day, pod=pod, gpu_type=gpu_type, held_s=figures[_HELD], used_s=figures[_BUSY] / _PERCENT)
        for (pod, gpu_type), figures in sorted(found.items())
        if {_BUSY, _HELD} <= figures.keys()
    ]


def owners_of(allocations: Iterable[Allocation]) -> Owners:
    """Return {(workspace, id): allocation}, to find the allocation of a pod."""
    return {(each.metadata.namespace, id_of(each)): each for each in allocations}


def owner_of(each: GpuDay, owners: Owners) -> Allocation | None:
    """Return the allocation of the pod; None when its object does not exist any more."""
    workspace, name = each.pod
    return owners.get((workspace, name.rsplit("-", 2)[0]))


def grouped(days: Iterable[GpuDay], owners: Owners, by: Sequence[str]) -> list[GpuDayRow]:
    """Return one row for each group, sorted by the group."""
    groups: dict[tuple[str, ...], list[GpuDay]] = {}
    for each in days:
        groups.setdefault(tuple(DIMENSIONS[name](each, owners) for name in by), []).append(each)
    return [row_of(dict(zip(by, key, strict=True)), members) for key, members in sorted(groups.items())]


def row_of(by: dict[str, str], members: Iterable[GpuDay]) -> GpuDayRow:
    """Return the sum of `members` as one row."""
    found = list(members)
    held, used = sum(each.held_s for each in found), sum(each.used_s for each in found)
    percent = round(_PERCENT * used / held, 1) if held else None
    return GpuDayRow(by=by, held_seconds=round(held, 3), used_seconds=round(used, 3), percent=percent)
