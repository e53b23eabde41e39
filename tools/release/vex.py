"""Our statements on known vulnerabilities of shipped components (VEX), as CycloneDX 1.6, from `tools/release/vex.toml`.

Owns the statements and their format. An empty list means only that we stated nothing. It does not mean that no
vulnerability was found.
"""

import tomllib
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from tools.release.sbom import SPACE

Json = dict[str, Any]

FILE = Path(__file__).with_name("vex.toml")


class VexStatement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A statement on one vulnerability in one package."""

    id: str
    """the identifier: CVE-..., GHSA-... or PYSEC-..."""
    package: str
    """the name of a component in a bill of this release"""
    state: Literal["not_affected", "exploitable", "in_triage", "false_positive", "resolved"]
    detail: str
    """the reason, in one sentence; for `exploitable` also what to do"""
    justification: (
        Literal[
            "code_not_present",
            "code_not_reachable",
            "requires_configuration",
            "requires_dependency",
            "requires_environment",
            "protected_by_compiler",
            "protected_at_runtime",
            "protected_at_perimeter",
            "protected_by_mitigating_control",
        ]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    """required for the state `not_affected`, and not allowed for other states"""


class VexError(Exception):
    """A statement cannot be published in this form."""


def read(text: str) -> list[VexStatement]:
    """Return the statements of a file.

    Raises:
        VexError: the file is not valid, or a statement is incomplete.
    """
    try:
        found = msgspec.convert(tomllib.loads(text).get("statement", []), list[VexStatement])
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise VexError(f"vex.toml: {error}") from error
    for each in found:
        if (each.state == "not_affected") != (each.justification is not msgspec.UNSET):
            raise VexError(f"vex.toml: {each.id}: `justification` belongs to state not_affected, which needs one")
        if not each.detail.strip():
            raise VexError(f"vex.toml: {each.id}: `detail` must say why")
    return found


def document(statements: Sequence[VexStatement], bills: Sequence[Mapping[str, Any]], *, epoch_s: int) -> Json:
    """Return the statements on the components of these bills.

    Raises:
        VexError: a statement is on a package that is in no bill.
    """
    stated: list[Json] = []
    for each in statements:
        affected = [_link(bill, part) for bill in bills for part in bill["components"] if part["name"] == each.package]
        if not affected:
            raise VexError(f"vex.toml: {each.id}: this release has no package {each.package!r}; remove the statement")
        analysis: Json = {"state": each.state, "detail": each.detail}
        if each.justification is not msgspec.UNSET:
            analysis["justification"] = each.justification
        stated.append({"id": each.id, "analysis": analysis, "affects": [{"ref": ref} for ref in sorted(affected)]})
    serial = uuid.uuid5(SPACE, "vex " + " ".join(sorted(str(bill["serialNumber"]) for bill in bills)))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"timestamp": datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")},
        "vulnerabilities": sorted(stated, key=lambda each: str(each["id"])),
    }


def _link(bill: Mapping[str, Any], part: Mapping[str, Any]) -> str:
    """Return a BOM-Link, which identifies the bill and the component in it."""
    serial = str(bill["serialNumber"]).removeprefix("urn:uuid:")
    return f"urn:cdx:{serial}/{bill['version']}#{quote(str(part['bom-ref']), safe='')}"
