"""What a receiver checks: the headers of one delivery.

Pure. Owns the form of the signature.

Source: Standard Webhooks 1.0, "Webhook headers" and "Signature scheme".
"""

import base64
import hashlib
import hmac

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"


def headers(key: bytes, message_id: str, body: bytes, *, now: float) -> dict[str, str]:
    """The id is the same at every try, so that receivers can drop what they have; the time is that of this try."""
    timestamp = str(int(now))
    return {ID: message_id, TIMESTAMP: timestamp, SIGNATURE: f"v1,{sign(key, message_id, timestamp, body)}"}


def sign(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    """The signature in base64."""
    signed = b".".join((message_id.encode(), timestamp.encode(), body))
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
