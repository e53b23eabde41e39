"""Workspaces: namespaces with our label, with default values for launches and a quota.

Owns the annotations and the quota of a workspace, and the rule that decides which namespaces may become workspaces. A
namespace that existed before can be adopted. It is never deleted: when its workspace is removed, it loses only what
Slipway added to it.

Invariants: a workspace with a live allocation is not removed; the namespaces of Kubernetes and of Slipway itself never
become workspaces.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from slipway.api.http.errors import ConflictError
from slipway.api.launch.catalog import Catalog
from slipway.api.ports import Kube
from slipway.api.schemas import DEFAULT_WORKSPACE, Request
from slipway.crd.fielderrors import Findings, pointer
from slipway.crd.members import members
from slipway.crd.meta import (
    ANNOTATION_HOME,
    ANNOTATION_POOL,
    ANNOTATION_PULL_SECRETS,
    ANNOTATION_QUEUE,
    ANNOTATION_RUN_AS,
    ANNOTATION_TEMPLATE,
    ANNOTATION_USER,
    LABEL_MANAGED_BY,
    LABEL_WORKSPACE,
    MANAGED_BY,
    RawObject,
    RunAs,
)
from slipway.crd.roleresources import object_of
from slipway.crd.transitions import is_admitted
from slipway.crd.v1alpha1 import Allocation, Name, RoleSpec
from slipway.crd.workspacepods import (
    PULL_SECRETS_MAX,
    HomeTemplate,
    SecretName,
    is_size,
    read,
    written,
    written_home,
    written_run_as,
)
from slipway.errors import AlreadyExistsError, FieldError, InvalidError, NotFoundError, UnavailableError
from slipway.kube.objects import Namespace, ResourceQuota
from slipway.kube.resources import ALLOCATIONS, NAMESPACES, RESOURCE_QUOTAS
from slipway.model.lifecycle import RANK_ENDS, Phase
from slipway.model.resources import GPU, GPU_MILLI, parse_quantity, scale_of
from slipway.runtime import retry
from slipway.runtime.clock import Clock, Random

QUOTA = "slipway-quota"
COMPUTE = ("cpu", "memory", "ephemeral-storage")
_GPUS = f"requests.{GPU}"
_LIVE = f"status.phase!={Phase.TERMINATED}"
_RESERVED = re.compile(r"kube-.*|slipway-system")
_ANNOTATIONS = {"pool": ANNOTATION_POOL, "queue": ANNOTATION_QUEUE, "template": ANNOTATION_TEMPLATE}
_POD_ANNOTATIONS = (ANNOTATION_PULL_SECRETS, ANNOTATION_RUN_AS, ANNOTATION_HOME)
"""Together with `_ANNOTATIONS`, the annotations that a namespace gets when it is adopted, and loses when its workspace
is removed."""

_POD_SECURITY = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
"""The labels of a namespace that Slipway creates; an adopted namespace keeps its own."""

Quantity = str | int
PullSecrets = Annotated[list[SecretName], Meta(max_length=PULL_SECRETS_MAX)]
Quota = Annotated[dict[str, Quantity], Meta(max_length=32, description="such as {nvidia.com/gpu: 8, pods: 100}")]


class WorkspaceBody(Request, kw_only=True, frozen=True):
    """A new workspace; with `adopt`, an existing namespace becomes a workspace."""

    name: Name
    default_pool: Name | None = None
    default_queue: Name | None = None
    default_template: Name | None = None
    image_pull_secrets: PullSecrets = []
    run_as: RunAs | None = None
    home: HomeTemplate | None = None
    """template of the volume claims for home directories; launches with home: true have one"""
    quota: Quota = {}
    adopt: bool = False


class WorkspaceChange(Request, kw_only=True, frozen=True):
    """The fields of a workspace that can change. Null removes a default, the Secrets for images, runAs, home, or the
    whole quota. Existing home directories stay."""

    default_pool: Name | UnsetType | None = UNSET
    default_queue: Name | UnsetType | None = UNSET
    default_template: Name | UnsetType | None = UNSET
    image_pull_secrets: PullSecrets | UnsetType | None = UNSET
    run_as: RunAs | UnsetType | None = UNSET
    home: HomeTemplate | UnsetType | None = UNSET
    """template of the volume claims for home directories; null: launches with home: true are refused"""
    quota: Quota | UnsetType | None = UNSET


class WorkspaceView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A workspace: a namespace for launches."""

    name: str
    phase: str
    created_at: str
    is_owned: bool
    """the namespace was created by Slipway, and is deleted with the workspace"""
    default_pool: str
    default_queue: str
    default_template: str
    image_pull_secrets: list[str]
    """Secrets of its namespace that the images of its pods are pulled with, after those of the pod template"""
    run_as: RunAs
    """user and groups of launches that do not set them"""
    home: HomeTemplate | None
    """template of the volume claims for home directories; null: there are no home directories"""
    pools: list[str]
    """pools that its launches may use"""
    quota: dict[str, Any]
    used: dict[str, Any]


