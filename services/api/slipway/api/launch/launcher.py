"""From a launch request to one Allocation: the whole body, its dependencies, its key, the create.

The layers of the body, in their order: defaults of the workspace, its default template, the template that the request
names, the request. A later layer overrides an earlier one. The defaults of pool and kind are added later, below all
layers.

Dependencies: `after` names allocations, which are stored by their ids. A launch can wait only for allocations that
exist, so two allocations cannot wait for each other. If a dependency has already ended, its result is stored with the
new allocation, because the ended one may be deleted soon.

The create is idempotent by its name. The name comes from the client, from the Idempotency-Key, or is generated once per
request, and the API server lets only one create of a name succeed. A request that finds its name taken reads the
object. The annotations of the object show whether it was created by this very request (a create whose answer was lost),
by an earlier request with the same key, or by another launch.

A key that is sent with a name is claimed first (`kube/claims.py`), so that one Idempotency-Key creates one allocation
also when requests with it have different names. Promises: of all requests with one key and different names, at any
replicas and times, at most one creates an allocation. A request with the key and a name, and a request with the key
alone, find the same allocation. A repeated request is never refused. The cost is one create for a key with a name, and
one read for a key without.

Not promised: these guarantees for two requests with one key at two replicas within the same few milliseconds, one with
a name and one without. One replica handles such requests one after the other (`turn`).

Invariants: no answer is 2xx before the create has committed and the secret values of the launch are stored
(`secret_values.py`). One key creates one allocation. The streams are notified afterwards, and the answer does not wait
for them.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast
from weakref import WeakValueDictionary

import msgspec

from slipway.api.cluster.seen_nodes import SeenNode
from slipway.api.cluster.watched import WatchedObjects
from slipway.api.http.decoding import Json, checked, summary
from slipway.api.http.errors import KeyReusedError
from slipway.api.launch import admission
from slipway.api.launch.admission import Draft
from slipway.api.launch.capacity import PoolCapacity, capacity_warnings
from slipway.api.launch.catalog import Catalog
from slipway.api.launch.contexts import ContextArchives
from slipway.api.launch.overlays import REQUEST, Layer, Sources, merge_layers, merged, with_defaults, with_sources
from slipway.api.launch.preview import LaunchPreview
from slipway.api.launch.publish import LaunchPublisher
from slipway.api.launch.secret_values import SecretValues, ValueSecrets
from slipway.api.ports import Kube
from slipway.api.schemas import DEFAULT_WORKSPACE, LaunchBody, LaunchDependency
from slipway.crd.dependencies import ending, is_dependency_target, is_met, names_of
from slipway.crd.hashing import key_hash, name_from_bytes, name_from_key, request_hash
from slipway.crd.meta import (
    ANNOTATION_IDEMPOTENCY_KEY,
    ANNOTATION_REQUEST_ID,
    ANNOTATION_TRACE,
    ANNOTATION_USER,
    LABEL_LAUNCH_KEY,
    TEARDOWN_FINALIZER,
)
from slipway.crd.transitions import id_of, user_of
from slipway.crd.v1alpha1 import AFTER_MAX, Allocation, Dependency, ResourcePool
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
from slipway.kube.claims import CLAIM_MAPS, STANDS_S, ClaimMap, claim_manifest, claim_name, reclaim_patch
from slipway.kube.resources import ALLOCATIONS
from slipway.model.ids import is_name
from slipway.model.lifecycle import Kind, Phase
from slipway.model.reasons import DependencyEnd
from slipway.runtime import retry, telemetry
from slipway.runtime.clock import Clock, Random


class IdempotencyClaims:
    """The claims of all workspaces. `key` is always the allocation name that is derived from the Idempotency-Key."""

    def __init__(self, kube: Kube, *, clock: Clock, random: Random) -> None:
        self._kube = kube
        self._clock = clock
        self._random = random
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncGenerator[None]:
        """Run one request with this key at a time in this process; a request without a key does not wait."""
        if not key:
            yield
            return
        lock = self._turns.setdefault(key, asyncio.Lock())
        async with lock:
            yield

    async def settle(self, key: str, workspace: str, name: str) -> None:
        """Bind the key to the allocation `name` of the workspace.

        Raises:
            KeyReusedError: the key is, or may be at this moment, bound to an allocation with another name.
            TransientError: another request claims the key at this moment.
        """
        if name == key:
            await self._check_unclaimed(key, workspace)
            return
        await self._claim(key, workspace, name)
        if await self._has_launched(key, workspace, key):
            raise _reused(key)

    async def _check_unclaimed(self, key: str, workspace: str) -> None:
        claim = await self._find(key, workspace)
        if claim is None or claim.launched == key or not await self._stands(claim):
            return
        # A request with a name leaves its claim even if it was refused because the key had launched without a name.
        if not await self._has_launched(key, workspace, key):
            raise _reused(claim.launched)

    async def _claim(self, key: str, workspace: str, name: str) -> None:
        manifest = claim_manifest(key, workspace, name, self._clock.now())

        async def create() -> None:
            try:
                await self._kube.create(CLAIM_MAPS, manifest)
            except StaleError as error:
                # The conflict is not about this new object, but about a quota that was updated at the same time.
                raise TransientError(f"the key was not claimed: {error}") from error

        try:
            await retry.call(retry.QUICK, create, clock=self._clock, random=self._random)
        except AlreadyExistsError:
            await self._claim_again(key, workspace, name)

    async def _claim_again(self, key: str, workspace: str, name: str) -> None:
        claim = await self._find(key, workspace)
        if claim is None:
            raise TransientError("the claim of the Idempotency-Key was deleted at the same time; try again")
        if await self._stands(claim):
            if claim.launched != name:
                raise _reused(claim.launched)
            return
        # The allocation was deleted long ago or never created, so the key can be claimed again, by one request only.
        patch = reclaim_patch(claim, name, self._clock.now())
        try:
            await self._kube.patch(CLAIM_MAPS, claim.metadata.name, patch, namespace=workspace)
        except (StaleError, NotFoundError) as error:
            raise TransientError("another request is claiming the Idempotency-Key right now; try again") from error

    async def _stands(self, claim: ClaimMap) -> bool:
        """Whether the claim is valid: its allocation exists, or may be created at this moment."""
        if self._clock.now() - claim.claimed_at < STANDS_S:
            return True
        return await self._has_launched(claim.key, claim.metadata.namespace, claim.launched)

    async def _find(self, key: str, workspace: str) -> ClaimMap | None:
        try:
            return await self._kube.get(CLAIM_MAPS, claim_name(key), namespace=workspace)
        except NotFoundError:
            return None

    async def _has_launched(self, key: str, workspace: str, name: str) -> bool:
        """Whether the allocation of that name was launched with the key."""
        try:
            found = await self._kube.get(ALLOCATIONS, name, namespace=workspace) if name else None
        except NotFoundError:
            return False
        return found is not None and found.metadata.labels.get(LABEL_LAUNCH_KEY) == key


def _reused(launched: str) -> KeyReusedError:
    detail = f"this Idempotency-Key launched {launched}; use a new key for a new launch"
    return KeyReusedError(detail, fields=(FieldError("/name", detail),))


DEFAULT_POOL = "default"
DEFAULT_QUEUE = "default"


class ComposedLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """The whole launch body, and the source of each field."""

    body: LaunchBody
    sources: Sources


async def compose(catalog: Catalog, request: Json) -> ComposedLaunch:
    """Return the whole launch body of `request`.

    Raises InvalidError with pointers into the body and the layer that set the wrong value.
    """
    own = dict(request)
    template = own.get("template")
    if isinstance(template, str):
        del own["template"]
    # The client's own fields are checked first, so that errors name them as the client wrote them.
    said = checked({"kind": Kind.COMMAND.value, **merged({}, own)}, LaunchBody, what="the launch")
    layers = await _below(catalog, said.workspace, template if isinstance(template, str) else "")
    body, sources = merge_layers([*layers, Layer(source=REQUEST, body=own)])
    await _choose_queue(catalog, body, sources)
    try:
        return ComposedLaunch(body=checked(body, LaunchBody, what="the launch"), sources=sources)
    except InvalidError as error:
        raise with_sources(error, sources, "the launch") from error


async def _below(catalog: Catalog, workspace: str, template: str) -> list[Layer]:
    """Return the layers below the request."""
    defaults = await catalog.defaults(workspace)
    run_as: Json = msgspec.to_builtins(defaults.pods.run_as)
    fields: dict[str, Any] = {"pool": defaults.pool, "queue": defaults.queue, "runAs": run_as}
    layers = [Layer(source=f"workspace {workspace}", body={name: value for name, value in fields.items() if value})]
    if defaults.template:
        try:
            found = await catalog.template(defaults.template, workspace)
        except InvalidError as error:
            detail = f"its default template {defaults.template} is missing: {error.fields[0].detail}"
            raise InvalidError(f"workspace: {detail}", fields=(FieldError("/workspace", detail),)) from error
        layers.append(Layer(source=f"template {defaults.template} of workspace {workspace}", body=found.spec.body))
    if template:
        found = await catalog.template(template, workspace)
        layers.append(Layer(source=f"template {template}", body=found.spec.body))
    return layers


async def _choose_queue(catalog: Catalog, body: Json, sources: Sources) -> None:
    """Choose the queue when a launch names a pool and no queue.

    It is the workspace's default queue if it belongs to the pool, or else the queue with the name of the pool.
    """
    pool, queue = body.get("pool", DEFAULT_POOL), body.get("queue")
    is_chosen = queue is not None and not sources.get("/queue", "").startswith("workspace ")
    if is_chosen or not isinstance(pool, str) or (pool == DEFAULT_POOL and queue is None):
        return
    for name, source in ((queue, sources.get("/queue", "")), (pool, f"pool {pool}")):
        if isinstance(name, str) and not await catalog.queue_warning(name, pool):
            body["queue"], sources["/queue"] = name, source
            return
    if queue is not None and pool == DEFAULT_POOL:
        body["queue"], sources["/queue"] = DEFAULT_QUEUE, f"pool {pool}"


BY_NAME_MAX = 8
"""Up to this number, allocations are read by name; for more, or for a job, the workspace is listed."""


async def named_dependencies(kube: Kube, body: LaunchBody) -> list[Dependency]:
    """Return the dependencies in `after` of a launch, each by its AllocationID.

    Raises:
        InvalidError: with pointers into the body.
    """
    errors = [error for index, each in enumerate(body.after) for error in _form_errors(f"/after/{index}", each)]
    if not errors:
        known = await _known(kube, body)
        found, errors = _found(body, known)
        if not errors:
            return found
    raise InvalidError(summary("the launch", tuple(errors)), fields=tuple(errors))


def _form_errors(at: str, each: LaunchDependency) -> Iterable[FieldError]:
    if bool(each.allocation) == bool(each.job):
        yield FieldError(at, "name an allocation or a job: {allocation: ID} or {job: NAME}")
    if each.result is not None:
        yield FieldError(f"{at}/result", "written by the API; leave it out")


async def _known(kube: Kube, body: LaunchBody) -> list[Allocation]:
    """Return the named allocations that exist in the workspace; all allocations of it when the workspace is listed."""
    names = list(dict.fromkeys(name for each in body.after for name in names_of(each.allocation) if is_name(name)))
    if len(names) > BY_NAME_MAX or any(each.job for each in body.after):
        return (await kube.list(ALLOCATIONS, namespace=body.workspace)).items
    found: list[Allocation] = []
    for name in names:
        try:
            found.append(await kube.get(ALLOCATIONS, name, namespace=body.workspace))
        except NotFoundError:
            continue
    return found


def _found(body: LaunchBody, known: list[Allocation]) -> tuple[list[Dependency], list[FieldError]]:
    made: dict[str, Dependency] = {}
    errors: list[FieldError] = []
    for index, each in enumerate(body.after):
        field = "job" if each.job else "allocation"
        at = f"/after/{index}/{field}"
        meant = _meant(each, known)
        if not meant:
            errors.append(FieldError(at, _nothing(each, body.workspace)))
        for allocation in meant:
            dependency = _dependency(allocation, each.when)
            before = made.setdefault(dependency.allocation, dependency)
            if before.when is not dependency.when:
                detail = f"{dependency.allocation} is named twice, with different values of when: leave one of them out"
                errors.append(FieldError(at, detail))
            elif dependency.result is not None and not is_met(each.when, dependency.result):
                so_far = ending(dependency.allocation, dependency.result)
                detail = f"{so_far}, but this launch starts only if it {each.when}; leave it out, or write when: ended"
                errors.append(FieldError(at, detail))
                break
    if len(made) > AFTER_MAX:
        errors.append(FieldError("/after", f"names {len(made)} allocations; at most {AFTER_MAX} can be waited for"))
    return list(made.values()), errors


def _meant(each: LaunchDependency, known: list[Allocation]) -> list[Allocation]:
    if each.job:
        return [allocation for allocation in known if allocation.spec.job == each.job]
    by_id = [allocation for allocation in known if is_dependency_target(allocation, each.allocation, by_name=False)]
    return by_id or [allocation for allocation in known if allocation.metadata.name == each.allocation]


def _dependency(allocation: Allocation, when: DependencyEnd) -> Dependency:
    status = allocation.status
    result = status.result if status.phase is Phase.TERMINATED else None
    return Dependency(allocation=id_of(allocation), when=when, result=result)


def _nothing(each: LaunchDependency, workspace: str) -> str:
    if each.job:
        return (
            f"job {each.job} has no allocation in workspace {workspace}; launch its allocations first, or leave it out"
        )
    return f"workspace {workspace} has no allocation {each.allocation}; slipway ps --all lists what there is"


NAME_CHARACTERS = 6
NAME_BYTES = 8
NAME_TRIES_MAX = 4
KEY_PATTERN = re.compile(r"[\x20-\x7e]{1,255}")
BESIDE_THE_LOOP = 2000
"""Limit of (node, role) pairs that are compared on the event loop; more are compared in a thread."""


class LaunchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A launch as it was requested. `body` is the client's, before defaults and templates are merged into it."""

    body: Json
    user: str
    request_id: str
    workspace: str = ""
    """the authorised workspace, which is the only permitted one; empty permits any"""
    key: str = ""
    values: SecretValues = SecretValues()
    """the secret values; `body` contains only their names"""
    kind: Kind | None = None
    """the kind of the collection that the request was sent to; None for the general collection"""
    traceparent: str = ""

    def for_one(self, body: Json, *, key: str, request_id: str) -> "LaunchRequest":
        """Return the order of one launch of a batch, with its own body, key and request id."""
        return msgspec.structs.replace(self, body=body, key=key, request_id=request_id)


class LaunchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The launched allocation; `created` is false when a request with the same key had launched it before."""

    allocation: Allocation
    created: bool
    warnings: tuple[str, ...] = ()


class AllocationLauncher:
    """Launches allocations, and runs dry runs of launches."""

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
        """`audiences` are the permitted audiences of projected tokens in pod templates; none permits every audience."""
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

    async def launch(self, launch_request: LaunchRequest) -> LaunchResult:
        """Create the ordered allocation, or find the allocation that the same key created before."""
        check_key(launch_request.key)
        try:
            launched = await self._create_named(launch_request, await self._composed(launch_request))
        except ControlPlaneError as error:
            earlier = await self._replayed(launch_request) if isinstance(error, InvalidError) else None
            telemetry.LAUNCHES.labels(
                kind=_kind_label(launch_request), outcome="replayed" if earlier else "refused"
            ).inc()
            if earlier is None:
                raise
            await self._values.keep(earlier.allocation, launch_request.values, is_new=False)
            return earlier
        await self._values.keep(launched.allocation, launch_request.values, is_new=launched.created)
        outcome = "created" if launched.created else "replayed"
        telemetry.LAUNCHES.labels(kind=_kind_label(launch_request), outcome=outcome).inc()
        if launched.created:
            self._announcer.launched(launched.allocation)
        return launched

    async def preview(
        self, launch_request: LaunchRequest, live: Callable[[], Awaitable[list[Allocation]]]
    ) -> LaunchPreview:
        """Return what `launch` would create. The API server validates it too, in a dry run, and stores nothing.

        `live` reads the allocations that have not ended.
        """
        composed = await self._composed(launch_request)
        body = composed.body
        draft = await self._draft(composed, body.name or self._made_up(body.kind))
        try:
            await self._kube.create(ALLOCATIONS, _manifest(launch_request, draft, body), dry_run=True)
        except AlreadyExistsError:
            taken = f"the name {draft.allocation.metadata.name} is taken in workspace {body.workspace}"
            draft = msgspec.structs.replace(draft, warnings=(*draft.warnings, taken))
        except InvalidError as error:
            raise admission.client_errors(error) from error
        pool = await self._catalog.pool(body.pool)
        meta = msgspec.structs.replace(draft.allocation.metadata, annotations={ANNOTATION_USER: launch_request.user})
        return LaunchPreview(
            allocation=msgspec.structs.replace(draft.allocation, metadata=meta),
            pool=pool,
            sources=with_defaults(composed.sources, draft.allocation.spec, pool),
            warnings=draft.warnings,
            pull_secrets=(await self._catalog.defaults(body.workspace)).pods.pull_secrets,
            nodes=tuple(await self._nodes.items()),
            live=tuple(await live()),
        )

    async def _composed(self, launch_request: LaunchRequest) -> ComposedLaunch:
        """Return the client's body merged over defaults and templates."""
        request = dict(launch_request.body)
        if launch_request.kind is not None:
            _check_kind(request, launch_request.kind)
            request["kind"] = launch_request.kind.value
        composed = await compose(self._catalog, request)
        if launch_request.workspace and composed.body.workspace != launch_request.workspace:
            # A template that was created with kubectl was not checked, and can name another workspace.
            detail = f"a template sets {composed.body.workspace}; only the request itself may set the workspace"
            raise InvalidError(f"workspace: {detail}", fields=(FieldError("/workspace", detail),))
        if composed.body.secret_variables != launch_request.values.names:
            detail = "a template names variables whose values only a launch can set; leave them out of the template"
            raise InvalidError(f"secretVariables: {detail}", fields=(FieldError("/secretVariables", detail),))
        return composed

    async def _draft(self, composed: ComposedLaunch, name: str) -> Draft:
        body = composed.body
        await self._catalog.check_workspace(body.workspace)
        if body.after:
            body = msgspec.structs.replace(body, after=await named_dependencies(self._kube, body))
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
            raise with_sources(error, composed.sources, "the launch") from error
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

    async def _create_named(self, launch_request: LaunchRequest, composed: ComposedLaunch) -> LaunchResult:
        """Create the allocation under the client's or the key's name, or else under a generated name."""
        body = composed.body
        key = _key_name(launch_request, body.workspace)
        chosen = body.name or key
        draft = await self._draft(composed, chosen or self._made_up(body.kind))
        async with self._claims.turn(key):
            return await self._create_first(launch_request, body, draft, chosen)

    async def _create_first(
        self, launch_request: LaunchRequest, body: LaunchBody, draft: Draft, chosen: str
    ) -> LaunchResult:
        """Create the allocation under the `chosen` name, or without one under the first generated name that is free."""
        if launch_request.key:
            await self._claims.settle(_key_name(launch_request, body.workspace), body.workspace, chosen)
        for _ in range(NAME_TRIES_MAX):
            try:
                created = await self._create(_manifest(launch_request, draft, body))
                return LaunchResult(allocation=created, created=True, warnings=draft.warnings)
            except AlreadyExistsError as error:
                found = await self._found(draft)
                if found is not None and _is_ours(found, launch_request):
                    return LaunchResult(allocation=found, created=True, warnings=draft.warnings)
                if chosen:
                    return self._same_key(found, launch_request, error)
                draft = _renamed(draft, self._made_up(body.kind))
        raise TransientError("could not find a free name; try again")

    async def _create(self, manifest: Json) -> Allocation:
        """Create the object; retry when the outcome is unknown, because only one create of a name can succeed."""

        async def attempt() -> Allocation:
            try:
                return await self._kube.create(ALLOCATIONS, manifest)
            except StaleError as error:
                # The conflict is not about this new object, but about a quota that was updated: nothing was created.
                raise TransientError(f"the allocation was not created: {error}") from error
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

    def _same_key(
        self, found: Allocation | None, launch_request: LaunchRequest, taken: AlreadyExistsError
    ) -> LaunchResult:
        """Return the allocation that this key created before.

        Raises when another launch has the name, or when the key was used with another body.
        """
        if found is None or found.metadata.deletion_timestamp is not None:
            raise _deleting(found) from taken
        if not _has_key(found, launch_request):
            raise AlreadyExistsError(
                f"the name {found.metadata.name} is taken in workspace {found.metadata.namespace}; choose another, or "
                "leave name out"
            ) from taken
        if found.spec.request_hash != _hash_of(launch_request):
            raise KeyReusedError(
                f"this Idempotency-Key launched {found.metadata.name} with another body; use a new key for a new launch"
            ) from taken
        return LaunchResult(allocation=found, created=False)

    async def _replayed(self, launch_request: LaunchRequest) -> LaunchResult | None:
        """Return the earlier launch with this key and body, or None.

        It is needed for a body that is refused now, for example because its template was deleted.
        """
        name, workspace = launch_request.body.get("name"), launch_request.body.get("workspace", DEFAULT_WORKSPACE)
        if not launch_request.key or not isinstance(workspace, str) or (name is not None and not isinstance(name, str)):
            return None
        try:
            found = await self._kube.get(ALLOCATIONS, name or _key_name(launch_request, workspace), namespace=workspace)
        except ControlPlaneError:
            return None
        if not _has_key(found, launch_request) or found.spec.request_hash != _hash_of(launch_request):
            return None
        return LaunchResult(allocation=found, created=False)

    def _made_up(self, kind: Kind) -> str:
        return name_from_bytes(kind, bytes.fromhex(self._random.token_hex(NAME_BYTES)), characters=NAME_CHARACTERS)


