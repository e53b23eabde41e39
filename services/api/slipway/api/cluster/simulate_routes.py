"""What-if questions: run the planner over the present cluster with changes, or over a scenario."""

from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.auth.middleware import permit_everywhere, permit_member
from slipway.api.auth.principal import LIST
from slipway.api.cluster.simulation import POOL
from slipway.api.deps import parts_of
from slipway.api.http.decoding import checked, read_object
from slipway.api.http.endpoint import Endpoint, json_response
from slipway.api.http.streaming import holder_of
from slipway.api.schemas import DEFAULT_WORKSPACE
from slipway.crd.v1alpha1 import PolicySpec

Json = dict[str, Any]


class SimulateBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Changes to a pool as it is now (an empty body changes nothing), or a whole scenario."""

    pool: str = POOL
    add_nodes: list[Json] = []
    """further nodes, as in a scenario file: [{name: big, count: 2, cpu: 64, memory: 256Gi, gpus: 8}]"""
    remove_nodes: list[str] = []
    """nodes to remove; the allocations on them wait again"""
    cordon_nodes: list[str] = []
    """nodes that accept no new allocations"""
    uncordon_nodes: list[str] = []
    allocations: list[Json] = []
    """changes of allocations: [{allocation: <id, workspace/name, or name>, priority, queue, hold, preemptible,
    position, maxRuntime, remove}]"""
    add_allocations: list[Json] = []
    """further allocations, as in a scenario file; `submit` is in seconds from now"""
    workspace: str = DEFAULT_WORKSPACE
    """workspace of the added allocations"""
    queues: list[Json] = []
    """changes of queues, as in a scenario file: only the named fields change; null removes a quota"""
    policy: PolicySpec = PolicySpec()
    """another policy of the pool"""
    until: Annotated[float, msgspec.Meta(ge=0, le=30 * 86_400)] = 86_400.0
    """how far to look, in seconds from now; at most 30 days"""
    scenario: Json | None = None
    """a whole scenario, instead of all other fields"""


async def simulate(request: Request) -> Response:
    """Return what the planner would place, evict and explain with the changes."""
    parts = parts_of(request)
    raw = await read_object(request, parts.settings.body_bytes_max)
    checked(raw, SimulateBody)
    if raw.get("scenario") is None:
        # The answer shows the allocations of all users.
        await permit_everywhere(request, LIST)
    else:
        await permit_member(request)
    if raw.get("scenario", ...) is None:
        del raw["scenario"]
    return json_response(await parts.simulator.ask(raw, user=holder_of(request).user))


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/api/v1/simulate",
        handler=simulate,
        summary="Simulate the planner over the cluster with changes, or over a scenario",
        tag="cluster",
        body=SimulateBody,
        answer=Json,
    ),
)
