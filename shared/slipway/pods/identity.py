"""The user name and home of the main container of a rank: HOME, USER, LOGNAME, and the volume mounted at HOME. Pure.

The image of a rank often does not know the uid that the rank runs as. Without an entry in /etc/passwd the container
runtime sets HOME to `/`, where that uid cannot write, and Python's `getpass.getuser()` fails. These variables solve
both problems.

`slipway.inside.home` decides which home our programs (notebook, shell, TensorBoard) use when the image has its own.

Invariant: a variable that the container or the launch sets is never replaced.

Persistent home directories are one volume claim for each user of a workspace. The pod worker creates the claim with the
contents that `claim_of` returns; `crd/homes.py` has its name. Invariant: the claim has no owner, so that Slipway never
deletes it.
"""

import posixpath
from collections.abc import Collection
from typing import Any

from slipway.crd.homes import claim_name, login_of
from slipway.crd.kinds import HOME_PATH, LIBRARY_PATH
from slipway.crd.meta import ANNOTATION_USER, LABEL_HOME, LABEL_MANAGED_BY, MANAGED_BY, RawObject
from slipway.crd.roleresources import JsonMap, object_of, objects_of
from slipway.crd.transitions import user_of
from slipway.crd.v1alpha1 import Allocation
from slipway.crd.workspacepods import HomeTemplate

HOME_VOLUME = "slipway-home"
_READ_ONLY = frozenset({"configMap", "downwardAPI", "image", "projected", "secret"})
_MAY_BE_READ = ("csi", "persistentVolumeClaim")


def variables(
    container: JsonMap, pod: JsonMap, user: str, taken: Collection[str], *, is_kept: bool = False
) -> list[dict[str, Any]]:
    """Return the variables for the main container, except those in `taken`; `user` launched the allocation.

    When the image chooses the uid, the image knows that user's home: then no variable is returned. `is_kept`: the home
    is a persistent volume.
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
    # Our own program first checks whether the image has a writable home; a HOME variable would hide it.
    if home or not _starts_ours(container):
        told = {"HOME": home or HOME_PATH, **told}
    return [{"name": variable, "value": value} for variable, value in told.items() if variable not in taken]


def mount_of(container: JsonMap, pod: JsonMap, taken: Collection[str], *, is_kept: bool = False) -> list[RawObject]:
    """Return the mount of the home volume; an empty list when the container does not need it."""
    if is_kept:
        return [{"name": HOME_VOLUME, "mountPath": HOME_PATH}]
    is_there = any(_path_of(mount) == HOME_PATH for mount in objects_of(container.get("volumeMounts")))
    if is_there or "HOME" in taken or not _has_uid(container, pod) or _own_home(container, pod):
        return []
    return [{"name": HOME_VOLUME, "mountPath": HOME_PATH}]


def volume_of(container: JsonMap, claim: str = "") -> list[RawObject]:
    """Return the volume for the mount of `mount_of`: `claim` when it is not empty, else an emptyDir."""
    is_mounted = any(mount.get("name") == HOME_VOLUME for mount in objects_of(container.get("volumeMounts")))
    if is_mounted and claim:
        return [{"name": HOME_VOLUME, "persistentVolumeClaim": {"claimName": claim}}]
    return [{"name": HOME_VOLUME, "emptyDir": {}}] if is_mounted else []


def _has_uid(container: JsonMap, pod: JsonMap) -> bool:
    """Whether the pod sets the uid that it runs as, other than root; root has a home in every image."""
    for context in (object_of(container.get("securityContext")), object_of(pod.get("securityContext"))):
        uid = context.get("runAsUser")
        if uid is not None:
            return uid != 0
    return False


def _own_home(container: JsonMap, pod: JsonMap) -> str:
    """Return the path of the only writable volume mounted below /home; empty when there is none, or several."""
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
    """Whether all mounts of the volume are read-only."""
    return bool(_READ_ONLY & volume.keys()) or any(object_of(volume.get(kind)).get("readOnly") for kind in _MAY_BE_READ)


def _path_of(mount: JsonMap) -> str:
    return posixpath.normpath(str(mount.get("mountPath") or ""))


def _starts_ours(container: JsonMap) -> bool:
    # When the launch has a setup script, the words of the program are in the arguments.
    words = (*(container.get("command") or ()), *(container.get("args") or ()))
    return any(LIBRARY_PATH in str(word) for word in words)


def claim_of(allocation: Allocation, template: HomeTemplate) -> RawObject:
    """Return the claim for the allocation's user; it is created once."""
    user = user_of(allocation, "")
    spec: RawObject = {
        "accessModes": [template.access_mode],
        "resources": {"requests": {"storage": template.size}},
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": claim_name(user),
            "namespace": allocation.metadata.namespace,
            "labels": {LABEL_HOME: "true", LABEL_MANAGED_BY: MANAGED_BY},
            "annotations": {ANNOTATION_USER: user},
        },
        "spec": spec | ({"storageClassName": template.storage_class} if template.storage_class else {}),
    }