class Workspaces:
    """Reads and changes workspaces."""

    def __init__(
        self,
        kube: Kube,
        catalog: Catalog,
        live: Callable[[], Awaitable[list[Allocation]]],
        *,
        system_namespace: str,
        clock: Clock,
        random: Random,
    ) -> None:
        """`live` reads the allocations that have not ended."""
        self._kube = kube
        self._live = live
        self._catalog = catalog
        self._system_namespace = system_namespace
        self._clock = clock
        self._random = random

    async def all(self) -> list[WorkspaceView]:
        """Return all workspaces, sorted by name."""
        listed = await self._kube.list(NAMESPACES, label_selector=f"{LABEL_WORKSPACE}=true")
        quotas = {
            item.metadata.namespace: item for item in (await self._kube.list(RESOURCE_QUOTAS)).items if _is_ours(item)
        }
        handed_out = dict[str, int]()
        if any(map(_bounds_gpus, quotas.values())):
            handed_out = handed_out_by_namespace(await self._live())
        pools = await self._catalog.pools_by_workspace([item.metadata.name for item in listed.items])
        found = [
            _view(item, quotas.get(item.metadata.name), pools[item.metadata.name], handed_out) for item in listed.items
        ]
        return sorted(found, key=lambda view: view.name)

    async def one(self, name: str) -> WorkspaceView:
        """Return one workspace. Raises NotFoundError."""
        found = await self._found(name)
        quota, handed_out = await self._quota(name), dict[str, int]()
        if quota is not None and _bounds_gpus(quota):
            handed_out = handed_out_by_namespace(await self._live())
        return _view(found, quota, await self._catalog.pools_of(name), handed_out)

    async def create(self, body: WorkspaceBody, user: str) -> WorkspaceView:
        """Create a workspace; with `adopt`, from an existing namespace.

        Raises:
            InvalidError: a bad name, default or quota.
            AlreadyExistsError: the workspace exists, or its namespace exists and `adopt` is not set.
        """
        if _RESERVED.fullmatch(body.name) or body.name == self._system_namespace:
            raise _invalid("/name", f"{body.name} belongs to the system and cannot become a workspace; choose another")
        hard = hard_of(body.quota)
        _check_home(body.home)
        await self._check_defaults(body.name, body.default_pool, body.default_queue)
        if body.adopt:
            # A new namespace has no template yet: its default may be named first and created afterwards.
            await self._check_template(body.name, body.default_template)
        metadata: RawObject = {
            "name": body.name,
            "labels": {LABEL_WORKSPACE: "true", LABEL_MANAGED_BY: MANAGED_BY, **_POD_SECURITY},
            "annotations": {**_given(body), ANNOTATION_USER: user},
        }
        try:
            await self._kube.create(NAMESPACES, {"metadata": metadata})
        except AlreadyExistsError as error:
            await self._adopt(body, error)
        await self._set_quota(body.name, hard)
        self._catalog.forget_workspace(body.name)
        return await self.one(body.name)

    async def change(self, name: str, body: WorkspaceChange) -> WorkspaceView:
        """Change the defaults and the quota of a workspace. Raises NotFoundError, InvalidError."""
        found = await self._found(name)
        hard = None if body.quota is UNSET else hard_of(body.quota or {})
        _check_home(body.home)
        marks = found.metadata.annotations
        pool = marks.get(ANNOTATION_POOL) if body.default_pool is UNSET else body.default_pool
        queue = marks.get(ANNOTATION_QUEUE) if body.default_queue is UNSET else body.default_queue
        if body.default_pool is not UNSET or body.default_queue is not UNSET:
            await self._check_defaults(name, pool, queue)
        if body.default_template is not UNSET:
            await self._check_template(name, body.default_template)
        fields = {"pool": body.default_pool, "queue": body.default_queue, "template": body.default_template}
        annotations = {_ANNOTATIONS[field]: value for field, value in fields.items() if value is not UNSET}
        if body.image_pull_secrets is not UNSET:
            annotations[ANNOTATION_PULL_SECRETS] = written(dict.fromkeys(body.image_pull_secrets or ()))
        if body.run_as is not UNSET:
            annotations[ANNOTATION_RUN_AS] = written_run_as(body.run_as)
        if body.home is not UNSET:
            annotations[ANNOTATION_HOME] = written_home(body.home)
        if annotations:
            await self._kube.patch(NAMESPACES, name, {"metadata": {"annotations": annotations}})
        if hard is not None:
            await self._set_quota(name, hard)
        self._catalog.forget_workspace(name)
        return await self.one(name)

    async def remove(self, name: str) -> None:
        """Remove a workspace; its namespace is deleted too if Slipway created it.

        Raises:
            ConflictError: it has a live allocation, or it is the workspace `default`.
        """
        found = await self._found(name)
        if name == DEFAULT_WORKSPACE:
            raise ConflictError("the workspace `default` cannot be deleted: launches that name no workspace use it")
        live = (await self._kube.list(ALLOCATIONS, namespace=name, field_selector=_LIVE)).items
        if live:
            first = ", ".join(sorted(item.metadata.name for item in live)[:5])
            raise ConflictError(
                f"{len(live)} allocations of workspace {name} have not ended ({first}); kill them first"
            )
        meta = found.metadata
        if meta.labels.get(LABEL_MANAGED_BY) == MANAGED_BY:
            await self._kube.delete(NAMESPACES, name, uid=meta.uid)
        else:
            await self._set_quota(name, {})
            given = dict.fromkeys((*_ANNOTATIONS.values(), *_POD_ANNOTATIONS))
            await self._kube.patch(
                NAMESPACES,
                name,
                {"metadata": {"uid": meta.uid, "labels": {LABEL_WORKSPACE: None}, "annotations": given}},
            )
        self._catalog.forget_workspace(name)

    # --- parts ----------------------------------------------------------------------------------------------------

    async def _found(self, name: str) -> Namespace:
        try:
            found = await self._kube.get(NAMESPACES, name)
        except NotFoundError:
            found = None
        if found is None or found.metadata.labels.get(LABEL_WORKSPACE) != "true":
            raise NotFoundError(f"there is no workspace {name[:80]!r}; GET /api/v1/workspaces lists what there is")
        return found

    async def _adopt(self, body: WorkspaceBody, taken: AlreadyExistsError) -> None:
        found = await self._kube.get(NAMESPACES, body.name)
        if found.metadata.labels.get(LABEL_WORKSPACE) == "true":
            raise AlreadyExistsError(
                f"workspace {body.name} exists; PATCH /api/v1/workspaces/{body.name} changes it"
            ) from taken
        if not body.adopt:
            raise AlreadyExistsError(
                f"namespace {body.name} exists and is not a workspace; set adopt to true to make it one"
            ) from taken
        meta = {"uid": found.metadata.uid, "labels": {LABEL_WORKSPACE: "true"}, "annotations": _given(body)}
        await self._kube.patch(NAMESPACES, body.name, {"metadata": meta})

    async def _check_defaults(self, name: str, pool: str | None, queue: str | None) -> None:
        if pool is not None:
            try:
                await self._catalog.pool_for(pool, name)
            except InvalidError as error:
                raise _invalid("/defaultPool", error.fields[0].detail) from error
        if queue is not None:
            warning = await self._catalog.queue_warning(queue, pool or "default")
            if warning:
                raise _invalid("/defaultQueue", warning.partition(":")[0])

    async def _check_template(self, name: str, template: str | None) -> None:
        if template is not None:
            try:
                await self._catalog.template(template, name)
            except InvalidError as error:
                raise _invalid("/defaultTemplate", error.fields[0].detail) from error

    async def _quota(self, name: str) -> ResourceQuota | None:
        try:
            return await self._kube.get(RESOURCE_QUOTAS, QUOTA, namespace=name)
        except NotFoundError:
            return None

    async def _set_quota(self, name: str, hard: Mapping[str, str]) -> None:
        found = await self._quota(name)
        if found is None and not hard:
            return
        if found is not None and not hard:
            await self._kube.delete(RESOURCE_QUOTAS, QUOTA, namespace=name, uid=found.metadata.uid)
        elif found is None:
            create = partial(self._create_quota, name, hard)
            await retry.call(_KNOWN_SOON, create, clock=self._clock, random=self._random)
        else:
            gone = dict.fromkeys(found.spec.hard.keys() - hard.keys())
            await self._kube.patch(RESOURCE_QUOTAS, QUOTA, {"spec": {"hard": {**gone, **hard}}}, namespace=name)

    async def _create_quota(self, name: str, hard: Mapping[str, str]) -> None:
        meta = {"name": QUOTA, "namespace": name, "labels": {LABEL_WORKSPACE: "true"}}
        try:
            await self._kube.create(RESOURCE_QUOTAS, {"metadata": meta, "spec": {"hard": dict(hard)}})
        except InvalidError as error:
            if _NO_WORKSPACE in str(error):
                # Admission policies read namespaces from a cache, which may not have the label of a new workspace yet.
                raise UnavailableError(f"the API server does not know workspace {name} yet: {error}") from error
            raise