def _from_workspace(sources: Sources, at: str) -> list[str]:
    """Return the fields below the pointer whose value comes from the workspace, and from no layer above it."""
    return [
        known.removeprefix(at)
        for known, source in sources.items()
        if known.startswith(at) and source.startswith("workspace ")
    ]


def _manifest(launch_request: LaunchRequest, draft: Draft, body: LaunchBody) -> Json:
    """Return the object as it is sent to the API server."""
    annotations = {ANNOTATION_USER: launch_request.user, ANNOTATION_REQUEST_ID: launch_request.request_id}
    if launch_request.traceparent:
        annotations[ANNOTATION_TRACE] = launch_request.traceparent
    if launch_request.key:
        annotations[ANNOTATION_IDEMPOTENCY_KEY] = key_hash(launch_request.key)
    meta = draft.allocation.metadata
    ours = {LABEL_LAUNCH_KEY: _key_name(launch_request, body.workspace)} if launch_request.key else {}
    spec = msgspec.structs.replace(draft.allocation.spec, request_hash=_hash_of(launch_request))
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


def _hash_of(launch_request: LaunchRequest) -> str:
    """Return the hash of the client's body; the kind of the collection is part of it."""
    kind = {"kind": launch_request.kind.value} if launch_request.kind is not None else {}
    return request_hash({**launch_request.body, **kind})


