"""One verb for many allocations in one request.

For each allocation, the check, the function and the audit log line are the same as for a request about one allocation.
The write of the verb also stores the Idempotency-Key on the allocation. So a batch that is sent again changes only the
allocations that it has not reached before.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.allocations import verbs
from slipway.api.allocations.batch_schemas import (
    BATCH_MAX,
    MOVES_MAX,
    AllocationSelector,
    BatchAnswer,
    BatchItem,
    BatchRequest,
    BatchVerb,
    Outcome,
)
from slipway.api.allocations.changes import has_ended
from slipway.api.allocations.listing import ListFilter, list_all, list_page
from slipway.api.allocations.sorted_listing import Sorting, ordered_page
from slipway.api.auth.middleware import permit_member, permit_on, permit_patch, visible_workspaces_of
from slipway.api.auth.principal import PermissionCheck, principal_of, user_of
from slipway.api.auth.route_rules import rule_of
from slipway.api.deps import ApiDeps, parts_of
from slipway.api.http import audit
from slipway.api.http.batch import LANES, Batch, BatchDeadlineError, Tried
from slipway.api.http.decoding import checked, read_object
from slipway.api.http.endpoint import Endpoint, json_response
from slipway.api.http.errors import KeyReusedError
from slipway.api.http.problems import problem_of
from slipway.api.launch.launcher import check_key
from slipway.api.queues import job_changes
from slipway.api.queues.job_schemas import MoveBody
from slipway.api.schemas import ListMetadata
from slipway.crd.hashing import key_hash, request_hash
from slipway.crd.meta import ANNOTATION_BATCH
from slipway.crd.transitions import id_of
from slipway.crd.transitions import user_of as owner_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import ControlPlaneError, FieldError, InvalidError, InvariantError, NotFoundError
from slipway.kube.ports import Listed
from slipway.model.lifecycle import Phase

PATH = "/api/v1/allocations/batch"
PAGE = 500
LIST_FROM, LIST_PAGES_MAX = 100, 4
"""With at least LIST_FROM ids, up to LIST_PAGES_MAX pages are listed first: one page costs far less than many reads."""
_KEY_LENGTH, _VERB_LENGTH = 32, 16
_ONE = "/api/v1/allocations/{id}"
_OF_ONE = {verb: ("POST", f"{_ONE}/{verb}") for verb in BatchVerb} | {BatchVerb.DELETE: ("DELETE", _ONE)}
"""{verb: the route of the same verb for one allocation}; the route's row has the permission."""
_FIELDS: Mapping[str, tuple[BatchVerb, ...]] = {
    "force": (BatchVerb.KILL, BatchVerb.DELETE),
    "grace": (BatchVerb.KILL,),
    "priority": (BatchVerb.PRIORITY,),
    "aheadOf": (BatchVerb.MOVE,),
    "behind": (BatchVerb.MOVE,),
}
"""{field: the verbs that accept it}"""


class BatchSelection(NamedTuple):
    """The allocations of a batch: (the requested id, the object if it was already read) for each."""

    each: list[tuple[str, Allocation | None]]
    continue_: str = ""


class AppliedVerb(NamedTuple):
    """The result for an allocation that was found: the object before the verb, and the refusal, if any."""

    found: Allocation
    error: ControlPlaneError | None