_NO_WORKSPACE = "the namespace is no workspace, so it has no quota"
"""The text with which the chart's admission policy `quotas` refuses."""
_KNOWN_SOON = msgspec.structs.replace(retry.QUICK, name="workspace_quota", attempts_max=10, total_s=3.0)

_QUOTAS = frozenset(
    {
        *(f"{prefix}{name}" for prefix in ("", "requests.", "limits.") for name in COMPUTE),
        *("pods", "requests.storage", "persistentvolumeclaims", "secrets", "configmaps", "resourcequotas"),
        *("replicationcontrollers", "services", "services.nodeports", "services.loadbalancers"),
    }
)
"""The names that a ResourceQuota may limit without a prefix. Source: Kubernetes, pkg/apis/core/helper (v1.36)."""


def hard_of(quota: Mapping[str, Quantity]) -> dict[str, str]:
    """Return the `hard` of a ResourceQuota; short names such as `cpu` become `requests.cpu`. Raises InvalidError."""
    findings = Findings()
    hard: dict[str, str] = {}
    for name, amount in quota.items():
        at = "/quota" + pointer(name)
        try:
            if isinstance(amount, bool) or parse_quantity(amount, scale=scale_of(name)) < 0:
                raise ValueError("must not be negative")
        except (ValueError, ArithmeticError) as error:
            findings.refuse(at, str(error))
        is_name = re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?", name) and len(name) <= 253
        is_known = "/" in name or name in _QUOTAS or name.removeprefix("requests.").startswith("hugepages-")
        if not is_name or not is_known:
            findings.refuse(at, "is not the name of a resource; use cpu, memory, pods or one such as nvidia.com/gpu")
        is_short = name in COMPUTE or ("/" in name and not name.startswith(("requests.", "limits.", "count/")))
        hard[f"requests.{name}" if is_short else name] = str(amount)
    if findings.errors:
        first = findings.errors[0]
        raise InvalidError(f"quota: {first.detail}", fields=findings.errors)
    return hard


