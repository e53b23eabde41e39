"""The launch: a request becomes one Allocation in the Kubernetes API, or says exactly why not.

Owns idempotency. The name makes the create idempotent: it comes from the client, from the Idempotency-Key, or is made
up once per request; the server lets one create of it win. Who finds the name taken reads the object: its annotations
say whether it is this very request (a create whose answer was lost), an earlier one with the same key, or foreign. That
a key is used with one name only is the work of `claims.py`.

Invariants: nothing is answered 2xx before the create has committed, and the secret values of the launch are kept
(`secret_values.py`); one key makes one allocation; the streams are told afterwards and never waited for.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection
from typing import Any, cast

import msgspec

from slipway.api import admission, dependencies
from slipway.api.admission import Draft
from slipway.api.capacity import PoolCapacity, capacity_warnings
from slipway.api.catalog import Catalog
from slipway.api.claims import IdempotencyClaims
from slipway.api.compose import Composed, compose
from slipway.api.contexts import ContextArchives
from slipway.api.decoding import Json
from slipway.api.http_errors import KeyReusedError
from slipway.api.overlays import Sources, blamed, with_defaults
from slipway.api.ports import Kube
from slipway.api.preview import Rehearsal
from slipway.api.publish import LaunchPublisher
from slipway.api.schemas import LaunchBody
from slipway.api.secret_values import SecretValues, ValueSecrets
from slipway.api.seen_nodes import SeenNode
from slipway.api.watched import WatchedObjects
from slipway.crd.hashing import key_hash, name_from_bytes, name_from_key, request_hash
from slipway.crd.meta import (
    ANNOTATION_IDEMPOTENCY_KEY,
    ANNOTATION_REQUEST_ID,
    ANNOTATION_TRACE,
    ANNOTATION_USER,
    LABEL_LAUNCH_KEY,
    TEARDOWN_FINALIZER,
)
from slipway.crd.transitions import user_of
from slipway.crd.v1alpha1 import Allocation, ResourcePool
from slipway.errors import (
    AlreadyExistsError,
    ControlPlaneError,
    DeadlineError,
    FieldError,
    InvalidError,
    NotFoundError,
    StaleError,
    TerminatingError,
    TransientError,
    UnavailableError,
)
from slipway.kube.resources import ALLOCATIONS
from slipway.model.lifecycle import Kind
from slipway.runtime import retry, telemetry
from slipway.runtime.clock import Clock, Random

NAME_CHARACTERS = 6
NAME_BYTES = 8
NAME_TRIES_MAX = 4
KEY_PATTERN = re.compile(r"[\x20-\x7e]{1,255}")
DEFAULT_WORKSPACE = "default"
BESIDE_THE_LOOP = 2000
"""Pairs of node and role that are compared on the loop: more are compared by a thread."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A launch as it came in. `body` is the client's, before anything was merged into it."""

    body: Json
    user: str
    request_id: str
    workspace: str = ""
    """the only one that it may go to, as it was authorised; empty: any"""
    key: str = ""
    values: SecretValues = SecretValues()
    """which `body` only names"""
    kind: Kind | None = None
    """of a collection that launches one kind"""
    traceparent: str = ""

    def for_one(self, body: Json, *, key: str, request_id: str) -> "Order":
        """The order of one launch of many: what differs in it."""
        return msgspec.structs.replace(self, body=body, key=key, request_id=request_id)


class Launched(msgspec.Struct, frozen=True, kw_only=True):
    """The allocation; `created` is false when the key had launched it before."""

    allocation: Allocation
    created: bool
    warnings: tuple[str, ...] = ()


