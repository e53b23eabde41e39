"""The start order of the roles of a gang: the init container in which a rank waits for other roles.

Owns that container, and the program for it in the ConfigMap. All pods of the gang are placed, released and bound
together. So a waiting rank has its node already and pulls its images during the wait, and the gang is never split. The
API decides from the pods whether the rank may start (`GET .../ranks/{rank}/start`); the program is
`slipway.inside.start`. Pure, except that it reads the program's text once.

Invariant: the container requests no more than the main container, so that the pod's requests are those that were
planned.
"""

from importlib import resources

from slipway.crd.meta import RawObject
from slipway.crd.roleresources import WAITING_CONTAINER, object_of
from slipway.pods.context import PROGRAM_PATH, PROGRAM_VOLUME, PYTHON, resources_beside

PROGRAM_KEY = "99__start.py"
"""Key in the ConfigMap; no file of a user gets this key."""
PROGRAM = resources.files("slipway.inside").joinpath("start.py").read_text(encoding="utf-8")
ITEM: RawObject = {"key": PROGRAM_KEY, "path": "start.py"}


def init_container(main: RawObject, *, image: str, python: str) -> RawObject:
    """Return the container that waits for other roles; it runs as the user of the main container.

    When `image` is empty, the image of the main container is used, which then must contain Python.
    """
    made: RawObject = {
        "name": WAITING_CONTAINER,
        "image": image or main.get("image"),
        "command": [python or PYTHON, f"{PROGRAM_PATH}/start.py"],
        "resources": resources_beside(object_of(main.get("resources"))),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": PROGRAM_VOLUME, "mountPath": PROGRAM_PATH, "readOnly": True}],
    }
    if main.get("securityContext"):
        made["securityContext"] = main["securityContext"]
    if not image and main.get("imagePullPolicy"):
        made["imagePullPolicy"] = main["imagePullPolicy"]
    return {field: value for field, value in made.items() if value not in ({}, None)}
