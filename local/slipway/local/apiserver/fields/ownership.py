"""Field ownership: which writer set which fields. `metadata.managedFields` shows it, and server-side apply uses it.

Owns claims (one per writer, operation, version and subresource), how an update moves fields between claims, and how an
apply merges, conflicts and removes. Knows no store. Invariants: a claim without fields does not exist; an update never
conflicts. The claims of an object are computed only when they are read, from the writes since the last computation, so
a write costs almost nothing until then.

Source: k8s.io/apimachinery/pkg/util/managedfields and sigs.k8s.io/structured-merge-diff/merge (behaviour, v1.37).
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from slipway.local.apiserver.fields import merging, paths
from slipway.local.apiserver.fields.merging import FieldDifference, IgnoredFields
from slipway.local.apiserver.fields.paths import FieldSet, Path
from slipway.local.apiserver.fields.shapes import Shape
from slipway.local.apiserver.objects import Json, is_map, maps

APPLY, UPDATE = "Apply", "Update"
UPDATERS_MAX = 10
OLD_WRITERS = "ancient-changes"
FIRST_APPLY = "before-first-apply"
_PENDING_MAX = 16
_SERVERS = frozenset(
    {
        "name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName", "generation", "managedFields",
        "resourceVersion",
    }
)  # fmt: skip
_NAMES = frozenset({"apiVersion", "kind"})
UNOWNED_FIELDS = IgnoredFields(_NAMES, _SERVERS)
"""The fields that no writer owns: they name or describe the object."""
_UNOWNED_SET = FieldSet(
    {"f:apiVersion", "f:kind", "f:metadata"}, {"f:metadata": FieldSet({paths.field(name) for name in _SERVERS})}
)


class FieldScope(msgspec.Struct, frozen=True, kw_only=True):
    """How to read the objects of one kind in one version.

    ignored: {subresource: the fields that a write through it does not change}. empty: the object with which a new
    object is compared.
    """

    shape: Shape
    api_version: str
    ignored: dict[str, IgnoredFields]
    empty: Json


class Author(msgspec.Struct, frozen=True, kw_only=True):
    """The writer of fields and its kind of write. This is the identity of a claim."""

    name: str
    operation: str = UPDATE
    api_version: str = ""
    subresource: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The key of the claim. An apply has the same key in every API version."""
        version = "" if self.operation == APPLY else self.api_version
        return (self.name, self.operation, version, self.subresource)

    def show(self) -> str:
        words = msgspec.json.encode(self.name).decode()
        if self.subresource:
            words += f" with subresource {msgspec.json.encode(self.subresource).decode()}"
        return f"{words} using {self.api_version}" if self.operation == UPDATE else words


class FieldOwner(msgspec.Struct):
    """The fields of one writer, and the time of its last change. Immutable, except that `shown` is cached lazily."""

    writer: Author
    time: str
    fields: FieldSet
    shown: msgspec.Raw | None = None


Claims = dict[tuple[str, str, str, str], FieldOwner]


class FieldConflictError(Exception):
    """An apply would change fields of other writers. `conflicts` has (writer, path) of each field."""

    def __init__(self, conflicts: list[tuple[Author, Path]]) -> None:
        super().__init__("apply conflict")
        self.conflicts = conflicts


class ApplyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The writer and time of an apply. `force` takes fields over from other writers instead of a conflict."""

    writer: Author
    time: str
    force: bool = False


class ApplyResult(msgspec.Struct, frozen=True):
    """The object and the ownership after an apply."""

    obj: Json
    ownership: "Ownership"


class _Write(msgspec.Struct, frozen=True):
    scope: FieldScope
    before: Json
    after: Json
    writer: Author
    time: str


class Ownership:
    """The claims on one version of one object."""

    __slots__ = ("_claims", "_pending")

    def __init__(self, claims: Claims | None = None, pending: tuple[_Write, ...] = ()) -> None:
        self._claims: Claims = claims or {}
        self._pending = pending

    @property
    def claims(self) -> Claims:
        for write in self._pending:
            self._claims = _updated(self._claims, write)
        self._pending = ()
        return self._claims

    @property
    def has_pending(self) -> bool:
        """Whether the claims of some writes are not computed yet."""
        return bool(self._pending)

    def same_as(self, other: "Ownership") -> bool:
        """Whether both have the same claims, ignoring times."""
        if self is other:
            return True
        mine, others = self.claims, other.claims
        return mine.keys() == others.keys() and all(mine[key].fields == others[key].fields for key in mine)

    def noted(self, scope: FieldScope, before: Json, after: Json, writer: Author, time: str) -> "Ownership":
        """Return the ownership after one more write.

        Consecutive writes of one writer are merged into one, unless the claims were read in between.
        """
        pending = self._pending
        last = pending[-1] if pending else None
        if last is not None and last.writer == writer and last.scope is scope and last.before is not scope.empty:
            pending, before = pending[:-1], last.before
        elif len(pending) >= _PENDING_MAX:
            return Ownership(self.claims, (_Write(scope, before, after, writer, time),))
        return Ownership(self._claims, (*pending, _Write(scope, before, after, writer, time)))

    def to_json(self) -> list[Any]:
        """Return the value of `metadata.managedFields`, with each entry already encoded."""
        return [_entry(claim) for claim in sorted(self.claims.values(), key=_order)]

    def shown_on(self, obj: Json) -> Json:
        """Return the object with its managed fields. The result can only be encoded as JSON."""
        if not self.claims:
            return obj
        return {**obj, "metadata": {**obj["metadata"], "managedFields": self.to_json()}}


UNOWNED = Ownership()


def read(entries: Iterable[Any]) -> Ownership:
    """Return the ownership that the entries of `metadata.managedFields` describe."""
    claims: Claims = {}
    for entry in maps(entries):
        writer = Author(
            name=str(entry.get("manager", "")),
            operation=str(entry.get("operation", UPDATE)),
            api_version=str(entry.get("apiVersion", "")),
            subresource=str(entry.get("subresource", "")),
        )
        document = entry.get("fieldsV1")
        claims[writer.key] = FieldOwner(
            writer, str(entry.get("time", "")), paths.of_json(document if is_map(document) else {})
        )
    return Ownership(claims)


def applied(
    scope: FieldScope, live: Json | None, document: Json, ownership: Ownership, request: ApplyRequest
) -> ApplyResult:
    """Apply `document` to `live`, which is None when the apply creates the object.

    Raises: FieldConflictError unless forced; merging.DuplicateError.
    """
    writer = request.writer
    before = live if live is not None else scope.empty
    claims = dict(ownership.claims)
    if live is not None and not claims:
        first = Author(name=FIRST_APPLY, api_version=scope.api_version)
        claims = dict(_updated({}, _Write(scope, scope.empty, live, first, request.time)))
    last = claims.get(writer.key)
    ignored = scope.ignored.get(writer.subresource, UNOWNED_FIELDS)
    wanted = _without(merging.fields_of(scope.shape, document), ignored)
    claims[writer.key] = FieldOwner(writer, request.time, wanted)
    merged: Json = merging.merge(scope.shape, before, document)
    if last is not None and last.fields:
        merged = _prune(scope.shape, merged, claims, last.fields)
    if merged == before and live is not None:
        claims[writer.key] = FieldOwner(writer, last.time if last is not None else "", wanted)
    difference = merging.compare(scope.shape, before, merged, ignored=ignored)
    after = _taken(claims, writer, difference, force=request.force)
    mine = after.pop(writer.key, claims[writer.key])
    left = mine.fields.difference(_UNOWNED_SET)
    if left:
        after[writer.key] = FieldOwner(writer, mine.time, left)
    return ApplyResult(merged, Ownership(after))


def _updated(claims: Claims, write: _Write) -> Claims:
    if not claims and write.before is not write.scope.empty:
        return claims
    writer = write.writer
    ignored = write.scope.ignored.get(writer.subresource, UNOWNED_FIELDS)
    difference = merging.compare(write.scope.shape, write.before, write.after, ignored=ignored)
    changed = difference.changed
    changed.members.discard("f:metadata")
    if not changed and not difference.removed:
        return claims
    after = _taken(claims, None, difference, force=True) if claims else {}
    if changed:
        own = after.get(writer.key)
        after[writer.key] = FieldOwner(writer, write.time, own.fields.union(changed) if own else changed)
    return _capped(after) if len(after) > UPDATERS_MAX else after


def _taken(claims: Claims, writer: Author | None, difference: FieldDifference, *, force: bool) -> Claims:
    """Return the claims after the other writers lost the changed and removed fields. Raises: FieldConflictError."""
    after: Claims = {}
    changed, removed = difference.changed, difference.removed
    conflicts: list[tuple[Author, Path]] = []
    for key, claim in claims.items():
        if writer is not None and key == writer.key:
            after[key] = claim
            continue
        lost = claim.fields.intersection(changed)
        conflicts += [(claim.writer, path) for path in lost.paths()]
        left = claim.fields.difference(lost).difference(removed)
        after[key] = claim if left is claim.fields else FieldOwner(claim.writer, claim.time, left)
    if conflicts and not force:
        raise FieldConflictError(sorted(conflicts, key=lambda each: each[0].show()))
    return {key: claim for key, claim in after.items() if claim.fields}


def _prune(shape: Shape, merged: Json, claims: Claims, last: FieldSet) -> Json:
    """Remove the fields that the writer applied last time but not this time, unless another writer claims them."""
    named = last.with_named(shape)
    pruned = merging.remove(shape, merged, named)
    managed = FieldSet()
    for claim in claims.values():
        managed = managed.union(claim.fields)
    whole = merging.fields_of(shape, merged).with_named(shape)
    kept = merging.fields_of(shape, pruned).with_named(shape)
    pruned = merging.remove(shape, merged, whole.difference(kept.union(managed.with_named(shape))))
    kept = merging.fields_of(shape, pruned).with_named(shape)
    return merging.remove(shape, merged, whole.difference(kept).intersection(named)) or {}


def _without(fields: FieldSet, ignored: IgnoredFields) -> FieldSet:
    gone = FieldSet({paths.field(name) for name in ignored.fields - _NAMES})
    return fields.without(gone) if gone else fields


def _capped(claims: Claims) -> Claims:
    """Return the claims, with the oldest updaters of a version merged into one claim when there are too many."""
    updaters = sorted((claim for claim in claims.values() if claim.writer.operation == UPDATE), key=_order)
    surplus = len(updaters) - UPDATERS_MAX
    after = dict(claims)
    firsts: dict[str, FieldOwner] = {}
    for claim in updaters:
        version = claim.writer.api_version
        if surplus <= 0:
            break
        first = firsts.setdefault(version, claim)
        if first is claim:
            continue
        bucket = Author(name=OLD_WRITERS, api_version=version)
        known = after.get(bucket.key) or first
        after.pop(first.writer.key, None)
        after.pop(claim.writer.key)
        after[bucket.key] = FieldOwner(bucket, claim.time, known.fields.union(claim.fields))
        surplus -= 1
    return after


def _order(claim: FieldOwner) -> tuple[str, str, str, str, str]:
    writer = claim.writer
    return (writer.operation, claim.time, writer.name, writer.api_version, writer.subresource)


def _entry(claim: FieldOwner) -> Any:
    if claim.shown is None:
        claim.shown = msgspec.Raw(msgspec.json.encode(_describe(claim)))
    return claim.shown


def _describe(claim: FieldOwner) -> Json:
    writer = claim.writer
    entry: Json = {"manager": writer.name, "operation": writer.operation, "apiVersion": writer.api_version}
    if claim.time:
        entry["time"] = claim.time
    entry |= {"fieldsType": "FieldsV1", "fieldsV1": claim.fields.to_json()}
    if writer.subresource:
        entry["subresource"] = writer.subresource
    return entry