def _key_name(launch_request: LaunchRequest, workspace: str) -> str:
    """Return one name per (workspace, user, key), whatever the kind: otherwise a key could launch once per kind."""
    return (
        name_from_key(workspace, launch_request.user, launch_request.key, Kind.TRAINING) if launch_request.key else ""
    )


def _has_key(found: Allocation, launch_request: LaunchRequest) -> bool:
    """Whether this user launched the allocation with this key; the same key of another user is a different key."""
    annotation = found.metadata.annotations.get(ANNOTATION_IDEMPOTENCY_KEY)
    return (
        bool(launch_request.key)
        and annotation == key_hash(launch_request.key)
        and user_of(found) == launch_request.user
    )


def _is_ours(found: Allocation, launch_request: LaunchRequest) -> bool:
    """Whether this very request created the allocation, and only the answer was lost."""
    return found.metadata.annotations.get(ANNOTATION_REQUEST_ID) == launch_request.request_id


def _deleting(found: Allocation | None) -> ControlPlaneError:
    if found is None:
        return TransientError("the name was in use a moment ago and is free now; try again")
    return TerminatingError(
        f"an allocation named {found.metadata.name} is being deleted; try again when it is deleted, or choose "
        "another name"
    )


def check_key(key: str) -> None:
    """Raise InvalidError for an Idempotency-Key that is not valid."""
    if key and KEY_PATTERN.fullmatch(key) is None:
        raise InvalidError("Idempotency-Key: must be 1 to 255 printable ASCII characters")


def _check_kind(request: Json, kind: Kind) -> None:
    given = request.get("kind", kind.value)
    if given != kind.value:
        detail = f"this collection launches kind {kind.value}; leave kind out, or POST to /api/v1/allocations"
        raise InvalidError(f"kind: {detail}", fields=(FieldError("/kind", detail),))


def _kind_label(launch_request: LaunchRequest) -> str:
    """Return the kind as a metric label, which is a closed set."""
    given = cast(Any, launch_request.kind.value if launch_request.kind else launch_request.body.get("kind"))
    return given if isinstance(given, str) and given in set(Kind) else "none"
