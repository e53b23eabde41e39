"""The uploaded archive of an allocation: the init container that downloads and unpacks it, and its target directory.

Owns that container, the volume of the working directory when there is a context, and the program for the container in
the ConfigMap. Pure, except that it reads the program's text once. The program is `slipway.inside.fetch`.

Invariant: the container requests no more than the main container, so that the pod's requests are those that were
planned.
"""

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from slipway.crd.meta import RawObject
from slipway.crd.roleresources import FETCHING_CONTAINER, object_of, without_devices
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
