"""Requests nodes from autoscalers: carries out what `plan/capacity` decides, and reads the state of the requests.

Owns when the API server is called and what a refusal means. It belongs to one leadership of one pool. `plan/capacity`
decides what is requested; `capacity_objects.py` knows the objects of a request.

Promises: a tick never waits for it. Without `SLIPWAY_AUTOSCALING` it makes no call. With it, a leadership LISTs once,
and again only while requests exist or the pool has an autoscaler. The lease is checked before each write. Names follow
from the request, so after a crash, or with a second leader, nothing is requested twice; deletes carry the uid that was
read.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from slipway.crd.meta import ObjectMeta
from slipway.errors import AlreadyExistsError, ControlPlaneError, DeniedError, InvariantError, NotFoundError, StaleError
from slipway.kube.objects import ProvisioningRequest
from slipway.kube.resources import POD_TEMPLATES, PODS, PROVISIONING_REQUESTS, RESOURCE_POOLS, Resource
from slipway.model.facts import PROVISIONING_REQUEST, AutoscalingFact
from slipway.runtime import liveness, log
from slipway.runtime.clock import Clock
from slipway.runtime.tasks import TaskGroup
from slipway.scheduler import capacity_objects
from slipway.scheduler.capacity_objects import PlaceholderOptions, RequestObjects
from slipway.scheduler.plan.capacity.requests import (
    CapacityAsk,
    CapacityPlan,
    CapacityRequest,
    RequestState,
    plan_capacity,
)
from slipway.scheduler.plan.state.plan_types import Plan
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from slipway.scheduler.ports import CapacityKube

OPEN_S = 5.0
"""The pause between reads while nodes are requested."""
FAILED_S = 60.0
"""The pause between reads while all existing requests have failed."""
REST_S = 300.0
"""The pause between reads while there are no requests, in a pool with an autoscaler."""
PAUSE_S = 30.0
"""The pause after a refusal, in which nothing is requested."""
PASS_S = 60.0
"""The most seconds for the calls of one pass."""
WRITES_MAX = 16
"""The number of concurrent calls."""

NOT_ENABLED = "the scheduler may not request them; set scheduler.settings.autoscaling=true in the values of the chart"
NOT_INSTALLED = (
    "this cluster has no ProvisioningRequest (autoscaling.x-k8s.io/v1); install it with the Cluster Autoscaler, or set "
    "spec.autoscaling.mode of the pool to PlaceholderPods"
)

_log = log.get_logger(__name__)


class CapacityRequests:
    """The requests of one leadership of `pool`. Calls are made in the background, after `run_in`."""

    def __init__(
        self,
        kube: CapacityKube,
        pool: str,
        clock: Clock,
        *,
        namespace: str,
        is_enabled: bool,
        placeholders: PlaceholderOptions,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._kube = kube
        self._pool = pool
        self._clock = clock
        self._namespace = namespace
        self._is_enabled = is_enabled
        self._placeholders = placeholders
        self._on_change = on_change
        self._check: Callable[[], None] = lambda: None
        self._tasks: TaskGroup | None = None
        self._under_way: asyncio.Task[None] | None = None
        self._standing: RequestObjects | None = None
        self._requests: tuple[CapacityRequest, ...] = ()
        self._spec: AutoscalingFact | None = None
        self._todo = CapacityPlan()
        self._seen: Mapping[str, tuple[bool, float]] = {}
        self._obstacle = ""
        self._lacks_kind = False
        """the cluster does not have the kind ProvisioningRequest"""
        self._paused_until = 0.0
        self._read_at = 0.0
        """when the next read is due (monotonic seconds)"""
        self.news = 0
        """rises with each change that a decision depends on"""

    def run_in(self, tasks: TaskGroup, check: Callable[[], None]) -> None:
        """Make calls in the background from now on, in `tasks`; `check` raises once this leadership is over."""
        self._tasks, self._check = tasks, check

    def stop(self) -> None:
        """Cancel the pass that is running."""
        self._tasks = None
        if self._under_way is not None:
            self._under_way.cancel()

    def poll(self) -> None:
        """Start a pass if calls are due."""
        if not self._is_enabled or self._tasks is None or self._under_way is not None:
            return
        now_s = self._clock.monotonic()
        if self._obstacle and now_s >= self._paused_until:
            self._obstacle = ""
            self._notify()
        has_work = not self._todo.is_empty and now_s >= self._paused_until
        if has_work or now_s >= self._read_at:
            self._under_way = self._tasks.create_task(self._pass())

    def decide(self, snapshot: PoolSnapshot, plan: Plan) -> CapacityPlan | None:
        """Return what to request after `plan`; None when the pool has no autoscaler and no requests."""
        self._spec = snapshot.pool.autoscaling
        if self._spec is None and not self._requests:
            return None
        trouble = self._obstacle_now()
        if self._standing is None and not trouble:
            return None  # the existing requests are not known yet; their read leads to another plan
        decided = plan_capacity(snapshot, plan, self._requests, self._seen, trouble=trouble)
        self._seen, self._todo = decided.seen, decided
        if not decided.is_empty:
            self._read_at = min(self._read_at, self._clock.monotonic())
        return decided

    def _obstacle_now(self) -> str:
        """Return why no nodes can be requested now; empty when they can."""
        if not self._is_enabled:
            return NOT_ENABLED
        is_needed = self._spec is not None and self._spec.mode == PROVISIONING_REQUEST
        return self._obstacle or (NOT_INSTALLED if self._lacks_kind and is_needed else "")

    # --- one pass ---------------------------------------------------------------------------------------------------

    async def _pass(self) -> None:
        liveness.leave()  # every call has a deadline; no tick waits for it
        try:
            async with asyncio.timeout(PASS_S):
                if self._standing is not None:
                    await self._carry_out(self._todo)
                await self._read()
            self._read_at = self._clock.monotonic() + self._interval_s()
        except InvariantError:
            raise
        except (ControlPlaneError, TimeoutError) as exc:
            self._fail(exc)
        finally:
            self._under_way = None

    async def _carry_out(self, todo: CapacityPlan) -> None:
        self._todo = CapacityPlan()
        for request in todo.settled:
            await self._store_state(request)
        for name in todo.given_back:
            await self._withdraw(name)
        for ask in todo.asks:
            await self._create_request(ask)

    async def _create_request(self, ask: CapacityAsk) -> None:
        """Create the objects of a request; the record (the first template) is first,
        so that an unfinished request is found."""
        spec = self._spec
        if spec is None:
            return
        pool = await self._kube.get(RESOURCE_POOLS, self._pool)
        owner: ObjectMeta = pool.metadata
        for body in capacity_objects.templates(ask, owner, spec, self._placeholders):
            await self._create(POD_TEMPLATES, body)
        if spec.mode == PROVISIONING_REQUEST:
            try:
                await self._create(PROVISIONING_REQUESTS, capacity_objects.provisioning_request(ask, owner, spec))
            except NotFoundError:
                raise NotFoundError(NOT_INSTALLED) from None
        else:
            pods = capacity_objects.placeholder_pods(ask, owner, self._placeholders)
            for start in range(0, len(pods), WRITES_MAX):
                await asyncio.gather(*(self._create(PODS, pod) for pod in pods[start : start + WRITES_MAX]))
        name = capacity_objects.request_name(ask)
        _log.info("capacity requested", allocation=ask.allocation, request=name, ranks=ask.ranks)

    async def _store_state(self, request: CapacityRequest) -> None:
        """Store the state of a request, then delete the objects that must not exist in this state."""
        self._check()
        patch = capacity_objects.state_patch(request)
        try:
            name = capacity_objects.template_name(request.name, 0)
            await self._kube.patch(POD_TEMPLATES, name, patch, namespace=self._namespace)
        except NotFoundError:
            return  # it was deleted since
        _log.info(
            "capacity request changed its state", request=request.name, state=request.state.value, words=request.words
        )
        own = (self._standing or RequestObjects()).of(request.name)
        await self._delete(PODS, own.pods)
        if request.state is RequestState.FAILED:
            await self._delete(PROVISIONING_REQUESTS, own.requests)

    async def _withdraw(self, name: str) -> None:
        own = (self._standing or RequestObjects()).of(name)
        await self._delete(PODS, own.pods)
        await self._delete(PROVISIONING_REQUESTS, own.requests)
        await self._delete(POD_TEMPLATES, own.templates)
        _log.info("capacity request deleted", request=name)

    async def _create(self, resource: Resource[Any], body: Any) -> None:
        self._check()
        try:
            await self._kube.create(resource, body, namespace=self._namespace)
        except AlreadyExistsError:
            return  # an earlier pass or an earlier leader has created it

    async def _delete(self, resource: Resource[Any], objects: Any) -> None:
        for start in range(0, len(objects), WRITES_MAX):
            await asyncio.gather(*(self._delete_one(resource, each) for each in objects[start : start + WRITES_MAX]))

    async def _delete_one(self, resource: Resource[Any], found: Any) -> None:
        self._check()
        meta: ObjectMeta = found.metadata
        try:
            await self._kube.delete(resource, meta.name, namespace=self._namespace, uid=meta.uid)
        except (NotFoundError, StaleError):
            return  # it is gone, or the name belongs to another object by now

    # --- reading ----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        selector, space, lacked = capacity_objects.selector_of(self._pool), self._namespace, self._lacks_kind
        templates = await self._kube.list(POD_TEMPLATES, namespace=space, label_selector=selector)
        pods = await self._kube.list(PODS, namespace=space, label_selector=selector)
        standing = RequestObjects(
            templates=tuple(templates.items),
            requests=await self._list_requests(selector),
            pods=tuple(pods.items),
        )
        requests = capacity_objects.read_requests(standing)
        is_news = self._standing is None or requests != self._requests or lacked != self._lacks_kind
        self._standing, self._requests = standing, requests
        known = {each.name for each in requests}
        asked = {capacity_objects.request_name(ask) for ask in self._todo.asks}
        for name in sorted(standing.names() - known - asked - {""}):
            await self._withdraw(name)  # it was begun and never finished, and is not requested any more
        if is_news:
            self._notify()

    async def _list_requests(self, selector: str) -> tuple[ProvisioningRequest, ...]:
        try:
            found = await self._kube.list(PROVISIONING_REQUESTS, namespace=self._namespace, label_selector=selector)
        except NotFoundError:
            self._lacks_kind = True
            return ()
        self._lacks_kind = False
        return tuple(found.items)

    def _interval_s(self) -> float:
        if any(each.state is not RequestState.FAILED for each in self._requests):
            return OPEN_S
        if self._requests or (self._lacks_kind and self._obstacle_now()):
            return FAILED_S
        return REST_S if self._spec is not None else float("inf")

    def _fail(self, exc: Exception) -> None:
        trouble = str(exc) or "no answer in time"
        if isinstance(exc, DeniedError):
            trouble = f"{trouble}; {NOT_ENABLED}"
        _log.warning("capacity not requested", pool=self._pool, error=trouble, pause_s=PAUSE_S)
        self._obstacle = trouble
        self._paused_until = self._read_at = self._clock.monotonic() + PAUSE_S
        self._notify()

    def _notify(self) -> None:
        self.news += 1
        self._on_change()
