"""The bodies of requests that change or kill one allocation.

They refuse unknown fields, like the bodies in `schemas.py`.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from slipway.api.schemas import Request, Words
from slipway.crd.bounds import ENV_MAX
from slipway.crd.meta import Duration
from slipway.crd.v1alpha1 import Name, Position


class ChangeBody(Request, kw_only=True, frozen=True):
    """The fields that can change after the launch."""

    priority: Annotated[int, Meta(ge=0, le=1000)] | msgspec.UnsetType = msgspec.UNSET
    queue: Name | msgspec.UnsetType = msgspec.UNSET
    queue_position: Position | msgspec.UnsetType = msgspec.UNSET
    hold: bool | msgspec.UnsetType = msgspec.UNSET
    desired: Annotated[str, Meta(pattern="^(Running|Stopped)$")] | msgspec.UnsetType = msgspec.UNSET
    max_runtime: Duration | msgspec.UnsetType = msgspec.UNSET
    idle_timeout: Duration | msgspec.UnsetType = msgspec.UNSET
    pending_timeout: Duration | msgspec.UnsetType = msgspec.UNSET
    image: Annotated[str, Meta(min_length=1, max_length=1024)] | msgspec.UnsetType = msgspec.UNSET
    """image of the main container of every role; image, command, args, env and resources can change only while the
    allocation is held, until it is admitted"""
    command: Words | msgspec.UnsetType = msgspec.UNSET
    """command of the main container; a change without args removes the args"""
    args: Words | msgspec.UnsetType = msgspec.UNSET
    env: Annotated[dict[str, str | None], Meta(max_length=ENV_MAX)] | msgspec.UnsetType = msgspec.UNSET
    """variables to set; null removes a variable"""
    resources: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    """resources of every role: only the named resources change"""


class KillBody(Request, kw_only=True, frozen=True):
    """Optional. Without force and grace, pods have their own grace period, which a second kill ends."""

    force: bool = False
    """pods are killed at once, and ranks on nodes that do not answer are marked as lost"""
    grace: Annotated[str, Meta(max_length=32, description="the longest grace period of its pods, such as 5s")] = ""