class LaunchRequests:
    """Carries out launches."""

    def __init__(
        self,
        kube: Kube,
        catalog: Catalog,
        announcer: LaunchPublisher,
        contexts: ContextArchives,
        nodes: WatchedObjects[SeenNode],
        *,
        clock: Clock,
        random: Random,
        audiences: Collection[str] = (),
    ) -> None:
        """`audiences`: those that projected tokens in pod templates may be for; none: every one."""
        self._kube = kube
        self._audiences = audiences or None
        self._contexts = contexts
        self._nodes = nodes
        self._claims = IdempotencyClaims(kube, clock=clock, random=random)
        self._values = ValueSecrets(kube, clock=clock, random=random)
        self._catalog = catalog
        self._announcer = announcer
        self._clock = clock
        self._random = random

    async def launch(self, order: Order) -> Launched:
        """Create what is ordered, or find what the same key made before."""
        check_key(order.key)
        try:
            launched = await self._create_named(order, await self._composed(order))
        except ControlPlaneError as error:
            earlier = await self._replayed(order) if isinstance(error, InvalidError) else None
            telemetry.LAUNCHES.labels(kind=_kind_label(order), outcome="replayed" if earlier else "refused").inc()
            if earlier is None:
                raise
            await self._values.keep(earlier.allocation, order.values, is_new=False)
            return earlier
        await self._values.keep(launched.allocation, order.values, is_new=launched.created)
        outcome = "created" if launched.created else "replayed"
        telemetry.LAUNCHES.labels(kind=_kind_label(order), outcome=outcome).inc()
        if launched.created:
            self._announcer.launched(launched.allocation)
        return launched

    async def rehearse(self, order: Order, live: Callable[[], Awaitable[list[Allocation]]]) -> Rehearsal:
        """What `launch` would create; the API server judges it too, and nothing is kept. `live` reads the allocations
        that have not ended."""
        composed = await self._composed(order)
        body = composed.body
        draft = await self._draft(composed, body.name or self._made_up(body.kind))
        try:
            await self._kube.create(ALLOCATIONS, _manifest(order, draft, body), dry_run=True)
        except AlreadyExistsError:
            taken = f"the name {draft.allocation.metadata.name} is taken in workspace {body.workspace}"
            draft = msgspec.structs.replace(draft, warnings=(*draft.warnings, taken))
        except InvalidError as error:
            raise admission.client_errors(error) from error
        pool = await self._catalog.pool(body.pool)
        meta = msgspec.structs.replace(draft.allocation.metadata, annotations={ANNOTATION_USER: order.user})
        return Rehearsal(
            allocation=msgspec.structs.replace(draft.allocation, metadata=meta),
            pool=pool,
            sources=with_defaults(composed.sources, draft.allocation.spec, pool),
            warnings=draft.warnings,
            pull_secrets=(await self._catalog.defaults(body.workspace)).pods.pull_secrets,
            nodes=tuple(await self._nodes.items()),
            live=tuple(await live()),
        )

    async def _composed(self, order: Order) -> Composed:
        """The client's body, complete with all that lies under it."""
        request = dict(order.body)
        if order.kind is not None:
            _check_kind(request, order.kind)
            request["kind"] = order.kind.value
        composed = await compose(self._catalog, request)
        if order.workspace and composed.body.workspace != order.workspace:
            # A template that was applied by hand may say anything.
            detail = f"a template says {composed.body.workspace}; only the request itself says where it goes"
            raise InvalidError(f"workspace: {detail}", fields=(FieldError("/workspace", detail),))
        if composed.body.secret_variables != order.values.names:
            detail = "a template names variables whose values only a launch can give; leave them out of the template"
            raise InvalidError(f"secretVariables: {detail}", fields=(FieldError("/secretVariables", detail),))
        return composed

    async def _draft(self, composed: Composed, name: str) -> Draft:
        body = composed.body
        await self._catalog.check_workspace(body.workspace)
        if body.after:
            body = msgspec.structs.replace(body, after=await dependencies.named(self._kube, body))
        pool = await self._catalog.pool_for(body.pool, body.workspace)
        workspace = (await self._catalog.defaults(body.workspace)).pods
        try:
            draft = admission.draft(
                body,
                name,
                pool,
                workspace=workspace,
                run_as_defaults=_from_workspace(composed.sources, "/runAs/"),
                audiences=self._audiences,
            )
        except InvalidError as error:
            raise blamed(error, composed.sources, "the launch") from error
        if body.context is not None:
            await self._contexts.use(body.context, body.workspace)
        await self._catalog.check_queue(body.queue, body.pool)
        if body.job:
            await self._catalog.check_job(body.job, body.workspace)
        warnings = list(draft.warnings)
        if limit_warning := await self._catalog.run_limit_warning(body.queue, draft.allocation.spec.max_runtime):
            warnings.append(limit_warning)
        offers = await self._catalog.offers_if_quick(pool)
        if offers is not None:
            found = await self._capacity_warnings(draft.allocation, pool, offers)
            warnings += [*found, *self._nodes.warnings()] if found else []
        return msgspec.structs.replace(draft, warnings=tuple(warnings))

    async def _capacity_warnings(
        self, allocation: Allocation, pool: ResourcePool, offers: PoolCapacity
    ) -> tuple[str, ...]:
        if len(offers.each) * len(allocation.spec.ranks) <= BESIDE_THE_LOOP:
            return capacity_warnings(allocation, pool, offers)
        return await asyncio.to_thread(capacity_warnings, allocation, pool, offers)

    async def _create_named(self, order: Order, composed: Composed) -> Launched:
        """Create under the client's or the key's name; a made-up name that is taken is made up again."""
        body = composed.body
        key = _key_name(order, body.workspace)
        chosen = body.name or key
        draft = await self._draft(composed, chosen or self._made_up(body.kind))
        async with self._claims.turn(key):
            return await self._create_first(order, body, draft, chosen)

    async def _create_first(self, order: Order, body: LaunchBody, draft: Draft, chosen: str) -> Launched:
        """Create it under the `chosen` name, or, without one, under the first made-up one that is free."""
        if order.key:
            await self._claims.settle(_key_name(order, body.workspace), body.workspace, chosen)
        for _ in range(NAME_TRIES_MAX):
            try:
                created = await self._create(_manifest(order, draft, body))
                return Launched(allocation=created, created=True, warnings=draft.warnings)
            except AlreadyExistsError as error:
                found = await self._found(draft)
                if found is not None and _is_ours(found, order):
                    return Launched(allocation=found, created=True, warnings=draft.warnings)
                if chosen:
                    return self._same_key(found, order, error)
                draft = _renamed(draft, self._made_up(body.kind))
        raise TransientError("could not find a free name; try again")

    async def _create(self, manifest: Json) -> Allocation:
        """One create; repeated when its outcome is unknown, because a second one of the name cannot succeed too."""

        async def attempt() -> Allocation:
            try:
                return await self._kube.create(ALLOCATIONS, manifest)
            except StaleError as error:
                # Not of the object, which is new, but of a quota that was counted at the same time: nothing was made.
                raise TransientError(f"the create was not carried out: {error}") from error
            except InvalidError as error:
                raise admission.client_errors(error) from error

        try:
            return await retry.call(retry.QUICK, attempt, clock=self._clock, random=self._random)
        except (UnavailableError, DeadlineError) as error:
            name = manifest["metadata"]["name"]
            raise type(error)(
                f"whether {name} was launched is unknown: send the same request again, with an Idempotency-Key so that "
                f"it cannot launch twice, or look for {name} in the list ({error})",
                retry_after_s=error.retry_after_s,
            ) from error

    async def _found(self, draft: Draft) -> Allocation | None:
        meta = draft.allocation.metadata
        try:
            return await self._kube.get(ALLOCATIONS, meta.name, namespace=meta.namespace)
        except NotFoundError:
            return None

    def _same_key(self, found: Allocation | None, order: Order, taken: AlreadyExistsError) -> Launched:
        """The allocation that this key made before. Raises when the name is another's, or another body's."""
        if found is None or found.metadata.deletion_timestamp is not None:
            raise _deleting(found) from taken
        if not _has_key(found, order):
            raise AlreadyExistsError(
                f"the name {found.metadata.name} is taken in workspace {found.metadata.namespace}; choose another, or "
                "leave name out"
            ) from taken
        if found.spec.request_hash != _hash_of(order):
            raise KeyReusedError(
                f"this Idempotency-Key launched {found.metadata.name} with another body; use a new key for a new launch"
            ) from taken
        return Launched(allocation=found, created=False)

    async def _replayed(self, order: Order) -> Launched | None:
        """What this key and body launched before, although the body would be refused now (its template is gone...)."""
        name, workspace = order.body.get("name"), order.body.get("workspace", DEFAULT_WORKSPACE)
        if not order.key or not isinstance(workspace, str) or (name is not None and not isinstance(name, str)):
            return None
        try:
            found = await self._kube.get(ALLOCATIONS, name or _key_name(order, workspace), namespace=workspace)
        except ControlPlaneError:
            return None
        if not _has_key(found, order) or found.spec.request_hash != _hash_of(order):
            return None
        return Launched(allocation=found, created=False)

    def _made_up(self, kind: Kind) -> str:
        return name_from_bytes(kind, bytes.fromhex(self._random.token_hex(NAME_BYTES)), characters=NAME_CHARACTERS)


