"""What GPUs did on each day, beside how long they were held: sums of the cluster's Prometheus by day and type. Pure.

Owns the PromQL of a day and the grouping. A GPU counts as held while its series names a pod, and as used for the part
of that time that it was busy; both come from the same samples, so that one is never more than the other. Whose a pod
was is known while the object of its allocation is kept; after that its user and queue are empty.

Not promised: to be what `usage` bills. Prometheus looks at a GPU now and then, and forgets days when it pleases.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from slipway.api.gpu_use import PodKey, Sample
from slipway.crd.transitions import id_of, user_of
from slipway.crd.v1alpha1 import Allocation

STEP_S = 900
"""A sample stands for so much time, in seconds."""
DAY_S = 86_400
DAYS_MAX = 31
TYPE_LABELS = ("modelName", "card_model", "gpu_type")
"""Labels by which exporters name the type of a GPU: NVIDIA's, AMD's, and one for those of an own query."""
_LABELS = ("namespace", "pod", "exported_namespace", "exported_pod", *TYPE_LABELS)
_FIGURE = "slipway_figure"
_BUSY, _HELD = "busy", "held"
_PERCENT = 100.0


class GpuDay(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of one type that one pod had on one day (UTC)."""

    day: str
    pod: PodKey
    gpu_type: str
    held_s: float
    """GPUs times seconds"""
    used_s: float
    """the same, each as far as it was busy"""


class GpuDayRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One group. Seconds are of GPUs: two GPUs in one second are two."""

    by: dict[str, str]
    held_seconds: float
    """while a pod had the GPU"""
    used_seconds: float
    """the same, each GPU as far as it was busy"""
    percent: float | None
    """how busy they were while they were held; null where none was"""


class GpuDaysView(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from", "is_configured": "isConfigured"}):
    """Days are UTC, both included. Of what Prometheus has forgotten there are no rows."""

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
    """One PromQL query for a day, asked at its last second: series with the label `slipway_figure` busy or held."""
    window, labels = f"[{DAY_S}s:{STEP_S}s]", ", ".join(_LABELS)
    figures = {
        _BUSY: f"sum by ({labels}) (sum_over_time(({expression}){window}))",
        _HELD: f"sum by ({labels}) (count_over_time(({expression}){window}))",
    }
    return " or ".join(f'label_replace({text}, "{_FIGURE}", "{name}", "", "")' for name, text in figures.items())


def read_day(day: str, samples: Iterable[Sample]) -> list[GpuDay]:
    """The answer to `day_query`. Series without a pod are of GPUs that nobody holds."""
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
    """The allocations as pods name them."""
    return {(each.metadata.namespace, id_of(each)): each for each in allocations}


def owner_of(each: GpuDay, owners: Owners) -> Allocation | None:
    """Whose the pod was; None where that is not kept any more."""
    workspace, name = each.pod
    return owners.get((workspace, name.rsplit("-", 2)[0]))


def grouped(days: Iterable[GpuDay], owners: Owners, by: Sequence[str]) -> list[GpuDayRow]:
    """One row for each group, in their order."""
    groups: dict[tuple[str, ...], list[GpuDay]] = {}
    for each in days:
        groups.setdefault(tuple(DIMENSIONS[name](each, owners) for name in by), []).append(each)
    return [row_of(dict(zip(by, key, strict=True)), members) for key, members in sorted(groups.items())]


def row_of(by: dict[str, str], members: Iterable[GpuDay]) -> GpuDayRow:
    """The sum of them."""
    found = list(members)
    held, used = sum(each.held_s for each in found), sum(each.used_s for each in found)
    percent = round(_PERCENT * used / held, 1) if held else None
    return GpuDayRow(by=by, held_seconds=round(held, 3), used_seconds=round(used, 3), percent=percent)
