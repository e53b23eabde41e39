"""Folders of launches, through the whole system: packed, uploaded, stored, downloaded, unpacked, run."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.local_stack import RunningStack
from tests.support.wait import wait_until

PROGRAM = """
import hashlib, os, sys
digest = hashlib.sha256(open("data/noise", "rb").read()).hexdigest()
open("out", "w").write("the working directory can be written")
print(os.environ["RANK"], digest, sorted(os.listdir(".")))
"""


def a_folder(root: Path, size: int) -> str:
    """A program with its data, and files that are excluded; returns the data's digest."""
    (root / "data").mkdir(parents=True)
    noise = os.urandom(size)
    (root / "data" / "noise").write_bytes(noise)
    (root / "main.py").write_text(PROGRAM)
    (root / "secret.key").write_text("stays here")
    (root / ".slipwayignore").write_text("*.key\n")
    return hashlib.sha256(noise).hexdigest()


def test_every_rank_finds_the_folder(stack: RunningStack, tmp_path: Path) -> None:
    """Three MiB in pieces are the same, byte by byte, in each of three ranks, in a writable directory."""
    digest = a_folder(tmp_path / "in", 3 * 1024 * 1024)
    ran = stack.command("run", "--ranks", "3", "-c", str(tmp_path / "in"), "--", "python3", "main.py")
    assert ran.code == 0, ran.err
    assert "uploaded in" in ran.err
    listing = "['data', 'main.py', 'out']"
    assert sorted(ran.out.splitlines()) == [f"[{rank}] {rank} {digest} {listing}" for rank in range(3)]
    again = stack.command("run", "-c", str(tmp_path / "in"), "--", "python3", "main.py")
    assert again.code == 0, again.err
    assert "was uploaded before" in again.err


def test_a_small_folder_is_part_of_the_launch(stack: RunningStack, tmp_path: Path) -> None:
    """The files are at the same places, without an upload."""
    digest = a_folder(tmp_path / "in", 1000)
    (tmp_path / "in" / "main.py").write_text(PROGRAM.replace('open("out"', "#"))
    ran = stack.command("run", "-c", str(tmp_path / "in"), "--", "python3", "main.py")
    assert ran.code == 0, ran.err
    assert digest in ran.out
    assert "context" not in ran.err


def test_a_file_of_the_launch_lies_over_the_archive(stack: RunningStack, tmp_path: Path) -> None:
    """A file of the launch wins over one of the archive, as a mount does."""
    a_folder(tmp_path / "in", 400_000)
    (tmp_path / "main.py").write_text("print('mine')")
    ran = stack.command(
        "run", "-c", str(tmp_path / "in"), "--file", f"{tmp_path / 'main.py'}:main.py", "--", "python3", "main.py"
    )
    assert (ran.code, ran.out) == (0, "mine\n"), ran.err


def test_an_archive_that_is_gone(stack: RunningStack, tmp_path: Path) -> None:
    """A rank that cannot download its files ends the launch, with the reason in its log and in the status."""
    a_folder(tmp_path / "in", 400_000)
    ran = stack.command("run", "-d", "--hold", "-c", str(tmp_path / "in"), "--", "python3", "main.py")
    id_ = ran.out.strip()
    context = stack.view(id_)["spec"]["context"]
    stack.kubernetes("DELETE", f"/api/v1/namespaces/default/configmaps/slipway-context-{context[:40]}")
    assert stack.command("resume", id_).code == 0
    view = stack.wait_for(id_, "Terminated")
    assert (view["result"], view["status"]["reason"]) == ("Failed", "InitContainerFailed")
    assert "slipway-context" in view["status"]["message"]


def test_the_api_dies_under_an_upload(stack: RunningStack, tmp_path: Path) -> None:
    """The command repeats the upload, nothing is stored twice, and every rank of a gang has the folder."""
    digest = a_folder(tmp_path / "in", 24 * 1024 * 1024)
    words = ["run", "--ranks", "4", "-c", str(tmp_path / "in"), "--", "python3", "main.py"]
    before = pieces(stack)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: stack.command(*words, timeout_s=120))
        wait_until(lambda: pieces(stack) > before, "the first piece is stored")
        stack.kill("api")
        ran = running.result()
    assert ran.code == 0, ran.err
    assert len([line for line in ran.out.splitlines() if digest in line]) == 4
    indexes = stack.kubernetes("GET", f"{MAPS}?labelSelector=slipway.dev/context=index")["items"]
    owners = {item["metadata"]["uid"] for item in indexes}
    found = stack.kubernetes("GET", f"{MAPS}?labelSelector=slipway.dev/context=piece")["items"]
    assert {owner["uid"] for item in found for owner in item["metadata"]["ownerReferences"]} <= owners


MAPS = "/api/v1/namespaces/default/configmaps"


def pieces(stack: RunningStack) -> int:
    """The number of large archives whose storing has begun."""
    listed = stack.kubernetes("GET", f"{MAPS}?labelSelector=slipway.dev/context=index")["items"]
    return len([item for item in listed if '"bytes":2' in item["data"]["index.json"]])
