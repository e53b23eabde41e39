"""JSON Web Tokens without a valid signature, which need no key."""

import base64
import json
from typing import Any


def jwt_of(payload: bytes) -> str:
    """A token in the form of a JWT, with this payload."""
    return f"e30.{base64.urlsafe_b64encode(payload).decode().rstrip('=')}.sig"


def forged(**claims: Any) -> str:
    """An unsigned token with these claims, an issuer and an audience."""
    return jwt_of(json.dumps({"iss": "https://issuer.test", "aud": ["slipway"], **claims}).encode())