def _check_home(home: HomeTemplate | UnsetType | None) -> None:
    """Raises InvalidError for a template from which no volume claim can be created."""
    if isinstance(home, HomeTemplate) and not is_size(home.size):
        raise _invalid("/home/size", f"{home.size!r} is not a size; write one such as 10Gi")


def _given(body: WorkspaceBody) -> dict[str, str]:
    fields = {"pool": body.default_pool, "queue": body.default_queue, "template": body.default_template}
    given = {_ANNOTATIONS[field]: value for field, value in fields.items() if value is not None}
    pods = (written(dict.fromkeys(body.image_pull_secrets)), written_run_as(body.run_as), written_home(body.home))
    return given | {name: value for name, value in zip(_POD_ANNOTATIONS, pods, strict=True) if value}


def _is_ours(quota: ResourceQuota) -> bool:
    return quota.metadata.name == QUOTA


def handed_out_by_namespace(live: Iterable[Allocation]) -> dict[str, int]:
    """Return {namespace: whole GPUs that the scheduler has assigned there, device by device}.

    The pods do not request these GPUs from Kubernetes, so the status of a ResourceQuota does not include them.
    """
    found: dict[str, int] = {}
    for allocation in live:
        ranks = allocation.status.ranks or []
        if not is_admitted(allocation):
            continue
        parts = {role.name for role in allocation.spec.ranks if _is_part(role)}
        for member in members(allocation):
            place, known = member.placement, ranks[member.rank] if member.rank < len(ranks) else None
            is_same = known is not None and (known.pod_uid == member.pod_uid or not (member.grown or member.restart))
            has_ended = known is not None and is_same and known.phase in RANK_ENDS
            if place.device and place.role not in parts and not has_ended:
                namespace = allocation.metadata.namespace
                found[namespace] = found.get(namespace, 0) + len(place.device)
    return found


