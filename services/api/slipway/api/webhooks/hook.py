"""A webhook as it is stored: its URL, its event filters and its key, converted to a Secret and back.

Pure. Owns the form of the Secret, the choice of events, and the signed headers of a delivery, which the receiver
verifies. Must not know how a message is sent.

Invariants: outside of the Secret, the key appears only as bytes for signing, and once as text when it is created.
`repr` shows neither the key nor the URL, which may contain a token.

Source: Standard Webhooks 1.0, "Symmetric keys" (the form of a key), "Webhook headers" and "Signature scheme".
"""

import base64
import binascii
import hashlib
import hmac
from typing import Any

import msgspec

from slipway.api.webhooks.formats import BodyFormat
from slipway.crd.meta import ANNOTATION_CREATED, LABEL_MANAGED_BY, LABEL_WEBHOOK, MANAGED_BY, RawObject
from slipway.errors import InvalidError
from slipway.kube.objects import Secret
from slipway.model.events import AllocationEvent
from slipway.model.lifecycle import Event
from slipway.model.times import parse_time

SELECTOR = f"{LABEL_WEBHOOK}=true"
KEY_PREFIX = "whsec_"
KEY_BYTES_MIN, KEY_BYTES_MAX, KEY_BYTES = 24, 64, 32
CLOCKS_S = 60.0
"""The largest assumed difference between the clock that stamps events and the one that stamps webhooks."""
_NAME_PREFIX = "slipway-webhook-"
_CONFIG, _KEY = "config", "key"


class Config(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The configuration of a webhook without its key. An empty filter matches all events."""

    url: str
    events: list[str] = []
    workspaces: list[str] = []
    results: list[str] = []
    description: str = ""
    enabled: bool = True
    format: BodyFormat = BodyFormat.CLOUDEVENTS
    page_url: str = ""

    def __repr__(self) -> str:
        return f"Config(enabled={self.enabled})"


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """One webhook. `created_at` is in epoch seconds; earlier events are not sent to it."""

    name: str
    config: Config
    key: bytes
    created_at: float = 0.0
    created: str = ""
    uid: str = ""
    resource_version: str = ""

    def __repr__(self) -> str:
        return f"Webhook({self.name!r})"

    def wants(self, event: AllocationEvent) -> bool:
        """Whether the event must be sent to this webhook."""
        config = self.config
        if not config.enabled or parse_time(event.time) < self.created_at - CLOCKS_S:
            return False
        if config.events and event.type.value not in config.events:
            return False
        if config.workspaces and event.namespace not in config.workspaces:
            return False
        return not config.results or (event.type is Event.TERMINATED and event.data.get("result") in config.results)


def secret_name(name: str) -> str:
    """Return the name of a webhook's Secret."""
    return f"{_NAME_PREFIX}{name}"


def to_secret(webhook: Webhook, namespace: str) -> RawObject:
    """Return the Secret that stores the webhook; with its resourceVersion when the webhook was read before."""
    metadata: dict[str, Any] = {
        "name": secret_name(webhook.name),
        "namespace": namespace,
        "labels": {LABEL_WEBHOOK: "true", LABEL_MANAGED_BY: MANAGED_BY},
    }
    if webhook.resource_version:
        metadata |= {"resourceVersion": webhook.resource_version, "uid": webhook.uid}
    data = {_CONFIG: msgspec.json.encode(webhook.config), _KEY: webhook.key}
    encoded = {name: base64.b64encode(value).decode() for name, value in data.items()}
    return {"metadata": metadata, "type": "Opaque", "data": encoded}


def of_secret(secret: Secret) -> Webhook | None:
    """Return the webhook in a Secret; None when Slipway did not write the Secret."""
    meta = secret.metadata
    try:
        config = msgspec.json.decode(base64.b64decode(secret.data.get(_CONFIG, "")), type=Config)
        key = base64.b64decode(secret.data.get(_KEY, ""))
    except (binascii.Error, msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not meta.name.startswith(_NAME_PREFIX) or not key:
        return None
    # A webhook that was moved here keeps its original creation time, so that no event since then is lost for it.
    created = meta.annotations.get(ANNOTATION_CREATED) or meta.creation_timestamp or ""
    return Webhook(
        name=meta.name.removeprefix(_NAME_PREFIX),
        config=config,
        key=key,
        created_at=parse_time(created) if created else 0.0,
        created=created,
        uid=meta.uid,
        resource_version=meta.resource_version,
    )


def key_text(key: bytes) -> str:
    """Return the key in the text form for its receiver."""
    return KEY_PREFIX + base64.b64encode(key).decode()


def parse_key(text: str) -> bytes:
    """Parse a key `whsec_...`. Raises InvalidError, whose message does not repeat the key."""
    try:
        key = base64.b64decode(text.removeprefix(KEY_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(KEY_PREFIX) or not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        raise InvalidError(
            f"must be {KEY_PREFIX} and the base64 of {KEY_BYTES_MIN} to {KEY_BYTES_MAX} random bytes; without it a "
            "key is generated"
        )
    return key


ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"


def headers(key: bytes, message_id: str, body: bytes, *, now: float) -> dict[str, str]:
    """Return the headers of one try.

    The id is the same for each try, so that receivers can drop duplicates; the timestamp is that of this try.
    """
    timestamp = str(int(now))
    return {ID: message_id, TIMESTAMP: timestamp, SIGNATURE: f"v1,{sign(key, message_id, timestamp, body)}"}


def sign(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    """Return the signature in base64."""
    signed = b".".join((message_id.encode(), timestamp.encode(), body))
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
