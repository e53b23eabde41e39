"""Whether conformance is requested: `make conformance` sets SLIPWAY_CONFORMANCE=1; `make test` needs no Go."""

import os

import pytest


def require_conformance() -> None:
    """Skip a test that needs a real Kubernetes API server when conformance is not requested."""
    if os.environ.get("SLIPWAY_CONFORMANCE") != "1":
        pytest.skip("needs a real Kubernetes API server: make conformance")


def require_own_cluster() -> None:
    """Skip a test that starts its own control plane, also when KUBECONFIG names another cluster."""
    require_conformance()
    if os.environ.get("KUBECONFIG"):
        pytest.skip("needs a control plane that nobody else uses, and KUBECONFIG names one")