def _from_workspace(sources: Sources, at: str) -> list[str]:
    """The fields below the pointer that no layer above the workspace says."""
    return [
        known.removeprefix(at)
        for known, source in sources.items()
        if known.startswith(at) and source.startswith("workspace ")
    ]


def _manifest(order: Order, draft: Draft, body: LaunchBody) -> Json:
    """The object as it is sent."""
    annotations = {ANNOTATION_USER: order.user, ANNOTATION_REQUEST_ID: order.request_id}
    if order.traceparent:
        annotations[ANNOTATION_TRACE] = order.traceparent
    if order.key:
        annotations[ANNOTATION_IDEMPOTENCY_KEY] = key_hash(order.key)
    meta = draft.allocation.metadata
    ours = {LABEL_LAUNCH_KEY: _key_name(order, body.workspace)} if order.key else {}
    spec = msgspec.structs.replace(draft.allocation.spec, request_hash=_hash_of(order))
    return {
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "labels": {**meta.labels, **ours},
            "annotations": annotations,
            "finalizers": [TEARDOWN_FINALIZER],
        },
        "spec": msgspec.to_builtins(spec),
    }


def _renamed(draft: Draft, name: str) -> Draft:
    meta = msgspec.structs.replace(draft.allocation.metadata, name=name)
    return msgspec.structs.replace(draft, allocation=msgspec.structs.replace(draft.allocation, metadata=meta))