async def batch(request: Request) -> Response:
    """Run the verb for each allocation. Answers 200 with the outcome of each."""
    parts = parts_of(request)
    given = await read_object(request, parts.settings.body_bytes_max)
    body = checked(given, BatchRequest)
    _check(body, given)
    key = request.headers.get("idempotency-key", "")
    check_key(key)
    await permit_member(request)
    ask = rule_of(*_OF_ONE[body.verb]).ask
    if not body.dry_run:
        parts = replace(parts, changes=parts.changes.marking(_mark(user_of(request), key, body)))
    one = _Verb(request, parts, body, ask, _mark(user_of(request), key, body))
    async with parts.batches.turn(principal_of(request).name) as turn:
        subjects = await _subjects(request, parts, body)
        tried = await _in_order(turn, subjects.each, one, body)
    items = [_item(text, outcome) for (text, _), outcome in zip(subjects.each, tried, strict=True)]
    if not body.dry_run:
        _tell(request, body.verb, items)
    return json_response(
        BatchAnswer(
            items=items,
            counts=dict(Counter(item.outcome for item in items)),
            dry_run=body.dry_run,
            metadata=ListMetadata(continue_=subjects.continue_),
        )
    )


class _Verb:
    """Runs the verb of a batch for one allocation at a time."""

    def __init__(self, request: Request, parts: ApiDeps, body: BatchRequest, ask: PermissionCheck, mark: str) -> None:
        self._request = request
        self._parts = parts
        self._body = body
        self._ask = ask
        self._mark = mark
        self._grace_s = verbs.grace_of(body.grace)

    async def __call__(self, subject: tuple[str, Allocation | None]) -> AppliedVerb:
        """Find the allocation, check the permission, run the verb.

        Raises NotFoundError or AmbiguousError when the allocation is not found.
        """
        text, found = subject
        if found is None:
            found = await self._parts.lookup.find(text)
        try:
            await permit_on(self._request, self._ask, found.metadata.namespace, f"allocation {text[:80]}")
            await self._do(found)
        except InvariantError:
            raise
        except ControlPlaneError as error:
            if isinstance(error, NotFoundError) and self._body.verb is not BatchVerb.MOVE:
                raise
            # In a move, NotFoundError means the other subject: `found` exists.
            return AppliedVerb(found, error)
        return AppliedVerb(found, None)

    async def _do(self, found: Allocation) -> None:
        if self._is_done(found):
            return
        match self._body.verb:
            case BatchVerb.KILL:
                pass
            case BatchVerb.HOLD:
                verbs.check_hold(found)
            case BatchVerb.RESUME:
                verbs.check_resume(found)
            case BatchVerb.PRIORITY | BatchVerb.MOVE:
                verbs.check_change(found)
            case BatchVerb.DELETE:
                verbs.check_delete(found, force=self._body.force)
        if self._body.dry_run:
            return
        after = await self._write(found)
        if after is not None and self._mark and not has_ended(after) and _mark_of(after) != self._mark:
            # The verb had nothing to write, so the mark of this batch is written separately.
            await self._parts.changes.write(after, {})

    async def _write(self, found: Allocation) -> Allocation | None:
        """Return the object after the verb; None when the verb deleted it."""
        body, changes = self._body, self._parts.changes
        match body.verb:
            case BatchVerb.KILL:
                return await verbs.kill(self._parts, found, grace_s=self._grace_s, force=body.force)
            case BatchVerb.HOLD:
                return await verbs.hold(self._parts, found)
            case BatchVerb.RESUME:
                return await verbs.resume(self._parts, found)
            case BatchVerb.PRIORITY:
                return await changes.write(found, {"priority": body.priority})
            case BatchVerb.MOVE:
                beside = MoveBody(ahead_of=body.ahead_of, behind=body.behind)
                moved = await job_changes.move(self._parts, found, beside, permit_patch(self._request))
                return moved if isinstance(moved, Allocation) else found
            case BatchVerb.DELETE:
                await changes.delete(found)
                return None

    def _is_done(self, found: Allocation) -> bool:
        """Whether this batch has already changed the allocation.

        A kill with `force` or `grace` runs again, because it is idempotent. Raises KeyReusedError when the key was used
        with another verb or value.
        """
        before = _mark_of(found)
        if not self._mark or before.partition(".")[0] != self._mark.partition(".")[0]:
            return False
        if before != self._mark:
            raise KeyReusedError("this Idempotency-Key came with another verb or value before; use a new key")
        return not (self._body.force or self._body.grace)


