"""The options of a write: dry run, field validation, delete options.

Owns their parsing from JSON. Invariant: an option that cannot be parsed is refused, never ignored.
"""

import msgspec

from slipway.local.apiserver.fields.ownership import UNOWNED, Ownership
from slipway.local.apiserver.objects import Json, mapping
from slipway.local.apiserver.status import bad_request, invalid_options, unsupported


class WriteOptions(msgspec.Struct):
    """The options of a write that a caller sends, and what the server records about the write.

    writer: the field manager, "" when the caller has no name. force: an apply takes fields over from other managers.
    warnings: filled by the server during the write; each becomes a Warning header. ownership: the ownership of the
    object as written. duplicates: paths of duplicate fields. order: {path: position in the document}, known only when
    there are duplicates. dropped: unknown fields of the metadata. keeps_nulls: the decoded object is the result of an
    apply, in which null means a value that became empty.
    """

    dry_run: bool = False
    field_validation: str = "Warn"
    writer: str = ""
    force: bool = False
    warnings: list[str] = []
    ownership: Ownership = UNOWNED
    duplicates: list[str] = []
    order: dict[str, int] = {}
    dropped: list[str] = []
    keeps_nulls: bool = False


class DeleteOptions(msgspec.Struct, kw_only=True):
    """metav1.DeleteOptions; `grace_period_s` None means the object's own grace period."""

    dry_run: bool = False
    grace_period_s: int | None = None
    propagation: str = ""
    uid: str = ""
    resource_version: str = ""


def read_delete_options(body: Json) -> DeleteOptions:
    """Return the delete options of a request body. Raises: StatusError 400, 422."""
    grace = body.get("gracePeriodSeconds")
    if grace is not None and (not isinstance(grace, int) or grace < 0):
        raise bad_request("gracePeriodSeconds must be a whole number of seconds, zero or more")
    propagation = body.get("propagationPolicy") or ""
    if body.get("orphanDependents") is not None and not propagation:
        propagation = "Orphan" if body["orphanDependents"] else "Background"
    if propagation not in ("", "Background", "Foreground", "Orphan"):
        allowed = ["Foreground", "Background", "Orphan", "nil"]
        raise invalid_options("DeleteOptions", [unsupported("propagationPolicy", propagation, allowed)])
    wanted = mapping(body, "preconditions")
    return DeleteOptions(
        dry_run="All" in (body.get("dryRun") or []),
        grace_period_s=grace,
        propagation=propagation,
        uid=str(wanted.get("uid") or ""),
        resource_version=str(wanted.get("resourceVersion") or ""),
    )
