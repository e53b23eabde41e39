"""The attribute names of OpenTelemetry's semantic conventions: HTTP, messaging, Kubernetes.

This module owns the attributes, as data. It is pure and knows no span. Source:
https://opentelemetry.io/docs/specs/semconv/
"""

from typing import Final

Attributes = dict[str, str | bool | int | float]

METHODS: Final = frozenset(
    {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "WEBSOCKET"}
)
OTHER_METHOD: Final = "_OTHER"


def method_of(text: str) -> str:
    """Return the method for a span or a metric: `_OTHER` for an unknown one, because a client may send any word."""
    return text if text in METHODS else OTHER_METHOD


def asks(method: str, target: str) -> Attributes:
    """Return the attributes of a span that calls an HTTP server. They contain the path of the target, not its query."""
    return {"http.request.method": method, "url.path": target.partition("?")[0]}


def sends(stream: str) -> Attributes:
    """Return the attributes of a span that adds a message to a stream."""
    return {
        "messaging.system": "redis",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": stream,
    }


def processes(stream: str, *, group: str, message_id: str, deliveries: int) -> Attributes:
    """Return the attributes of a span that handles a message; `message_id` is the id of the entry."""
    return {
        "messaging.system": "redis",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": stream,
        "messaging.consumer.group.name": group,
        "messaging.message.id": message_id,
        "slipway.message.deliveries": deliveries,
    }


def pod(namespace: str, name: str, uid: str, node: str) -> Attributes:
    """Return the attributes of a span about one pod, without those that are not known yet."""
    told = {"k8s.namespace.name": namespace, "k8s.pod.name": name, "k8s.pod.uid": uid, "k8s.node.name": node}
    return {key: value for key, value in told.items() if value}
