"""TaintToleration: taints NoSchedule and NoExecute refuse ranks that do not tolerate them.

Source: kube-scheduler's plugin of the same name; `ToleratesTaint` of k8s.io/api/core/v1.
"""

from collections.abc import Iterable

from slipway.model.facts import Taint, Toleration
from slipway.scheduler.plan.placement.filters.base import NodeRefusal, Refused
from slipway.scheduler.plan.state.nodes import At
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "TaintToleration"
HARD = frozenset({"NoSchedule", "NoExecute"})


def refuse(request: RankRequest, usage: NodeUsage, at: At) -> Refused:
    """Yield one refusal per untolerated taint; of each node only its first untolerated taint is used."""
    table = usage.table
    first = [_first_untolerated(taints, request.tolerations) for taints in table.taint_sets]
    for taint in sorted({found for found in first if found is not None}, key=lambda item: (item.key, item.value)):
        mask = table.by_taints([found == taint for found in first])
        text = f"{taint.key}={taint.value}" if taint.value else taint.key
        yield (
            NodeRefusal(
                "UntoleratedTaint",
                f"has the taint {text} that is not tolerated",
                f"have the taint {text} that is not tolerated",
            ),
            mask[at],
        )


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Whether any of `tolerations` matches `taint`."""
    return any(_matches(toleration, taint) for toleration in tolerations)


def _matches(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and bool(toleration.key) and toleration.value == taint.value


def _first_untolerated(taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...]) -> Taint | None:
    for taint in taints:
        if taint.effect in HARD and not tolerates(tolerations, taint):
            return taint
    return None
