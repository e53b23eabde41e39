"""The sockets of pods are in a folder with a short path, which only this account may enter."""

from pathlib import Path

import pytest

from slipway.local.node.disk import PodDisk, remove_sockets

UID = "8dc44528-c0c9-4d64-b9ea-2799c6b9d3da"
SOCKET_CHARS = 107
"""The maximum length of the path of a socket on Linux."""
NAME = "kernel-3802b7e8-320a-4dd5-8f81-5be5fcda9e09-ipc-1"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder of nodes with a long path."""
    folder = tmp_path / ("long" * 20) / "nodes"
    (folder / "pods").mkdir(parents=True)
    return folder


def test_a_socket_of_a_kernel_has_a_path_that_is_short_enough(state: Path) -> None:
    """The socket of a kernel has a short path, wherever the data folder is, and no other account can enter its
    folder."""
    folder = PodDisk(state / "pods", UID).sockets()
    assert len(str(folder / NAME)) <= SOCKET_CHARS
    assert [each.stat().st_mode & 0o077 for each in (folder, folder.parent)] == [0, 0]
    remove_sockets(state)


def test_a_node_that_was_started_again_finds_the_folder(state: Path) -> None:
    """A restarted node finds the folder, because running pods have their sockets there."""
    folder = PodDisk(state / "pods", UID).sockets()
    assert PodDisk(state / "pods", UID).sockets() == folder
    remove_sockets(state)


def test_nothing_is_left(state: Path) -> None:
    """Nothing is left in the folder of a removed pod, and of removed nodes."""
    disk = PodDisk(state / "pods", UID)
    folder = disk.sockets()
    (folder / "a").touch()
    disk.remove()
    assert not folder.exists()
    remove_sockets(state)
    assert not folder.parent.exists()
    remove_sockets(state)


def test_a_folder_that_others_may_enter_is_not_used_again(state: Path) -> None:
    """A folder that other accounts may enter is not used again: below /tmp it may have been cleaned up and created by
    another account."""
    folder = PodDisk(state / "pods", UID).sockets().parent
    folder.chmod(0o755)
    fresh = PodDisk(state / "pods", UID).sockets().parent
    assert fresh != folder
    remove_sockets(state)
    folder.chmod(0o700)
    (folder / UID[:8]).rmdir()
    folder.rmdir()