def _hash_of(order: Order) -> str:
    """The hash of the client's body; a collection's kind is part of what was asked for."""
    kind = {"kind": order.kind.value} if order.kind is not None else {}
    return request_hash({**order.body, **kind})


def _key_name(order: Order, workspace: str) -> str:
    """One name per (workspace, user, key), whatever the kind: else one key could launch once per kind."""
    return name_from_key(workspace, order.user, order.key, Kind.TRAINING) if order.key else ""


def _has_key(found: Allocation, order: Order) -> bool:
    """Whether this user launched it with this key; the same key of another user is another key."""
    annotation = found.metadata.annotations.get(ANNOTATION_IDEMPOTENCY_KEY)
    return bool(order.key) and annotation == key_hash(order.key) and user_of(found) == order.user


def _is_ours(found: Allocation, order: Order) -> bool:
    """Whether this very request created it, and only the answer was lost."""
    return found.metadata.annotations.get(ANNOTATION_REQUEST_ID) == order.request_id


def _deleting(found: Allocation | None) -> ControlPlaneError:
    if found is None:
        return TransientError("the name was taken a moment ago and is free again; try again")
    return TerminatingError(
        f"an allocation named {found.metadata.name} is being deleted; try again when it is gone, or choose another name"
    )


def check_key(key: str) -> None:
    """Raises InvalidError for an Idempotency-Key that cannot be one."""
    if key and KEY_PATTERN.fullmatch(key) is None:
        raise InvalidError("Idempotency-Key: must be 1 to 255 printable ASCII characters")


def _check_kind(request: Json, kind: Kind) -> None:
    given = request.get("kind", kind.value)
    if given != kind.value:
        detail = f"this collection launches kind {kind.value}; leave kind out, or POST to /api/v1/allocations"
        raise InvalidError(f"kind: {detail}", fields=(FieldError("/kind", detail),))


def _kind_label(order: Order) -> str:
    """The kind as a metric label: a closed set."""
    given = cast(Any, order.kind.value if order.kind else order.body.get("kind"))
    return given if isinstance(given, str) and given in set(Kind) else "none"
