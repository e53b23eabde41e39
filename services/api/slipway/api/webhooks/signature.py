"""The signed headers of one delivery, which a receiver verifies.

Pure. Owns the form of the signature.

Source: Standard Webhooks 1.0, "Webhook headers" and "Signature scheme".
"""

import base64
import hashlib
import hmac

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"


def headers(key: bytes, message_id: str, body: bytes, *, now: float) -> dict[str, str]:
    """Return the headers of one try.

    The id is the same at each try, so that receivers can drop duplicates; the timestamp is that of this try.
    """
    timestamp = str(int(now))
    return {ID: message_id, TIMESTAMP: timestamp, SIGNATURE: f"v1,{sign(key, message_id, timestamp, body)}"}


def sign(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    """Return the signature in base64."""
    signed = b".".join((message_id.encode(), timestamp.encode(), body))
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
