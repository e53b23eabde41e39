"""NodeAffinity: the node selector and the required node affinity, every operator of both.

Source: k8s.io/component-helpers/scheduling/corev1/nodeaffinity. A term without expressions matches nothing.
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from slipway.model.facts import FLAVOR_LABEL
from slipway.scheduler.plan.placement.filters.base import NodeRefusal, Refused
from slipway.scheduler.plan.state.nodes import At, Bools, LabelColumn, NodeTable
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "NodeAffinity"
SELECTOR = NodeRefusal("NodeSelectorMismatch", "does not match the node selector", "do not match the node selector")
AFFINITY = NodeRefusal("NodeAffinityMismatch", "does not match the node affinity", "do not match the node affinity")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def refuse(request: RankRequest, usage: NodeUsage, at: At) -> Refused:
    """Refuse nodes of another flavor, nodes outside the selector, then nodes that match no required term."""
    table = usage.table
    if request.node_selector:
        flavor = request.node_selector.get(FLAVOR_LABEL)
        if flavor is not None:
            yield _not_of(flavor), ~table.label(FLAVOR_LABEL).select((flavor,))[at]
        yield SELECTOR, ~_selected(request.node_selector, table)[at]
    required = node_affinity(request.affinity).get(REQUIRED)
    if required:
        terms = cast("list[dict[str, Any]]", required.get("nodeSelectorTerms") or [])
        matched = np.zeros(len(table), dtype=np.bool_)
        for term in terms:
            matched |= match_term(term, table)
        yield AFFINITY, ~matched[at]


def _not_of(flavor: str) -> NodeRefusal:
    what = f"not of flavor {flavor}" if flavor else "of a flavor"
    return NodeRefusal("NodeFlavor", f"is {what}", f"are {what}")


def node_affinity(affinity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `nodeAffinity` part of a pod's affinity; {} when it has none."""
    return cast("dict[str, Any]", affinity.get("nodeAffinity") or {})


def match_term(term: Mapping[str, Any], table: NodeTable) -> Bools:
    """Return the nodes that match all expressions and fields of one nodeSelectorTerm."""
    expressions = cast("list[dict[str, Any]]", term.get("matchExpressions") or [])
    fields = cast("list[dict[str, Any]]", term.get("matchFields") or [])
    if not expressions and not fields:
        return np.zeros(len(table), dtype=np.bool_)
    matched = np.ones(len(table), dtype=np.bool_)
    for expression in expressions:
        matched &= _match(expression, table.label(str(expression.get("key", ""))))
    for field in fields:
        if field.get("key") != "metadata.name":
            return np.zeros(len(table), dtype=np.bool_)
        matched &= _match(field, table.name_column())
    return matched


def _selected(selector: Mapping[str, str], table: NodeTable) -> Bools:
    matched = np.ones(len(table), dtype=np.bool_)
    for key, value in selector.items():
        matched &= table.label(key).select((value,))
    return matched


def _match(expression: Mapping[str, Any], column: LabelColumn) -> Bools:
    values = [str(value) for value in cast("list[Any]", expression.get("values") or [])]
    match expression.get("operator"):
        case "In":
            return column.select(values)
        case "NotIn":
            return ~column.select(values)
        case "Exists":
            return column.select(column.values)
        case "DoesNotExist":
            return column.select((), absent=True)
        case "Gt":
            return column.select(_beyond(column, values, larger=True))
        case "Lt":
            return column.select(_beyond(column, values, larger=False))
        case _:
            return column.select(())


def _beyond(column: LabelColumn, values: list[str], *, larger: bool) -> list[str]:
    bound = _integer(values[0]) if len(values) == 1 else None
    if bound is None:
        return []
    numbers = [(value, _integer(value)) for value in column.values]
    return [value for value, number in numbers if number is not None and (number > bound if larger else number < bound)]


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
