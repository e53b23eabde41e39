"""The utilisation of the GPUs that allocations hold, in words: for `describe` and `top`.

Owns the request to the API, and the text when there are no figures. A cluster without Prometheus and a server of an
earlier version have no figures; then no text is shown.
"""

from typing import Any, NamedTuple, cast

from slipway.cli.http import Api
from slipway.errors import NotFoundError, UnavailableError
from slipway.model.times import format_duration

Json = dict[str, Any]


class GpuUse(NamedTuple):
    """The figures of running allocations with GPUs, by id."""

    rows: dict[str, Json]
    window_s: float = 0.0
    idle_s: float = 0.0
    trouble: str = ""
    """why there are no figures although the cluster has a Prometheus; empty when there are figures"""

    def percent(self, id_: str) -> str:
        """Return for a table how busy an allocation's GPUs are; empty when it is not known."""
        percent = self.rows.get(id_, {}).get("percent")
        return "" if percent is None else f"{percent:.0f} %"

    def text(self, id_: str) -> str:
        """Return the utilisation for a sentence; empty when nothing is known of the allocation."""
        if self.trouble:
            return f"not known: {self.trouble}"
        row = self.rows.get(id_)
        if row is None:
            return ""
        if row["percent"] is None:
            return "not known: Prometheus has no figures of its pods"
        said = f"{row['percent']:.0f} % over {format_duration(self.window_s)}"
        if row["isIdle"]:
            return f"{said}; idle: no GPU did any work for {format_duration(self.idle_s)}"
        slow = [each for each in cast("list[Json]", row["ranks"]) if each["percent"] < row["percent"] / 2]
        if 0 < len(slow) <= len(row["ranks"]) // 2:
            least = min(slow, key=lambda each: float(each["percent"]))
            return f"{said}; least on rank {least['rank']}: {least['percent']:.0f} %"
        return said


def read_gpu_use(api: Api, **query: str) -> GpuUse:
    """Return the current figures of the allocations that match these parameters (`id`, `user`)."""
    try:
        view = cast("Json", api.get("/gpu-use", {name: value for name, value in query.items() if value}))
    except NotFoundError:
        return GpuUse({})
    except UnavailableError as error:
        return GpuUse({}, trouble=str(error).partition("\n")[0])
    rows = {str(row["id"]): row for row in cast("list[Json]", view["items"])}
    return GpuUse(rows, float(view["windowSeconds"]), float(view["idleSeconds"]))
