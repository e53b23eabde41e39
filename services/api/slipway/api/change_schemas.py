"""What clients send to change one allocation or to end it.

Wire structs that refuse unknown fields, as those of `schemas.py` do.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from slipway.api.schemas import Request, Words
from slipway.crd.bounds import ENV_MAX
from slipway.crd.v1alpha1 import Name, Position
from slipway.crd.wire import Duration


class ChangeBody(Request, kw_only=True, frozen=True):
    """What may change after the launch."""

    priority: Annotated[int, Meta(ge=0, le=1000)] | msgspec.UnsetType = msgspec.UNSET
    queue: Name | msgspec.UnsetType = msgspec.UNSET
    queue_position: Position | msgspec.UnsetType = msgspec.UNSET
    hold: bool | msgspec.UnsetType = msgspec.UNSET
    desired: Annotated[str, Meta(pattern="^(Running|Stopped)$")] | msgspec.UnsetType = msgspec.UNSET
    max_runtime: Duration | msgspec.UnsetType = msgspec.UNSET
    idle_timeout: Duration | msgspec.UnsetType = msgspec.UNSET
    pending_timeout: Duration | msgspec.UnsetType = msgspec.UNSET
    image: Annotated[str, Meta(min_length=1, max_length=1024)] | msgspec.UnsetType = msgspec.UNSET
    """of the main container of every role; this and what follows while it is held, until it is admitted"""
    command: Words | msgspec.UnsetType = msgspec.UNSET
    """without args, it takes the args away"""
    args: Words | msgspec.UnsetType = msgspec.UNSET
    env: Annotated[dict[str, str | None], Meta(max_length=ENV_MAX)] | msgspec.UnsetType = msgspec.UNSET
    """variables to set; null takes one away"""
    resources: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    """of every role: what is named here changes, the rest stays"""


class KillBody(Request, kw_only=True, frozen=True):
    """Optional. Without either, pods have their own grace, which a second kill ends."""

    force: bool = False
    """its pods are killed at once; what is on nodes that do not answer is given up for lost"""
    grace: Annotated[str, Meta(max_length=32, description="its pods have at most so long, such as 5s")] = ""
