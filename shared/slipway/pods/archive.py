"""An uploaded archive as ConfigMaps of its workspace: one index and as many pieces as it takes.

Owns names, labels and the index. Pure. The api writes and reads them, the watcher clears them away.

Invariants: the names follow from the digest, so that uploading twice is uploading once; every piece belongs to its
index, and goes with it; an index that is not complete is nobody's context.
"""

import msgspec

from slipway.crd.meta import API_GROUP, ObjectMeta, RawObject
from slipway.crd.v1alpha1 import Wire
from slipway.kube.resources import CONFIG_MAPS, Resource
from slipway.model.times import parse_time

LABEL_CONTEXT = f"{API_GROUP}/context"
INDEX, PIECE = "index", "piece"
ANNOTATION_USED = f"{API_GROUP}/used-at"
"""when it was last uploaded or launched with, to a few minutes"""
PIECE_BYTES = 900 * 1024
"""Below what one object may have, with room for its metadata."""
INDEX_KEY = "index.json"
PIECE_KEY = "piece"
NAME_CHARACTERS = 40


class Index(Wire, kw_only=True, frozen=True):
    """What the pieces are when they are joined."""

    id: str
    bytes: int
    pieces: int
    files: int
    unpacked_bytes: int
    complete: bool = False


class IndexMap(Wire, kw_only=True, frozen=True):
    """The ConfigMap of an index."""

    metadata: ObjectMeta
    data: dict[str, str] = {}

    @property
    def index(self) -> Index | None:
        """The index; None when somebody wrote something else there."""
        try:
            return msgspec.json.decode(self.data.get(INDEX_KEY, ""), type=Index)
        except msgspec.DecodeError:
            return None

    @property
    def used_at(self) -> float:
        """When it was last in use, as far as it says."""
        times = [self.metadata.creation_timestamp, self.metadata.annotations.get(ANNOTATION_USED)]
        return max((_time(text) for text in times if text), default=0.0)


class PieceMap(Wire, kw_only=True, frozen=True):
    """The ConfigMap of a piece."""

    metadata: ObjectMeta
    binary_data: dict[str, bytes] = {}


INDEX_MAPS: Resource[IndexMap] = Resource(
    group="", version="v1", plural=CONFIG_MAPS.plural, kind=CONFIG_MAPS.kind, namespaced=True, struct=IndexMap
)
PIECE_MAPS: Resource[PieceMap] = Resource(
    group="", version="v1", plural=CONFIG_MAPS.plural, kind=CONFIG_MAPS.kind, namespaced=True, struct=PieceMap
)
INDEX_SELECTOR = f"{LABEL_CONTEXT}={INDEX}"


def index_name(id_: str) -> str:
    """The name of an archive's index."""
    return f"slipway-context-{id_[:NAME_CHARACTERS]}"


def piece_name(id_: str, number: int) -> str:
    """The name of a piece."""
    return f"{index_name(id_)}-{number}"


def index_manifest(index: Index, workspace: str, used_at: str) -> RawObject:
    """The index as it is written: before the pieces, and once more when all of them are there."""
    return {
        "metadata": {
            "name": index_name(index.id),
            "namespace": workspace,
            "labels": {LABEL_CONTEXT: INDEX},
            "annotations": {ANNOTATION_USED: used_at},
        },
        "data": {INDEX_KEY: msgspec.json.encode(index).decode()},
    }


def piece_manifest(index: IndexMap, id_: str, number: int, content: bytes) -> RawObject:
    """A piece; it is immutable, and goes when its index goes."""
    meta = index.metadata
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": meta.name, "uid": meta.uid}
    return {
        "metadata": {
            "name": piece_name(id_, number),
            "namespace": meta.namespace,
            "labels": {LABEL_CONTEXT: PIECE},
            "ownerReferences": [owner],
        },
        "immutable": True,
        "binaryData": {PIECE_KEY: content},
    }


def is_of(piece: PieceMap, index: IndexMap) -> bool:
    """Whether the piece belongs to this very index, not to one of the same name that went before."""
    return any(owner.uid == index.metadata.uid for owner in piece.metadata.owner_references)


def _time(text: str) -> float:
    try:
        return parse_time(text)
    except ValueError:
        return 0.0
