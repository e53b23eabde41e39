"""Nodes: the allocations on each node, and the verbs enable, drain and disable.

The operator's choice for a node is a label of the node itself. So kubectl can show and set it too, and the scheduler
reads it there. Cordoning a node with kubectl has the same meaning as draining it.
"""

import re
from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.auth.middleware import visible_workspaces_of
from slipway.api.auth.principal import VisibleWorkspaces
from slipway.api.cluster import cluster_view
from slipway.api.cluster.seen_nodes import SEEN_NODES, SeenNode
from slipway.api.deps import parts_of
from slipway.api.http.decoding import checked, read_object
from slipway.api.http.endpoint import Endpoint, json_response
from slipway.api.http.field_mask import FIELDS, FieldMask
from slipway.api.schemas import Items, NodeBody, NodeView
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation, ResourcePool
from slipway.errors import DeniedError, NotFoundError
from slipway.kube.resources import RESOURCE_POOLS
from slipway.model.facts import DISABLED, DRAINING, SCHEDULING_LABEL
from slipway.model.lifecycle import Phase

TAG = "nodes"
ROOT = "/api/v1/nodes"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


async def nodes(request: Request) -> Response:
    """Return all nodes, and the resources that allocations use on each."""
    parts = parts_of(request)
    mask = FieldMask.parse(request.query_params.get(FIELDS.name, ""), of=NodeView)
    found = sorted(await parts.nodes.items(), key=lambda node: node.metadata.name)
    live = await _live(request)
    visible, pools = await visible_workspaces_of(request), await _pools(request)
    views = _views(found, live, visible, pools)
    return json_response(Items(items=[mask.of(view) for view in views], warnings=parts.nodes.warnings()))


async def node(request: Request) -> Response:
    """Return one node."""
    name = _name_of(request)
    listed = await parts_of(request).kube.list(SEEN_NODES, field_selector=f"metadata.name={name}")
    if not listed.items:
        raise _not_found(name)
    live, visible, pools = await _live(request), await visible_workspaces_of(request), await _pools(request)
    return json_response(_views(listed.items[:1], live, visible, pools)[0])


async def enable(request: Request) -> Response:
    """Let the scheduler use the node without restriction."""
    return await _mark(request, None)


async def drain(request: Request) -> Response:
    """Place no new ranks on the node; running ranks may finish."""
    return await _mark(request, DRAINING)


async def disable(request: Request) -> Response:
    """Place no new ranks on the node, and restart its running allocations on other nodes."""
    return await _mark(request, DISABLED)


async def _mark(request: Request, value: str | None) -> Response:
    parts, name = parts_of(request), _name_of(request)
    checked(await read_object(request, parts.settings.body_bytes_max), NodeBody)
    patch = {"metadata": {"labels": {SCHEDULING_LABEL: value}}}
    try:
        found = await parts.kube.patch(SEEN_NODES, name, patch)
    except NotFoundError as error:
        raise _not_found(name) from error
    except DeniedError as error:
        by_hand = f"{SCHEDULING_LABEL}={value} --overwrite" if value else f"{SCHEDULING_LABEL}-"
        raise DeniedError(
            f"Slipway's api may not change nodes ({error}); grant its account the verb patch on nodes, "
            f"or do it yourself: kubectl label node {name} {by_hand}"
        ) from error
    parts.nodes.wrote(found)
    parts.announcer.changed()
    live, visible, pools = await _live(request), await visible_workspaces_of(request), await _pools(request)
    return json_response(_views([found], live, visible, pools)[0])


def _views(
    found: Sequence[SeenNode], live: list[Allocation], visible: VisibleWorkspaces, pools: Sequence[ResourcePool]
) -> list[NodeView]:
    """Return the nodes. The use includes all ranks, but ranks that the caller may not see are not listed."""
    views = cluster_view.node_views(found, live, pools)
    if visible.is_whole:
        return views
    own = {id_of(each) for each in live if visible.has(each.metadata.namespace)}
    return [msgspec.structs.replace(view, ranks=[held for held in view.ranks if held.id in own]) for view in views]


def _name_of(request: Request) -> str:
    name = str(request.path_params["name"])
    if _NAME.fullmatch(name) is None:
        raise _not_found(name)
    return name


def _not_found(name: str) -> NotFoundError:
    return NotFoundError(f"there is no node {name[:80]!r}; GET {ROOT} lists them")


async def _pools(request: Request) -> Sequence[ResourcePool]:
    return (await parts_of(request).kube.list(RESOURCE_POOLS)).items


async def _live(request: Request) -> list[Allocation]:
    """Return the allocations of all workspaces that may use resources of a node: live ones that are not pending."""
    return [each for each in await parts_of(request).seen.live() if each.status.phase is not Phase.PENDING]


ENDPOINTS = (
    Endpoint(
        method="GET",
        path=ROOT,
        handler=nodes,
        summary="List the nodes",
        tag=TAG,
        query=(FIELDS,),
        answer=Items[NodeView],
    ),
    Endpoint(method="GET", path=f"{ROOT}/{{name}}", handler=node, summary="Show a node", tag=TAG, answer=NodeView),
    Endpoint(
        method="POST",
        path=f"{ROOT}/{{name}}/enable",
        handler=enable,
        summary="Schedule onto a node again",
        tag=TAG,
        body=NodeBody,
        answer=NodeView,
    ),
    Endpoint(
        method="POST",
        path=f"{ROOT}/{{name}}/drain",
        handler=drain,
        summary="Schedule nothing new onto a node; running allocations may finish",
        tag=TAG,
        body=NodeBody,
        answer=NodeView,
    ),
    Endpoint(
        method="POST",
        path=f"{ROOT}/{{name}}/disable",
        handler=disable,
        summary="Schedule nothing new onto a node; running allocations restart on other nodes",
        tag=TAG,
        body=NodeBody,
        answer=NodeView,
    ),
)