async def _in_order(
    turn: Batch, subjects: list[tuple[str, Allocation | None]], one: _Verb, body: BatchRequest
) -> list[Tried[AppliedVerb]]:
    """Run the verb for all subjects: moves sequentially, to keep the given order; other verbs concurrently."""
    if body.verb is not BatchVerb.MOVE:
        return await turn.each(subjects, one, lanes=LANES)
    if body.behind is msgspec.UNSET:
        return await turn.each(subjects, one, lanes=1)
    # Each is placed directly behind the same subject, so the last one has to be moved first.
    return (await turn.each(subjects[::-1], one, lanes=1))[::-1]


async def _subjects(request: Request, parts: ApiDeps, body: BatchRequest) -> BatchSelection:
    """Return the allocations of the batch, without duplicates."""
    if isinstance(body.ids, list):
        texts = list(dict.fromkeys(body.ids))
        known = await _listed(parts, body) if len(texts) >= LIST_FROM else {}
        return BatchSelection([(text, known.get(text)) for text in texts])
    assert isinstance(body.selector, AllocationSelector)  # noqa: S101 - it was checked
    most = MOVES_MAX if body.verb is BatchVerb.MOVE else BATCH_MAX
    limit = body.limit if isinstance(body.limit, int) else most
    wanted = _filter(body.selector, _meant(body))
    visible = await visible_workspaces_of(request)
    found: list[Allocation] = []
    continue_ = body.continue_
    while True:
        page = await _page(parts, wanted, limit - len(found), continue_, is_whole=visible.is_whole)
        found += page.items
        continue_ = page.continue_
        if not continue_ or len(found) >= limit:
            break
    for each in found:
        parts.lookup.remember(each)
    return BatchSelection([(id_of(each), each) for each in found], continue_)


def _meant(body: BatchRequest) -> ListFilter:
    """Return the filter that applies when the request names no phases: the phases in which the verb has an effect."""
    if body.verb is not BatchVerb.DELETE:
        return ListFilter(is_active=True)
    return ListFilter() if body.force else ListFilter(phases=frozenset({Phase.TERMINATED}))


async def _listed(parts: ApiDeps, body: BatchRequest) -> dict[str, Allocation]:
    """Return {AllocationID: object} from the first `LIST_PAGES_MAX` pages; a missing one is looked up separately."""
    found: dict[str, Allocation] = {}
    continue_ = ""
    for _ in range(LIST_PAGES_MAX):
        page = await list_page(parts.kube, _meant(body), limit=PAGE, continue_=continue_)
        found |= {id_of(each): each for each in page.items}
        continue_ = page.continue_
        if not continue_:
            break
    return found


async def _page(
    parts: ApiDeps, wanted: ListFilter, limit: int, continue_: str, *, is_whole: bool
) -> Listed[Allocation]:
    if is_whole or wanted.workspace:
        return await list_page(parts.kube, wanted, limit=min(PAGE, limit), continue_=continue_)
    # A page token of the cluster contains the name of an item, which the caller may not be allowed to see.
    order = Sorting.parse("workspace,name")
    listed = await list_all(parts.kube, wanted)
    return ordered_page(listed, wanted, order, limit=limit, continue_=continue_)


def _filter(selector: AllocationSelector, meant: ListFilter) -> ListFilter:
    def text(value: str | msgspec.UnsetType) -> str:
        return value if isinstance(value, str) else ""

    return msgspec.structs.replace(
        ListFilter(phases=frozenset(selector.phases)) if selector.phases else meant,
        workspace=text(selector.workspace),
        queue=text(selector.queue),
        pool=text(selector.pool),
        job=text(selector.job),
        user=text(selector.user),
        kind=None if selector.kind is msgspec.UNSET else selector.kind,
        label_selector=text(selector.label_selector),
    )


