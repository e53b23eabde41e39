"""Settings of the setup: the objects that are to be there."""

from typing import Annotated, Any

from msgspec import Meta

from slipway.runtime.settings import CommonSettings


class Settings(CommonSettings, kw_only=True, frozen=True):
    """What an operator may set, from `SLIPWAY_*`."""

    setup_pools: Annotated[
        dict[str, dict[str, Any]],
        Meta(description="ResourcePools to create where they are missing: a JSON object from name to spec."),
    ] = {}
    setup_queues: Annotated[
        dict[str, dict[str, Any]],
        Meta(description="Queues to create where they are missing: a JSON object from name to spec."),
    ] = {}
    setup_workspaces: Annotated[
        tuple[str, ...], Meta(description="Namespaces to make workspaces of, by their label; they must exist.")
    ] = ()
