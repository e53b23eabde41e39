"""Ended allocations as a workload trace: CSV, and the mapping for `slipway simulate --trace`. Pure.

A row describes equal ranks. An allocation with several roles is written as its ranks with GPUs (all ranks, when no role
has GPUs), and the total request of all roles is divided among them. MIG slices are written as their fraction of a GPU.
"""

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from slipway.crd.roleresources import object_of, objects_of, role_requests
from slipway.crd.v1alpha1 import RoleSpec
from slipway.errors import InvalidError
from slipway.model.mig import GPU_UNITS
from slipway.model.resources import CPU, GPU, GPU_MILLI, MEMORY, MILLI, Resources, counted_gpus, format_quantity, total

Json = Mapping[str, Any]
FIELDS = (
    "id,workspace,kind,queue,job,user,priority,result,attempt,createdAt,startedAt,endedAt,spec.ranks,spec.template,"
    "spec.preemptible,spec.maxRuntime,status.admission.flavor"
)
"""the fields of an allocation to request from the API"""
HEAD = (
    *("id", "submitted", "started", "ended", "ranks", "cpu", "memory", "gpus", "gpuMilli", "queue", "user"),
    *("priority", "maxRuntime", "preemptible", "workspace", "job", "kind", "flavor", "result", "attempts"),
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_MAPPING = """\
# The columns of {trace}, as `slipway history --trace` wrote it. Use both with
#   slipway simulate SCENARIO --trace {trace} --mapping THIS
# where SCENARIO is a file with the nodes, the pool and the queues.
columns:
  name: id
  submit: submitted
  duration: {{from: started, to: ended}}
  ranks: ranks
  cpu: cpu
  memory: memory
  gpus: gpus
  gpuMilli: gpuMilli
  queue: queue
  user: user
  priority: priority
  maxRuntime: maxRuntime
  preemptible: preemptible
  # gpuType: flavor       # keeps the work on its type of GPU; SCENARIO needs pool.flavors
skip: {{started: [""]}}     # what ended before it ran
"""


def mapping_path(trace: str) -> Path:
    """Return the path of a trace's mapping, which is beside the trace."""
    return Path(trace).with_suffix(".mapping.yaml")


def mapping_text(trace: str) -> str:
    """Return the mapping of a trace."""
    return _MAPPING.format(trace=Path(trace).name)


def trace_text(items: Iterable[Json]) -> str:
    """Return ended allocations as the lines of a trace, ordered by their creation time.

    Raises:
        InvalidError: an allocation has an invalid quantity.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEAD)
    for item in sorted(items, key=lambda each: (str(each.get("createdAt")), str(each.get("id")))):
        writer.writerow([_safe(_cell(value)) for value in _row(item)])
    return out.getvalue()


def _row(item: Json) -> list[Any]:
    spec = object_of(item.get("spec"))
    ranks, amounts = _shape(str(item.get("id")), spec)
    milli = amounts.get(GPU_MILLI)
    amounts_told = (format_quantity(amounts.get(CPU), scale=MILLI), format_quantity(amounts.get(MEMORY)))
    flavor = object_of(object_of(item.get("status")).get("admission")).get("flavor")
    return [
        *(item.get(name) for name in ("id", "createdAt", "startedAt", "endedAt")),
        *(ranks, *amounts_told, amounts.get(GPU), milli, item.get("queue"), item.get("user"), item.get("priority")),
        *(spec.get("maxRuntime"), bool(spec.get("preemptible")), item.get("workspace"), item.get("job")),
        *(item.get("kind"), flavor, item.get("result"), item.get("attempt")),
    ]


def _shape(name: str, spec: Json) -> tuple[int, Resources]:
    """Return (number of equal ranks, the request of each)."""
    template = object_of(spec.get("template"))
    roles: list[tuple[int, Resources]] = []
    for role in objects_of(spec.get("ranks")) or [{}]:
        own = RoleSpec(resources=dict(object_of(role.get("resources"))))
        replaced = role.get("template")
        try:
            requests = role_requests(own, object_of(replaced) if replaced else template)
        except ValueError as exc:
            raise InvalidError(f"allocation {name}: {exc}") from exc
        roles.append((int(cast("int", role.get("count", 1))), requests))
    with_gpus = sum(count for count, requests in roles if requests.gpus())
    ranks = with_gpus or sum(count for count, _ in roles)
    whole = total(requests * count for count, requests in roles)
    amounts = {name: -(-whole.get(name) // ranks) for name in (CPU, MEMORY)}
    milli = -(-counted_gpus(whole.amounts) * MILLI // (ranks * GPU_UNITS))
    gpus = {GPU_MILLI: milli} if milli < MILLI else {GPU: -(-milli // MILLI)}
    return ranks, Resources.of(amounts | gpus)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _safe(cell: str) -> str:
    """Prefix a text with an apostrophe when a spreadsheet would read it as a formula."""
    return f"'{cell}" if cell.startswith(_FORMULA) else cell