def _is_part(role: RoleSpec) -> bool:
    return GPU_MILLI in object_of(role.resources.get("requests"))


def _bounds_gpus(quota: ResourceQuota) -> bool:
    return _GPUS in quota.spec.hard


def _used(quota: ResourceQuota, handed_out: int) -> dict[str, Any]:
    used = dict(quota.status.used)
    if handed_out and _bounds_gpus(quota):
        used[_GPUS] = str(parse_quantity(used.get(_GPUS, 0)) + handed_out)
    return used


def _view(
    found: Namespace, quota: ResourceQuota | None, pools: list[str], handed_out: Mapping[str, int]
) -> WorkspaceView:
    meta = found.metadata
    return WorkspaceView(
        name=meta.name,
        phase="Terminating" if meta.deletion_timestamp else found.status.phase,
        created_at=meta.creation_timestamp or "",
        is_owned=meta.labels.get(LABEL_MANAGED_BY) == MANAGED_BY,
        default_pool=meta.annotations.get(ANNOTATION_POOL, ""),
        default_queue=meta.annotations.get(ANNOTATION_QUEUE, ""),
        default_template=meta.annotations.get(ANNOTATION_TEMPLATE, ""),
        image_pull_secrets=list(read(meta.annotations).pull_secrets),
        run_as=read(meta.annotations).run_as,
        home=read(meta.annotations).home,
        pools=pools,
        quota=dict(quota.spec.hard) if quota else {},
        used=_used(quota, handed_out.get(meta.name, 0)) if quota else {},
    )


def _invalid(at: str, detail: str) -> InvalidError:
    return InvalidError(f"{at.removeprefix('/')}: {detail}", fields=(FieldError(at, detail),))
