"""The HTTP extenders of a pool as facts: which allocations each is called for, its weight and its timeout. Pure.

The field names are those of kube-scheduler (`Extender` of KubeSchedulerConfiguration).
"""

import msgspec

from slipway.model.resources import Resources

TIMEOUT_S = 5.0
"""kube-scheduler's DefaultExtenderTimeout."""


class ExtenderTls(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """TLS settings for an https extender. Files are paths in the containers of the services that call it."""

    insecure: bool = False
    server_name: str = ""
    ca_file: str = ""
    ca_data: str = ""
    """PEM"""
    cert_file: str = ""
    key_file: str = ""


class ExtenderFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One extender. An empty verb is never called."""

    url: str
    filter_verb: str = ""
    prioritize_verb: str = ""
    preempt_verb: str = ""
    bind_verb: str = ""
    weight: int = 1
    timeout_s: float = TIMEOUT_S
    node_cache_capable: bool = False
    """the extender caches the nodes: only their names are sent"""
    managed_resources: tuple[str, ...] = ()
    """the extender is called only for pods that request one of these; for all pods when empty"""
    ignored_resources: tuple[str, ...] = ()
    """those of `managed_resources` that only the extender accounts for, not the scheduler"""
    ignorable: bool = False
    """scheduling continues without the extender when it fails"""
    tls: ExtenderTls = ExtenderTls()

    @property
    def name(self) -> str:
        """Its address without the scheme: its name in messages and metrics."""
        return self.url.partition("://")[2].rstrip("/")

    def manages(self, requests: Resources) -> bool:
        """Whether the extender is called for pods with these requests."""
        return not self.managed_resources or any(name in requests.amounts for name in self.managed_resources)
