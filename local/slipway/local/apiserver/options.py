"""What a caller may add to a write: dry run, field validation, delete options.

Owns their reading from JSON. Invariant: an option that does not parse is refused, never ignored.
"""

import msgspec

from slipway.local.apiserver.fields.ownership import NOBODY, Ownership
from slipway.local.apiserver.objects import Json, mapping
from slipway.local.apiserver.status import bad_request, invalid_options, unsupported


class WriteOptions(msgspec.Struct):
    """What a caller may add to a write, and what the server tells of it.

    writer: the field manager, "" when the caller has no name. force: an apply takes fields from others. warnings:
    filled by the server while it works; each becomes a Warning header. ownership: of the object as it was written.
    duplicates: fields that came twice; order: where each field stood in the document, known only when some did;
    dropped: fields of the metadata that do not exist. keeps_nulls: what is decoded is the result of an apply, in which
    null stands for what became empty.
    """

    dry_run: bool = False
    field_validation: str = "Warn"
    writer: str = ""
    force: bool = False
    warnings: list[str] = []
    ownership: Ownership = NOBODY
    duplicates: list[str] = []
    order: dict[str, int] = {}
    dropped: list[str] = []
    keeps_nulls: bool = False


class DeleteOptions(msgspec.Struct, kw_only=True):
    """metav1.DeleteOptions; `grace_period_s` None means the object's own."""

    dry_run: bool = False
    grace_period_s: int | None = None
    propagation: str = ""
    uid: str = ""
    resource_version: str = ""


def read_delete_options(body: Json) -> DeleteOptions:
    """Raises: StatusError 400."""
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
