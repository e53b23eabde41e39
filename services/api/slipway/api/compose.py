"""Builds the whole launch body from a client's body, the workspace's defaults and the templates.

Owns the layers and their order: defaults of the workspace, its default template, the template that the request names,
the request. A later layer overrides an earlier one. The defaults of pool and kind are added later, below all layers.
"""

from typing import Any

import msgspec

from slipway.api.catalog import Catalog
from slipway.api.decoding import checked
from slipway.api.overlays import REQUEST, Json, Layer, Sources, merge_layers, merged, with_sources
from slipway.api.schemas import LaunchBody
from slipway.errors import FieldError, InvalidError
from slipway.model.lifecycle import Kind

DEFAULT_POOL = "default"
DEFAULT_QUEUE = "default"


class ComposedLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """The whole launch body, and the source of each field."""

    body: LaunchBody
    sources: Sources


async def compose(catalog: Catalog, request: Json) -> ComposedLaunch:
    """Return the whole launch body of `request`.

    Raises InvalidError with pointers into the body and the layer that set the wrong value.
    """
    own = dict(request)
    template = own.get("template")
    if isinstance(template, str):
        del own["template"]
    # The client's own fields are checked first, so that errors name them as the client wrote them.
    said = checked({"kind": Kind.COMMAND.value, **merged({}, own)}, LaunchBody, what="the launch")
    layers = await _below(catalog, said.workspace, template if isinstance(template, str) else "")
    body, sources = merge_layers([*layers, Layer(source=REQUEST, body=own)])
    await _choose_queue(catalog, body, sources)
    try:
        return ComposedLaunch(body=checked(body, LaunchBody, what="the launch"), sources=sources)
    except InvalidError as error:
        raise with_sources(error, sources, "the launch") from error


async def _below(catalog: Catalog, workspace: str, template: str) -> list[Layer]:
    """Return the layers below the request."""
    defaults = await catalog.defaults(workspace)
    run_as: Json = msgspec.to_builtins(defaults.pods.run_as)
    fields: dict[str, Any] = {"pool": defaults.pool, "queue": defaults.queue, "runAs": run_as}
    layers = [Layer(source=f"workspace {workspace}", body={name: value for name, value in fields.items() if value})]
    if defaults.template:
        try:
            found = await catalog.template(defaults.template, workspace)
        except InvalidError as error:
            detail = f"its default template {defaults.template} is missing: {error.fields[0].detail}"
            raise InvalidError(f"workspace: {detail}", fields=(FieldError("/workspace", detail),)) from error
        layers.append(Layer(source=f"template {defaults.template} of workspace {workspace}", body=found.spec.body))
    if template:
        found = await catalog.template(template, workspace)
        layers.append(Layer(source=f"template {template}", body=found.spec.body))
    return layers


async def _choose_queue(catalog: Catalog, body: Json, sources: Sources) -> None:
    """Choose the queue when a launch names a pool and no queue.

    It is the workspace's default queue if it belongs to the pool, or else the queue with the name of the pool.
    """
    pool, queue = body.get("pool", DEFAULT_POOL), body.get("queue")
    is_chosen = queue is not None and not sources.get("/queue", "").startswith("workspace ")
    if is_chosen or not isinstance(pool, str) or (pool == DEFAULT_POOL and queue is None):
        return
    for name, source in ((queue, sources.get("/queue", "")), (pool, f"pool {pool}")):
        if isinstance(name, str) and not await catalog.queue_warning(name, pool):
            body["queue"], sources["/queue"] = name, source
            return
    if queue is not None and pool == DEFAULT_POOL:
        body["queue"], sources["/queue"] = DEFAULT_QUEUE, f"pool {pool}"
