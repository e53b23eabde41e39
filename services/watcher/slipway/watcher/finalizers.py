"""Removes one finalizer from one object, and writes nothing else except a mark (an annotation) about earlier work.

Owns the patch. It tests the object's uid and the index of the finalizer, so it can change neither a later object of the
same name nor another finalizer. Callers that need it also test the resource version that they have seen.
"""

from typing import TypeVar

from slipway.crd.meta import ObjectMeta, RawObject
from slipway.errors import InvalidError, NotFoundError, StaleError
from slipway.kube.ports import PatchType
from slipway.kube.resources import Resource
from slipway.watcher.ports import WatcherWriter

T = TypeVar("T")


Mark = tuple[str, str]
"""(annotation, value)"""


async def drop(
    kube: WatcherWriter,
    resource: Resource[T],
    meta: ObjectMeta,
    finalizer: str,
    *,
    mark: Mark | None = None,
    only_as_seen: bool = False,
) -> T | None:
    """Remove the finalizer and set `mark`; return the object.

    Return None when the object does not exist any more, or does not have the finalizer.

    An object that is being deleted without a grace period is deleted with its last finalizer. The API server then
    deletes whatever version exists, even one that was written after `only_as_seen` was tested. Source:
    registry/generic/registry/store.go (v1.36), `deleteWithoutFinalizers`.

    Raises:
        StaleError: the object's finalizers differ from `meta`, or with `only_as_seen` its version does: read it again.
    """
    if finalizer not in meta.finalizers:
        return None
    index = meta.finalizers.index(finalizer)
    patch: list[RawObject] = [
        {"op": "test", "path": "/metadata/uid", "value": meta.uid},
        *((_version(meta),) if only_as_seen else ()),
        {"op": "test", "path": f"/metadata/finalizers/{index}", "value": finalizer},
        {"op": "remove", "path": f"/metadata/finalizers/{index}"},
        *(_marking(meta, mark) if mark is not None else ()),
    ]
    try:
        return await kube.patch(resource, meta.name, patch, namespace=meta.namespace or None, type_=PatchType.JSON)
    except NotFoundError:
        return None
    except InvalidError as error:
        # The API server answers a failed test with InvalidError.
        raise StaleError(f"{meta.name} has changed, or its finalizers have") from error


def _version(meta: ObjectMeta) -> RawObject:
    return {"op": "test", "path": "/metadata/resourceVersion", "value": meta.resource_version}


def _marking(meta: ObjectMeta, mark: Mark) -> list[RawObject]:
    name, value = mark
    if meta.annotations:
        return [{"op": "add", "path": f"/metadata/annotations/{name.replace('/', '~1')}", "value": value}]
    # The map has to be created, and must not replace a map that another writer has created since the read.
    return [
        _version(meta),
        {"op": "add", "path": "/metadata/annotations", "value": {name: value}},
    ]
