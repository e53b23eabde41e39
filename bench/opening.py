"""HTTP sessions for a local stack, which send its token and trust its API server.

Owns only that. The API server, the REST API and `/metrics` accept the same token.
"""

import base64
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import yaml


def session_into(kubeconfig: Path, *, limit: int = 0, **options: Any) -> aiohttp.ClientSession:
    """Return a session for the stack of this kubeconfig; `limit` is the number of connections, 0 for no limit."""
    config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    authority = base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
    connector = aiohttp.TCPConnector(limit=limit, ssl=ssl.create_default_context(cadata=authority))
    return aiohttp.ClientSession(connector=connector, headers=opened_by(config["users"][0]["user"]["token"]), **options)


def opened_by(token: str) -> dict[str, str]:
    """Return the headers of a caller with this token."""
    return {"Authorization": f"Bearer {token}"}
