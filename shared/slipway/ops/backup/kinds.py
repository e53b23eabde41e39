"""The kinds of objects in a backup, in restore order: each kind follows the kinds that it refers to."""

from collections.abc import Iterable
from typing import Any

import msgspec

from slipway.crd.meta import LABEL_LAUNCH_KEY, LABEL_WEBHOOK, LABEL_WORKSPACE
from slipway.crd.totals import LABEL_USAGE
from slipway.kube.resources import (
    ALLOCATIONS,
    CONFIG_MAPS,
    JOBS,
    NAMESPACES,
    QUEUES,
    RESOURCE_POOLS,
    RESOURCE_QUOTAS,
    SECRETS,
    TEMPLATES,
    Resource,
)
from slipway.model.apitokens import SUFFIX
from slipway.ops.backup.file import BackupObject
from slipway.pods.archive import LABEL_CONTEXT


class BackupKind(msgspec.Struct, frozen=True, kw_only=True):
    """One LIST of a backup. With `is_own`, it reads only the namespace of the services."""

    resource: Resource[BackupObject]
    label_selector: str = ""
    is_own: bool = False

    @property
    def kind(self) -> str:
        """The name of the kind in the lines of the file."""
        return kind_of(self.resource)


def kind_of(resource: Resource[Any]) -> str:
    """Return `Kind.group`, or `Kind` for the core group."""
    return f"{resource.kind}.{resource.group}" if resource.group else resource.kind


def _kept(resource: Resource[Any]) -> Resource[BackupObject]:
    return Resource(
        group=resource.group,
        version=resource.version,
        plural=resource.plural,
        kind=resource.kind,
        namespaced=resource.namespaced,
        struct=BackupObject,
    )


KEPT_ALLOCATIONS = _kept(ALLOCATIONS)
KEPT_NAMESPACES = _kept(NAMESPACES)
KEPT_POOLS = _kept(RESOURCE_POOLS)
KEPT_MAPS = _kept(CONFIG_MAPS)
KEPT_SECRETS = _kept(SECRETS)

WORKSPACES = BackupKind(resource=KEPT_NAMESPACES, label_selector=f"{LABEL_WORKSPACE}=true")
USAGE = BackupKind(resource=KEPT_MAPS, label_selector=LABEL_USAGE, is_own=True)
CONTEXTS = BackupKind(resource=KEPT_MAPS, label_selector=LABEL_CONTEXT)
HOOKS = BackupKind(resource=KEPT_SECRETS, label_selector=LABEL_WEBHOOK)
"""Secrets of webhooks, in their own namespace or in that of the services."""
ALL_SECRETS = BackupKind(resource=KEPT_SECRETS, is_own=True)
BEFORE: tuple[BackupKind, ...] = (
    WORKSPACES,
    BackupKind(resource=_kept(RESOURCE_QUOTAS), label_selector=f"{LABEL_WORKSPACE}=true"),
    BackupKind(resource=KEPT_POOLS),
    BackupKind(resource=_kept(QUEUES)),
    BackupKind(resource=_kept(TEMPLATES)),
    BackupKind(resource=_kept(JOBS)),
    CONTEXTS,
    BackupKind(resource=KEPT_MAPS, label_selector=LABEL_LAUNCH_KEY),
)
"""All kinds except usage, Secrets and the allocations themselves."""
RESOURCES = {kind_of(each): each for each in (*(group.resource for group in BEFORE), KEPT_SECRETS, KEPT_ALLOCATIONS)}


def are_tokens(secret: BackupObject) -> bool:
    """Whether a Secret contains token records and nothing else."""
    names: Iterable[str] = secret.data.keys()
    return bool(secret.data) and all(name.endswith(SUFFIX) and len(name) == 16 + len(SUFFIX) for name in names)
