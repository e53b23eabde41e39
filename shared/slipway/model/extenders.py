"""A pool's HTTP extenders as facts: who is asked about which work, with what weight and patience. Pure.

The words are kube-scheduler's (`Extender` of KubeSchedulerConfiguration), so that whoever knows those knows these.
"""

import msgspec

from slipway.model.resources import Resources

TIMEOUT_S = 5.0
"""kube-scheduler's DefaultExtenderTimeout."""


class ExtenderTls(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an https extender is met. Files are paths in the containers of those who call it."""

    insecure: bool = False
    server_name: str = ""
    ca_file: str = ""
    ca_data: str = ""
    """PEM"""
    cert_file: str = ""
    key_file: str = ""


class ExtenderFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One extender. A verb that is empty is not asked."""

    url: str
    filter_verb: str = ""
    prioritize_verb: str = ""
    preempt_verb: str = ""
    bind_verb: str = ""
    weight: int = 1
    timeout_s: float = TIMEOUT_S
    node_cache_capable: bool = False
    """it knows the nodes: names are sent instead of them"""
    managed_resources: tuple[str, ...] = ()
    """only what asks for one of these is its business; everything when empty"""
    ignored_resources: tuple[str, ...] = ()
    """those of them that only it counts"""
    ignorable: bool = False
    """work goes on without it when it fails"""
    tls: ExtenderTls = ExtenderTls()

    @property
    def name(self) -> str:
        """Its address without the scheme: what people and metrics call it."""
        return self.url.partition("://")[2].rstrip("/")

    def manages(self, requests: Resources) -> bool:
        """Whether work with these requests is its business."""
        return not self.managed_resources or any(name in requests.amounts for name in self.managed_resources)
