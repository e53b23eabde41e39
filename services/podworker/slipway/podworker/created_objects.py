"""Remembers the ConfigMaps and Services that this process has created or adopted, until it deletes them.

It spares the teardown its reads. It is not the truth: an object that it does not know is read from the API server, and
one that it knows may have been deleted or replaced since. The uid in each delete detects that.
"""

from collections import OrderedDict
from typing import Any

from slipway.crd.meta import ObjectMeta
from slipway.kube.resources import Resource

BUNDLES_MAX = 16_384
"""The oldest are forgotten beyond; an entry takes some 300 bytes."""


class CreatedObjects:
    """The memory of one process."""

    def __init__(self) -> None:
        self._uids: OrderedDict[tuple[str, str, str], str] = OrderedDict()

    def note(self, resource: Resource[Any], meta: ObjectMeta) -> None:
        """It is there, and ours."""
        self._uids[resource.plural, meta.namespace, meta.name] = meta.uid
        if len(self._uids) > BUNDLES_MAX:
            self._uids.popitem(last=False)

    def take(self, resource: Resource[Any], namespace: str, name: str) -> ObjectMeta | None:
        """What a delete must say to hit it, told once; None when nothing is known."""
        uid = self._uids.pop((resource.plural, namespace, name), None)
        return None if uid is None else ObjectMeta(name=name, namespace=namespace, uid=uid)
