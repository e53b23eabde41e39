"""Whose home and which name the main container of a rank has: HOME, USER, LOGNAME, and the folder behind HOME.

A rank runs as a uid that its image often does not know. Without an entry in /etc/passwd the container runtime sets
HOME to `/`, which that uid cannot write, and Python's `getpass.getuser()` fails. These variables make both work.

Owns the rules of these variables and of the volume. Pure. What the program of a notebook, a shell and a TensorBoard
does with an image that has a home of its own is `slipway.inside.home`.

Invariant: a variable that the container or the launch sets is never replaced.
"""

import posixpath
from collections.abc import Collection
from typing import Any

from slipway.crd.homes import login_of
from slipway.crd.kinds import HOME_PATH, LIBRARY_PATH
from slipway.crd.meta import RawObject
from slipway.crd.roleresources import JsonMap, object_of, objects_of

HOME_VOLUME = "slipway-home"
_READ_ONLY = frozenset({"configMap", "downwardAPI", "image", "projected", "secret"})
_MAY_BE_READ = ("csi", "persistentVolumeClaim")


def variables(
    container: JsonMap, pod: JsonMap, user: str, taken: Collection[str], *, is_kept: bool = False
) -> list[dict[str, Any]]:
    """What the main container is told beside the variables in `taken`; `user` is who launched the allocation.

    Empty when the image chooses the user: it knows that user's home. `is_kept`: the home is a volume that is kept.
    """
    if is_kept:
        kept = {"HOME": HOME_PATH}
        kept |= {"USER": login_of(user), "LOGNAME": login_of(user)} if _has_uid(container, pod) else {}
        return [{"name": variable, "value": value} for variable, value in kept.items() if variable not in taken]
    if not _has_uid(container, pod):
        return []
    name = login_of(user)
    told = {"USER": name, "LOGNAME": name}
    home = _own_home(container, pod)
    # Our own program looks first whether the image has a home that can be written; a variable would hide that.
    if home or not _starts_ours(container):
        told = {"HOME": home or HOME_PATH, **told}
    return [{"name": variable, "value": value} for variable, value in told.items() if variable not in taken]


def mount_of(container: JsonMap, pod: JsonMap, taken: Collection[str], *, is_kept: bool = False) -> list[RawObject]:
    """The mount of the folder that HOME names, when the container needs it."""
    if is_kept:
        return [{"name": HOME_VOLUME, "mountPath": HOME_PATH}]
    is_there = any(_path_of(mount) == HOME_PATH for mount in objects_of(container.get("volumeMounts")))
    if is_there or "HOME" in taken or not _has_uid(container, pod) or _own_home(container, pod):
        return []
    return [{"name": HOME_VOLUME, "mountPath": HOME_PATH}]


def volume_of(container: JsonMap, claim: str = "") -> list[RawObject]:
    """The volume for `mount_of`: that claim, if one is named."""
    is_mounted = any(mount.get("name") == HOME_VOLUME for mount in objects_of(container.get("volumeMounts")))
    if is_mounted and claim:
        return [{"name": HOME_VOLUME, "persistentVolumeClaim": {"claimName": claim}}]
    return [{"name": HOME_VOLUME, "emptyDir": {}}] if is_mounted else []


def _has_uid(container: JsonMap, pod: JsonMap) -> bool:
    """Whether the pod says which user it runs as, and not root, who has a home in every image."""
    for context in (object_of(container.get("securityContext")), object_of(pod.get("securityContext"))):
        uid = context.get("runAsUser")
        if uid is not None:
            return uid != 0
    return False


def _own_home(container: JsonMap, pod: JsonMap) -> str:
    """The path of the one writable volume that is mounted as somebody's home; empty: there is none, or several."""
    fixed = {volume.get("name") for volume in objects_of(pod.get("volumes")) if _is_read_only(volume)}
    homes = {
        path
        for mount in objects_of(container.get("volumeMounts"))
        if posixpath.dirname(path := _path_of(mount)) == "/home"
        and not mount.get("readOnly")
        and mount.get("name") not in fixed
    }
    return homes.pop() if len(homes) == 1 else ""


def _is_read_only(volume: JsonMap) -> bool:
    """Whether no mount of it can be written."""
    return bool(_READ_ONLY & volume.keys()) or any(object_of(volume.get(kind)).get("readOnly") for kind in _MAY_BE_READ)


def _path_of(mount: JsonMap) -> str:
    return posixpath.normpath(str(mount.get("mountPath") or ""))


def _starts_ours(container: JsonMap) -> bool:
    # A setup that goes before it has made its words arguments.
    words = (*(container.get("command") or ()), *(container.get("args") or ()))
    return any(LIBRARY_PATH in str(word) for word in words)
