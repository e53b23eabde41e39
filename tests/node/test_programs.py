"""What becomes of a machine that lacks something, and of what a cluster would leave on it."""

from pathlib import Path

import pytest

from tests.conformance.cluster.binaries import InstallError, install_debian
from tests.node.nodes import RECORDS, network_files


def test_an_install_that_fails_is_no_machine_that_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is an apt-get and we are root, its failure is an error in its own words, and nothing is skipped."""
    apt = tmp_path / "apt-get"
    apt.write_text("#!/bin/sh\necho no such package >&2\nexit 100\n")
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(InstallError, match="no such package"):
        install_debian("anything")


@pytest.mark.usefixtures("cluster")
def test_what_the_network_keeps_is_seen() -> None:
    """While a cluster is up its plugins keep records, in a place that goes with it."""
    found = network_files()
    (RECORDS / "record").touch()
    assert network_files() - found == {f"file {RECORDS / 'record'}"}
