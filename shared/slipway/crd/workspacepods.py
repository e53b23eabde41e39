"""The settings of a workspace for its pods, which are annotations of its namespace. Pure.

Owns how the annotations are read and written. Invalid parts of an annotation that an administrator wrote by hand are
ignored, so that launches in the workspace still work.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from slipway.crd.meta import (
    ANNOTATION_HOME,
    ANNOTATION_PULL_SECRETS,
    ANNOTATION_RUN_AS,
    ANNOTATION_SECRETS,
    ANNOTATION_SERVICE_ACCOUNTS,
    RunAs,
)
from slipway.crd.roleresources import object_of, objects_of
from slipway.crd.v1alpha1 import AllocationSpec
from slipway.model.resources import parse_quantity

PULL_SECRETS_MAX = 16
OBJECT_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
SecretName = Annotated[str, Meta(max_length=253, pattern=OBJECT_NAME_PATTERN)]
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]
_NAME = re.compile(OBJECT_NAME_PATTERN)


class ReleasedSecrets(msgspec.Struct, frozen=True, kw_only=True):
    """The Secrets that pod templates of a workspace may name."""

    names: tuple[str, ...]
    """names, or PREFIX*"""
    for_images: tuple[str, ...] = ()
    """further names that are allowed in imagePullSecrets only"""


class HomeTemplate(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The volume claims for home directories of a workspace, one for each user."""

    size: Annotated[str, Meta(min_length=1, max_length=64, description="of each, such as 10Gi")]
    storage_class: Annotated[str, Meta(max_length=253, description="that of the cluster's default when empty")] = ""
    access_mode: AccessMode = "ReadWriteOnce"
    """ReadWriteMany if launches of a user on several nodes share it; the storage class must support that"""


class WorkspacePods(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one workspace; a field without an annotation is empty."""

    accounts: tuple[str, ...] = ()
    """service accounts that its ranks may use, besides `default`: names, or PREFIX*"""
    pull_secrets: tuple[str, ...] = ()
    """Secrets of its namespace with which the images of each pod are pulled"""
    run_as: RunAs = RunAs()
    """uid and groups of launches that set none"""
    home: HomeTemplate | None = None
    """the volume claims for home directories; None: the workspace has no home directories"""
    secrets: tuple[str, ...] | None = None
    """Secrets that pod templates may name: names, or PREFIX*; None: all Secrets"""

    @property
    def released(self) -> ReleasedSecrets | None:
        """The Secrets that pod templates may name; None: all Secrets."""
        return None if self.secrets is None else ReleasedSecrets(names=self.secrets, for_images=self.pull_secrets)


def read(annotations: Mapping[str, str]) -> WorkspacePods:
    """Return the settings in the annotations of a namespace."""
    secrets = dict.fromkeys(filter(_NAME.fullmatch, _listed(annotations.get(ANNOTATION_PULL_SECRETS, ""))))
    return WorkspacePods(
        accounts=_listed(annotations.get(ANNOTATION_SERVICE_ACCOUNTS, "")),
        pull_secrets=tuple(secrets)[:PULL_SECRETS_MAX],
        run_as=_run_as(annotations.get(ANNOTATION_RUN_AS, "")),
        home=_home(annotations.get(ANNOTATION_HOME, "")),
        secrets=_listed(annotations[ANNOTATION_SECRETS]) if ANNOTATION_SECRETS in annotations else None,
    )


def written(names: Iterable[str]) -> str | None:
    """Return the annotation for a list of names; None: no annotation."""
    return ",".join(names) or None


def written_run_as(run_as: RunAs | None) -> str | None:
    """Return the annotation for `run_as`; None: no annotation."""
    return msgspec.json.encode(run_as).decode() if run_as is not None and run_as != RunAs() else None


def no_homes(workspace: str) -> str:
    """Return the refusal of a launch that requests a home directory in a workspace without them."""
    return (
        f"workspace {workspace} has no home directories; leave home out, or ask an administrator to enable them: "
        f"slipway workspace set {workspace} --home 10Gi"
    )


def written_home(home: HomeTemplate | None) -> str | None:
    """Return the annotation for `home`; None: no annotation."""
    return msgspec.json.encode(home).decode() if home is not None else None


def with_pull_secrets(spec: AllocationSpec, names: Iterable[str]) -> AllocationSpec:
    """Return the spec with these Secrets added to the pull secrets of its templates, after their own, without
    duplicates."""
    names = tuple(names)
    if not names:
        return spec
    roles = [
        msgspec.structs.replace(role, template=_with_secrets(role.template, names)) if role.template else role
        for role in spec.ranks
    ]
    return msgspec.structs.replace(spec, template=_with_secrets(spec.template, names), ranks=roles)


def _with_secrets(template: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    pod = object_of(template.get("spec"))
    own = objects_of(pod.get("imagePullSecrets"))
    told = {item.get("name") for item in own}
    more = [{"name": name} for name in names if name not in told]
    return {**template, "spec": {**pod, "imagePullSecrets": [*own, *more]}}


def _run_as(annotation: str) -> RunAs:
    try:
        return msgspec.json.decode(annotation, type=RunAs) if annotation else RunAs()
    except msgspec.DecodeError:
        return RunAs()


def _home(annotation: str) -> HomeTemplate | None:
    try:
        found = msgspec.json.decode(annotation, type=HomeTemplate) if annotation else None
    except msgspec.DecodeError:
        return None
    return found if found is not None and is_size(found.size) else None


def is_size(text: str) -> bool:
    """Whether `text` is a valid size of a volume."""
    try:
        return parse_quantity(text) > 0
    except (ValueError, ArithmeticError):
        return False


def _listed(annotation: str) -> tuple[str, ...]:
    return tuple(name for part in annotation.split(",") if (name := part.strip()))