def _check(body: BatchRequest, given: Mapping[str, object]) -> None:
    """Raise InvalidError for fields that cannot be combined, or that are missing for the verb."""
    if isinstance(body.ids, list) is isinstance(body.selector, AllocationSelector):
        raise _invalid("ids", "set either ids or a selector")
    for name, of in _FIELDS.items():
        if name in given and body.verb not in of:
            raise _invalid(name, f"belongs to the verb {' and '.join(of)}, not to {body.verb}; leave it out")
    if isinstance(body.ids, list):
        for name in ("limit", "continue"):
            if name in given:
                raise _invalid(name, "belongs to a selector, not to ids; leave it out")
        if body.verb is BatchVerb.MOVE and len(body.ids) > MOVES_MAX:
            raise _invalid("ids", f"at most {MOVES_MAX} are moved by one request; send the rest in another")
    elif not _says_something(body.selector):
        raise _invalid("selector", 'it would select every allocation: add a condition, or write {"all": true}')
    if body.verb is BatchVerb.MOVE and isinstance(body.limit, int) and body.limit > MOVES_MAX:
        raise _invalid("limit", f"at most {MOVES_MAX} are moved by one request")
    if body.verb is BatchVerb.PRIORITY and not isinstance(body.priority, int):
        raise _invalid("priority", "is missing: 0 to 1000, higher goes first")
    if body.verb is BatchVerb.MOVE and isinstance(body.ahead_of, str) is isinstance(body.behind, str):
        raise _invalid("aheadOf", "set one of aheadOf and behind: a job, or the id of an allocation")


def _says_something(selector: object) -> bool:
    return selector != AllocationSelector()


def _invalid(name: str, detail: str) -> InvalidError:
    return InvalidError(f"{name}: {detail}", fields=(FieldError(f"/{name}", detail),))


def _mark(user: str, key: str, body: BatchRequest) -> str:
    """Return the annotation that a batch writes on each allocation; empty without a key.

    It does not depend on which allocations are chosen, because one key may serve several pages of a selection.
    """
    if not key:
        return ""
    verb = [body.verb, body.force, body.grace, *map(str, (body.priority, body.ahead_of, body.behind))]
    return f"{key_hash(f'{user} {key}')[:_KEY_LENGTH]}.{request_hash(verb)[:_VERB_LENGTH]}"


def _mark_of(allocation: Allocation) -> str:
    return allocation.metadata.annotations.get(ANNOTATION_BATCH, "")


def _item(text: str, tried: Tried[AppliedVerb]) -> BatchItem:
    match tried:
        case BatchDeadlineError():
            return BatchItem(id=text, outcome=Outcome.NOT_REACHED)
        case NotFoundError():
            return BatchItem(id=text, outcome=Outcome.NOT_FOUND, problem=problem_of(tried))
        case ControlPlaneError():
            return BatchItem(id=text, outcome=Outcome.REFUSED, problem=problem_of(tried))
        case AppliedVerb(found, error):
            return BatchItem(
                id=id_of(found),
                outcome=Outcome.DONE if error is None else Outcome.REFUSED,
                name=found.metadata.name,
                workspace=found.metadata.namespace,
                user=owner_of(found),
                phase=found.status.phase,
                result=found.status.result or "",
                problem=None if error is None else problem_of(error),
            )


def _tell(request: Request, verb: BatchVerb, items: list[BatchItem]) -> None:
    """Write a line of the audit log for each allocation that was reached."""
    for item in items:
        if item.outcome is not Outcome.NOT_REACHED:
            status = 200 if item.problem is None else item.problem.status
            audit.log_item(request, verb, {"id": item.id, "name": item.name}, item.workspace, status)


ENDPOINTS = (
    Endpoint(
        method="POST",
        path=PATH,
        handler=batch,
        summary="Kill, hold, resume, move or delete many allocations, or set their priority",
        tag="allocations",
        body=BatchRequest,
        answer=BatchAnswer,
    ),
)
