"""Remembers the ConfigMaps and Services that this process has created or adopted, until it deletes them.

With it, the teardown needs no reads. It is not the truth: the teardown reads an object that is missing here from the
API server, and an object that is remembered here may have been deleted or replaced since. The uid in each delete
detects that.
"""

from collections import OrderedDict
from typing import Any

from slipway.crd.meta import ObjectMeta
from slipway.kube.resources import Resource

BUNDLES_MAX = 16_384
"""The number of objects that are remembered. Beyond it, the oldest are forgotten. An entry uses some 300 bytes."""


class CreatedObjects:
    """The objects that this process remembers."""

    def __init__(self) -> None:
        self._uids: OrderedDict[tuple[str, str, str], str] = OrderedDict()

    def add(self, resource: Resource[Any], meta: ObjectMeta) -> None:
        """Remember an object that exists and is ours."""
        self._uids[resource.plural, meta.namespace, meta.name] = meta.uid
        if len(self._uids) > BUNDLES_MAX:
            self._uids.popitem(last=False)

    def pop(self, resource: Resource[Any], namespace: str, name: str) -> ObjectMeta | None:
        """Return the metadata for the delete of one object and forget the object; None when it is not remembered."""
        uid = self._uids.pop((resource.plural, namespace, name), None)
        return None if uid is None else ObjectMeta(name=name, namespace=namespace, uid=uid)
