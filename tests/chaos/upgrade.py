"""A next version of the product, for an upgrade under load: this tree with some changes that a release may have.

Owns what the next version writes and this one does not know: a field of the spec, of the status and of the ledger,
fields in entries of the streams, an annotation on the objects of an attempt, and another hash of them. Owns the
judgement too: a field that a user set through the next version stays, whichever version writes afterwards. Must not
know how processes are started.

Invariant: every edit finds its place in the sources, or `make_next` fails and names it.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from slipway.ops.audit.evidence import ALLOCATIONS, Version
from tests.support.chart import ROOT

SOURCES = ("shared", "local", "services/api", "services/scheduler", "services/podworker", "services/watcher")
MADE_S = 60.0
ASKED, OBSERVED = "tune", "mood"
"""Fields that only the next version knows: one of the spec, and one of statuses."""
NOTE = "slipway.dev/of-the-next"
_OBSERVED = f'    {OBSERVED}: str = msgspec.field(default_factory=lambda: "good")\n'


class Edit(msgspec.Struct, frozen=True):
    """Inserts `new` before `old`, which occurs once in the file."""

    file: str
    old: str
    new: str


EDITS = (
    Edit("shared/slipway/crd/v1alpha1.py", "    kind: Kind\n", f'    {ASKED}: str = ""\n'),
    Edit("shared/slipway/crd/v1alpha1.py", "    phase: Phase = Phase.PENDING\n", _OBSERVED),
    Edit("shared/slipway/crd/pools.py", "from msgspec import Meta\n", "import msgspec\n"),
    Edit("shared/slipway/crd/pools.py", "    epoch: int = 0\n    ", _OBSERVED),
    Edit(
        "services/api/slipway/api/launch/launcher.py", "request_hash=_hash_of(launch_request))\n", f'{ASKED}="slow", '
    ),
    Edit("shared/slipway/streams/codec.py", '        "specversion": b"1.0",\n', f'        "{ASKED}": b"slow",\n'),
    Edit("shared/slipway/streams/codec.py", '"key": f"{hint.namespace}', f'"{ASKED}": b"slow", '),
    Edit("shared/slipway/pods/manifest.py", "**annotations, meta.ANNOTATION_SPEC_HASH", f'"{NOTE}": "kept", '),
    Edit("shared/slipway/pods/manifest.py", '"api": options.api_url}', f'"{ASKED}": "slow", '),
)


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """A version of the product on this machine. `path` is the beginning of PYTHONPATH for its processes."""

    path: str
    definitions: tuple[Path, ...] = ()
    """files of its custom resource definitions, of the next version"""


class Mixed(msgspec.Struct, frozen=True, kw_only=True):
    """The allocations of a time with two versions."""

    asked: int = 0
    """number that users launched through the next version"""
    both: int = 0
    """number whose status both versions wrote"""
    lost: tuple[tuple[str, str], ...] = ()
    """lost fields of the next version: the name of the allocation, and the field"""


def copy_this(folder: Path) -> Copy:
    """Copy this version into a new folder, so that an edit of the sources during a run changes nothing in it."""
    for source in SOURCES:
        shutil.copytree(ROOT / source, folder / source)
    return Copy(path=os.pathsep.join(str(folder / source) for source in SOURCES))


def make_next(folder: Path) -> Copy:
    """Make the next version in a new folder.

    Raises:
        LookupError: a place that it changes is missing in the sources, or occurs more than once.
    """
    path = copy_this(folder).path
    for edit in EDITS:
        file = folder / edit.file
        text = file.read_text(encoding="utf-8")
        if text.count(edit.old) != 1:
            raise LookupError(f"{edit.file} has {edit.old!r} {text.count(edit.old)} times: mend tests/chaos/upgrade.py")
        file.write_text(text.replace(edit.old, edit.new + edit.old), encoding="utf-8")
    definitions = folder / "crds"
    definitions.mkdir()
    env = {**os.environ, "PYTHONPATH": path}
    words = [sys.executable, "-m", "slipway.crd.schema", str(definitions)]
    subprocess.run(words, env=env, check=True, timeout=MADE_S, stdout=subprocess.DEVNULL)
    return Copy(path=path, definitions=tuple(sorted(definitions.glob("*.yaml"))))


def manifests(version: Copy) -> list[dict[str, Any]]:
    """Its custom resource definitions."""
    return [yaml.safe_load(file.read_text(encoding="utf-8")) for file in version.definitions]


def judge(versions: Iterable[Version]) -> Mixed:
    """Judge the history of the allocations, oldest version first."""
    asked: dict[str, str] = {}
    writers: dict[str, set[bool]] = {}
    lost: dict[str, tuple[str, str]] = {}
    for version in versions:
        if version.resource != ALLOCATIONS or version.is_deletion:
            continue
        meta, spec = version.obj["metadata"], version.obj["spec"]
        status: Mapping[str, Any] = version.obj.get("status") or {}
        uid = str(meta["uid"])
        if ASKED in spec:
            asked.setdefault(uid, spec[ASKED])
        if uid in asked and spec.get(ASKED) != asked[uid]:
            lost.setdefault(uid, (version.name, f"spec.{ASKED} is gone in version {version.number}"))
        if status.get("seq", 0) and _is_new(status, version.before):
            writers.setdefault(uid, set()).add(OBSERVED in status)
    both = sum(1 for found in writers.values() if len(found) > 1)
    return Mixed(asked=len(asked), both=both, lost=tuple(lost.values()))


def _is_new(status: Mapping[str, Any], before: Mapping[str, Any] | None) -> bool:
    return before is None or status != (before.get("status") or {})
