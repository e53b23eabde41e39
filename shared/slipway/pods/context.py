"""The uploaded archive of an allocation: the init container that downloads and unpacks it, and its target directory.

Owns that container, the volume of the working directory when there is a context, and the program for the container in
the ConfigMap. Pure, except that it reads the program's text once. The program is `slipway.inside.fetch`.

Invariant: the container requests no more than the main container, so that the pod's requests are those that were
planned.

An uploaded archive is stored as ConfigMaps of its workspace: one index and as many pieces as needed. The api writes and
reads them; the watcher deletes them. Invariants: their names follow from the digest, so that a second upload of the
same archive changes nothing. The index owns every piece, so that Kubernetes deletes the pieces with it. A launch cannot
use an archive whose index is not complete.
"""

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import msgspec

from slipway.crd.meta import API_GROUP, ObjectMeta, RawObject
from slipway.crd.roleresources import FETCHING_CONTAINER, object_of, without_devices
from slipway.crd.v1alpha1 import Wire
from slipway.kube.resources import CONFIG_MAPS, Resource
from slipway.model.times import parse_time
from slipway.pods.files import WORK_VOLUME

CONTAINER = FETCHING_CONTAINER
PROGRAM_VOLUME = "slipway-inside"
PROGRAM_PATH = "/run/slipway/inside"
PROGRAM_KEY = "99__fetch.py"
"""Key in the ConfigMap; no file of a user gets this key."""
PROGRAM = resources.files("slipway.inside").joinpath("fetch.py").read_text(encoding="utf-8")
PYTHON = "python3"


def init_container(digest: str, main: RawObject, *, target: str, image: str, python: str) -> RawObject:
    """Return the container that unpacks the archive `digest` into `target`; it runs as the user of the main container.

    When `image` is empty, the image of the main container is used, which then must contain Python.
    """
    made: RawObject = {
        "name": CONTAINER,
        "image": image or main.get("image"),
        "command": [python or PYTHON, f"{PROGRAM_PATH}/fetch.py", target, digest],
        "resources": resources_beside(object_of(main.get("resources"))),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": PROGRAM_VOLUME, "mountPath": PROGRAM_PATH, "readOnly": True},
            {"name": WORK_VOLUME, "mountPath": target},
        ],
    }
    if main.get("securityContext"):
        made["securityContext"] = main["securityContext"]
    if not image and main.get("imagePullPolicy"):
        made["imagePullPolicy"] = main["imagePullPolicy"]
    return {field: value for field, value in made.items() if value not in ({}, None)}


ITEM: RawObject = {"key": PROGRAM_KEY, "path": "fetch.py"}


def program_volume(configmap: str, items: Sequence[RawObject]) -> RawObject:
    """Return the volume with the programs of our init containers."""
    items = list(items)
    return {"name": PROGRAM_VOLUME, "configMap": {"name": configmap, "items": items}}


def work_volume() -> RawObject:
    """Return the volume for the working directory of the main container."""
    return {"name": WORK_VOLUME, "emptyDir": {}}


def resources_beside(given: Mapping[str, Any]) -> RawObject:
    """Return `given` without devices, because our init containers need none."""
    made = {part: without_devices(object_of(given.get(part))) for part in ("requests", "limits")}
    return {part: amounts for part, amounts in made.items() if amounts}


LABEL_CONTEXT = f"{API_GROUP}/context"
INDEX, PIECE = "index", "piece"
ANNOTATION_USED = f"{API_GROUP}/used-at"
"""Annotation with the time of the last upload or launch, exact to a few minutes."""
PIECE_BYTES = 900 * 1024
"""Below the size limit of one object, with room for its metadata."""
INDEX_KEY = "index.json"
PIECE_KEY = "piece"
NAME_CHARACTERS = 40


class Index(Wire, kw_only=True, frozen=True):
    """The description of an archive: its sizes, and the number of its pieces."""

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
        """The index; None when the ConfigMap contains no valid index."""
        try:
            return msgspec.json.decode(self.data.get(INDEX_KEY, ""), type=Index)
        except msgspec.DecodeError:
            return None

    @property
    def used_at(self) -> float:
        """The time of its last known use, in epoch seconds: its creation or the time in the annotation."""
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
    """Return the name of an archive's index."""
    return f"slipway-context-{id_[:NAME_CHARACTERS]}"


def piece_name(id_: str, number: int) -> str:
    """Return the name of a piece."""
    return f"{index_name(id_)}-{number}"


def index_manifest(index: Index, workspace: str, used_at: str) -> RawObject:
    """Return the ConfigMap of the index; it is written before the pieces, and again after all pieces exist."""
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
    """Return the ConfigMap of a piece; it is immutable, and Kubernetes deletes it with its index."""
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
    """Whether this index owns the piece, and not a deleted index of the same name."""
    return any(owner.uid == index.metadata.uid for owner in piece.metadata.owner_references)


def _time(text: str) -> float:
    try:
        return parse_time(text)
    except ValueError:
        return 0.0
