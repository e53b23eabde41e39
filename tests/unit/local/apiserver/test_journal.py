"""Persistence: every answered write survives the end of the process."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import httpx2
import msgspec
import pytest

from slipway.errors import InvariantError
from slipway.local.apiserver.core import ClusterCore
from slipway.local.apiserver.journal import Journal
from tests.contract.kube.samples import a_config, a_pod, a_widget, owned_by
from tests.support.plain_http import NO_TLS
from tests.support.ports import free_port
from tests.unit.local.apiserver.support import WIDGETS, a_core, with_widgets

DEADLINE_S = 20.0


def _empty() -> ClusterCore:
    return ClusterCore(clock=lambda: 0.0, new_uid=lambda: "new", allow_unknown_rules=True)


def _everything(core: ClusterCore) -> bytes:
    resources = sorted(core.store.resources())
    return msgspec.json.encode([[record.obj for record in core.store.scan(each)] for each in resources])


def _filled(folder: Path, snapshot_every: int = 20_000) -> ClusterCore:
    core = a_core()
    journal = Journal(folder, core, snapshot_every=snapshot_every)
    with_widgets(core)
    for name in "abcdef":
        core.create("configmaps", "default", a_config(name))
        core.create(WIDGETS, "default", a_widget(name))
    core.delete("configmaps", "default", "a")
    core.patch(WIDGETS, "default", "b", {"spec": {"size": 7}})
    journal.close()
    return core


def test_restart_finds_everything_and_the_same_versions(tmp_path: Path) -> None:
    """After a restart objects, versions and the counter are the same, and the custom kind is served again."""
    before = _filled(tmp_path)
    after = _empty()
    Journal(tmp_path, after).close()
    assert _everything(after) == _everything(before)
    assert after.version == before.version
    assert after.get(WIDGETS, "default", "b")["spec"]["size"] == 7


def test_snapshots_in_between_lose_nothing(tmp_path: Path) -> None:
    """Snapshots lose nothing: however often the log is merged into a snapshot, the result is the same."""
    before = _filled(tmp_path, snapshot_every=3)
    after = _empty()
    Journal(tmp_path, after).close()
    assert _everything(after) == _everything(before)
    assert after.version == before.version


def test_torn_tail_is_forgotten(tmp_path: Path) -> None:
    """An incomplete last line is dropped, because its write was never answered."""
    before = _filled(tmp_path)
    with (tmp_path / "log.jsonl").open("ab") as log:
        log.write(b'[999,"ADDED","configmaps",{"metadata":{"na')
    after = _empty()
    Journal(tmp_path, after).close()
    assert _everything(after) == _everything(before)


def test_after_a_change_that_was_not_stored_no_later_one_is(tmp_path: Path) -> None:
    """After a failed write of the log, later writes are refused, so that a restart finds a state that once existed."""
    core = a_core()
    journal = Journal(tmp_path, core)
    core.create("configmaps", "default", a_config("a"))
    before = _everything(core)
    size = (tmp_path / "log.jsonl").stat().st_size
    with _no_file_longer_than(size), pytest.raises(InvariantError, match="no longer stored"):
        core.delete("configmaps", "default", "a")
    with pytest.raises(InvariantError, match="no longer stored"):
        core.create("configmaps", "default", a_config("b"))
    journal.close()
    after = _empty()
    Journal(tmp_path, after).close()
    assert _everything(after) == before


def test_a_snapshot_that_cannot_be_written_loses_nothing(tmp_path: Path) -> None:
    """When a snapshot cannot be written, the log still has every commit."""
    core = a_core()
    journal = Journal(tmp_path, core, snapshot_every=1)
    core.create("configmaps", "default", a_config("a"))
    (tmp_path / "snapshot.json.new").mkdir()
    with pytest.raises(InvariantError, match="no longer stored"):
        core.create("configmaps", "default", a_config("b"))
    before = _everything(core)
    with pytest.raises(InvariantError, match="no longer stored"):
        core.create("configmaps", "default", a_config("c"))
    journal.close()
    (tmp_path / "snapshot.json.new").rmdir()
    after = _empty()
    Journal(tmp_path, after).close()
    assert _everything(after) == before


def test_garbage_collection_continues_after_a_restart(tmp_path: Path) -> None:
    """The dependents of an owner that was deleted just before the end are deleted after the restart."""
    core = a_core()
    journal = Journal(tmp_path, core)
    owner = core.create("configmaps", "default", a_config("owner"))
    core.create("pods", "default", a_pod(meta={"ownerReferences": [owned_by(owner)]}))
    core.delete("configmaps", "default", "owner")
    journal.close()
    after = _empty()
    Journal(tmp_path, after).close()
    after.settle()
    assert after.list("pods").items == []


def test_kill_9_loses_nothing_answered(tmp_path: Path) -> None:
    """A real process, killed between two answers, comes back with every acknowledged object and version."""
    port = free_port()
    acknowledged: dict[str, str] = {}
    process = _start(port, tmp_path)
    opens = {"Authorization": f"Bearer {(tmp_path / 'token').read_text()}"}
    client = httpx2.Client(base_url=_url(port), headers=opens, verify=NO_TLS, trust_env=False)
    try:
        for number in range(50):
            answer = client.post("/api/v1/namespaces/default/configmaps", json=a_config(f"c{number}"))
            assert answer.status_code == 201
            acknowledged[f"c{number}"] = answer.json()["metadata"]["resourceVersion"]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_S)
    process = _start(port, tmp_path)
    try:
        found = client.get("/api/v1/namespaces/default/configmaps").json()["items"]
        assert {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in found} == acknowledged
    finally:
        client.close()
        process.terminate()
        assert process.wait(DEADLINE_S) is not None


@contextlib.contextmanager
def _no_file_longer_than(size: int) -> Generator[None]:
    """Let writes beyond this size of a file fail, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def _start(port: int, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "slipway.local.apiserver", "--listen", f"127.0.0.1:{port}", "--data", str(folder)]
    command += ["--token-file", str(folder / "token")]
    process = subprocess.Popen([*command, "--allow-unknown-rules"], env=dict(os.environ))
    ends_at = time.monotonic() + DEADLINE_S
    with httpx2.Client(base_url=_url(port), verify=NO_TLS, trust_env=False) as client:
        while time.monotonic() < ends_at:
            try:
                if client.get("/readyz").status_code == 200:
                    return process
            except httpx2.TransportError:
                time.sleep(0.02)
    process.kill()
    process.wait()
    raise AssertionError("the server did not start")


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"
