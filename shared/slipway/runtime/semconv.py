"""The names that OpenTelemetry gives to what a span tells: HTTP, messaging, Kubernetes.

Owns the attributes, as data. Pure; knows no span. Source: https://opentelemetry.io/docs/specs/semconv/
"""

from typing import Final

Attributes = dict[str, str | bool | int | float]

METHODS: Final = frozenset(
    {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "WEBSOCKET"}
)
OTHER_METHOD: Final = "_OTHER"


def method_of(text: str) -> str:
    """The method as a span and a metric may name it: a client may send any word."""
    return text if text in METHODS else OTHER_METHOD


def asks(method: str, target: str) -> Attributes:
    """Of a span that calls an HTTP server; of a target the path is told, not what is asked of it."""
    return {"http.request.method": method, "url.path": target.partition("?")[0]}


def sends(stream: str) -> Attributes:
    """Of a span that puts a message into a stream."""
    return {
        "messaging.system": "redis",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": stream,
    }


def processes(stream: str, *, group: str, message_id: str, deliveries: int) -> Attributes:
    """Of a span that does what a message asks for; `message_id` is the id of the entry."""
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
    """Of what concerns one pod; what is not known yet is left out."""
    told = {"k8s.namespace.name": namespace, "k8s.pod.name": name, "k8s.pod.uid": uid, "k8s.node.name": node}
    return {key: value for key, value in told.items() if value}
