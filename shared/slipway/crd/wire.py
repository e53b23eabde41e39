"""The base of all wire structs of the custom resources, and the types that several of them share."""

from typing import Annotated

import msgspec
from msgspec import Meta

from slipway.model.duration import DURATION_PATTERN
from slipway.model.quantity import QuantityValue

CONDITIONS_MAX = 16
RANKS_MAX = 4096
FLAVORS_MAX = 16

Name = Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
Duration = Annotated[str, Meta(max_length=32, pattern=DURATION_PATTERN, description="such as 90s, 30m or 2h45m")]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Quantities = dict[str, QuantityValue]


class Wire(msgspec.Struct, kw_only=True, frozen=True, rename="camel", omit_defaults=True):
    """Base of the wire structs: camelCase, defaults omitted."""


UnixId = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class RunAs(Wire, kw_only=True, frozen=True):
    """User and groups of the processes of a pod, as numbers; an absent field is not set."""

    user: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """uid of the processes: runAsUser"""
    group: UnixId | None = None
    """primary group of the processes: runAsGroup"""
    fs_group: UnixId | None = None
    """group of the volumes, and a further group of the processes: fsGroup"""
    groups: Annotated[list[UnixId], Meta(max_length=32)] = []
    """further groups of the processes: supplementalGroups"""

    @property
    def context(self) -> dict[str, int | list[int]]:
        """The ids as fields of a pod's securityContext."""
        said: dict[str, int | list[int] | None] = {
            "runAsUser": self.user,
            "runAsGroup": self.group,
            "fsGroup": self.fs_group,
            "supplementalGroups": self.groups or None,
        }
        return {field: value for field, value in said.items() if value is not None}


class TolerationSpec(Wire, kw_only=True, frozen=True):
    key: Annotated[str, Meta(max_length=253)] = ""
    operator: Annotated[str, Meta(pattern="^(Equal|Exists)$")] = "Equal"
    value: Annotated[str, Meta(max_length=253)] = ""
    effect: Annotated[str, Meta(pattern="^(|NoSchedule|PreferNoSchedule|NoExecute)$")] = ""
    toleration_seconds: int | None = None
    """seconds for which a NoExecute taint is tolerated; unlimited when absent"""
