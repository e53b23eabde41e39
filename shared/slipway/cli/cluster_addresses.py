"""Finds the cluster for a verb that reads it directly: the named one, the environment, or the local stack.

Owns that order. Must not open a connection.
"""

import os
from pathlib import Path
from typing import NamedTuple

from slipway.local.layout import Layout, default_folder, is_alive
from slipway.runtime import redis_url


class ClusterAddresses(NamedTuple):
    """The addresses of a cluster. An empty `kubeconfig` is the pod's own account, or kubectl's default file.

    `is_local`: whether it is the stack of `slipway up`.
    """

    kubeconfig: str
    redis_url: str
    is_local: bool = False


def find_addresses(kubeconfig: str) -> ClusterAddresses:
    """Return the named cluster, else the environment's, else the local stack's, else kubectl's default."""
    named = kubeconfig or os.environ.get("KUBECONFIG", "")
    redis = redis_url.from_environment(os.environ)
    state = Layout(default_folder()).read_state()
    if state is not None and any(is_alive(member) for member in state.members):
        if not named and "KUBERNETES_SERVICE_HOST" not in os.environ:
            return ClusterAddresses(state.kubeconfig, redis or state.redis_url, is_local=True)
        if named == state.kubeconfig:
            return ClusterAddresses(named, redis or state.redis_url, is_local=True)
    return ClusterAddresses(named, redis)


def has_cluster(place: ClusterAddresses) -> bool:
    """Whether any source says where Kubernetes is."""
    is_inside = "KUBERNETES_SERVICE_HOST" in os.environ
    return bool(place.kubeconfig) or is_inside or (Path.home() / ".kube" / "config").is_file()
