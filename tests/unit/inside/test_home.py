"""The home of a program of ours, in images with and without one."""

from pathlib import Path

import pytest

from slipway.crd.kinds import HOME_PATH
from slipway.inside import home


def test_a_home_of_the_image_is_kept(tmp_path: Path) -> None:
    """A writable home of the image is kept."""
    env = {"HOME": str(tmp_path), "A": "1"}
    assert home.with_home(env) == env


@pytest.mark.parametrize("broken", ["", "/nowhere/at/all", "/etc/hostname"])
def test_without_one_it_is_the_folder_of_the_rank(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a home, with a missing one, or with one that is no folder, the home is the folder of the rank."""
    monkeypatch.setattr(home, "OF_RANK", str(tmp_path))
    assert home.with_home({"HOME": broken})["HOME"] == str(tmp_path)


def test_without_that_folder_too_it_is_the_place_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that folder too, as in a pod whose image chooses the user, the home is the folder for temporary files."""
    monkeypatch.setattr(home, "OF_RANK", "/nowhere/at/all")
    assert home.with_home({"HOME": "", "TMPDIR": "/var/tmp"})["HOME"] == "/var/tmp"
    assert home.with_home({})["HOME"] == "/tmp"


def test_the_folder_is_where_the_pod_has_it() -> None:
    """The folder is where the pod has it: the program inside imports no code of the services, so it repeats the
    path."""
    assert home.OF_RANK == HOME_PATH
