"""The start order of the roles of a gang: the init container in which a rank waits for other roles.

Owns that container and the program that travels in the ConfigMap. All pods of the gang are placed, released and bound
together, so a rank that waits keeps its place and pulls its images meanwhile, and the gang is never torn in two. What
it waits for is judged by the API, from the pods (`GET .../ranks/{rank}/start`); what the program does is
`slipway.inside.start`'s. Pure but for reading the program's text once.

Invariant: the container asks for no more than the main one does, so that a pod needs what was planned for it.
"""

from importlib import resources

from slipway.crd.meta import RawObject
from slipway.crd.roleresources import WAITING_CONTAINER, object_of
from slipway.pods.context import PROGRAM_PATH, PROGRAM_VOLUME, PYTHON, resources_beside

PROGRAM_KEY = "99__start.py"
"""A key that no file of a user gets."""
PROGRAM = resources.files("slipway.inside").joinpath("start.py").read_text(encoding="utf-8")
ITEM: RawObject = {"key": PROGRAM_KEY, "path": "start.py"}


def init_container(main: RawObject, *, image: str, python: str) -> RawObject:
    """Waits, as the user that the main container runs as.

    `image` is empty for the image of the main container, which then needs a Python.
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
