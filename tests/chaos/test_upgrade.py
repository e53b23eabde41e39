"""The next version: it can be made from these sources, and the judgement of its fields is right."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from slipway.ops.audit.evidence import ALLOCATIONS, Version
from tests.chaos.upgrade import ASKED, OBSERVED, copy_this, judge, make_next, manifests

ASKS = {ASKED: "slow"}


def written(
    number: int, name: str, spec: dict[str, Any], before: Version | None = None, *, seq: int = 0, is_next: bool = False
) -> Version:
    """One version of an allocation, with its status written by the next version or by this one."""
    status = {"seq": seq, **({OBSERVED: "good"} if is_next else {})}
    return Version(
        number=number,
        at=float(number),
        writer="",
        resource=ALLOCATIONS,
        namespace="default",
        name=name,
        is_deletion=False,
        obj={"metadata": {"uid": f"uid-{name}"}, "spec": spec, "status": status},
        before=before.obj if before is not None else None,
    )


def test_every_place_that_the_next_version_changes_is_in_the_sources(tmp_path: Path) -> None:
    """The next version's definitions have fields that ours do not have, and all of ours."""
    version = make_next(tmp_path / "next")
    (found,) = [item for item in manifests(version) if item["spec"]["names"]["kind"] == "Allocation"]
    known = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    assert {ASKED, "pool"} <= set(known["spec"]["properties"])
    assert {OBSERVED, "phase"} <= set(known["status"]["properties"])


def test_an_allocation_is_mixed_when_both_versions_wrote_its_status() -> None:
    """A status of the next version has its field, one of this version lacks it; a change of the spec shows nothing."""
    first = written(1, "mixed", ASKS, seq=2, is_next=True)
    second = written(2, "mixed", ASKS, first, seq=3)
    alone = written(3, "alone", {}, seq=2)
    patched = written(4, "alone", {"hold": True}, alone, seq=2)
    found = judge([first, second, alone, patched])
    assert (found.asked, found.both, found.lost) == (1, 1, ())


def test_launches_through_the_next_version_that_disappeared_are_found() -> None:
    """A lost field of the next version is named once, with the version that lacks it."""
    first = written(1, "job", ASKS)
    second = written(2, "job", {}, first, seq=2)
    third = written(3, "job", {}, second, seq=3)
    assert judge([first, second, third]).lost == (("job", f"spec.{ASKED} is gone in version 2"),)


def test_a_process_takes_its_sources_from_the_copy(tmp_path: Path) -> None:
    """An edit of the source tree during a run changes nothing in it."""
    copy = copy_this(tmp_path)
    program = "import slipway.api.main as main, slipway.kube.rest as rest; print(main.__file__, rest.__file__)"
    env = {**os.environ, "PYTHONPATH": copy.path}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert [Path(file).is_relative_to(tmp_path) for file in done.stdout.split()] == [True, True]
