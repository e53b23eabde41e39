"""`kubectl slipway`: the wheel brings the plugin, and kubectl finds it on PATH."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.runtime.service import version
from tests.support.kubectl_program import find_kubectl


def test_kubectl_runs_the_command() -> None:
    """The plugin gets all arguments, as `slipway` does."""
    kubectl = find_kubectl()
    if kubectl is None:
        pytest.skip("no kubectl here")
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [kubectl, "slipway", "--version"], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert version() in done.stdout
