"""Whether conformance is asked for: `make conformance` sets SLIPWAY_CONFORMANCE=1; `make test` needs no Go."""

import os

import pytest


def require_conformance() -> None:
    """Skips a test that needs a real Kubernetes API server where none is asked for."""
    if os.environ.get("SLIPWAY_CONFORMANCE") != "1":
        pytest.skip("needs a real Kubernetes API server: make conformance")


def require_own_cluster() -> None:
    """Skips a test that starts a control plane, also where KUBECONFIG names another cluster to run on."""
    require_conformance()
    if os.environ.get("KUBECONFIG"):
        pytest.skip("needs a control plane that nobody else uses, and KUBECONFIG names one")
