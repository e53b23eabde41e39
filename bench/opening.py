"""How a benchmark gets into a local stack: HTTP sessions that send its token and trust its API server.

Owns that and nothing else. The token opens the API server, the REST API and `/metrics` alike.
"""

import base64
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import yaml


def session_into(kubeconfig: Path, *, limit: int = 0, **options: Any) -> aiohttp.ClientSession:
    """A session for the stack that the kubeconfig is of; `limit` of connections, 0 for none."""
    config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    authority = base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
    connector = aiohttp.TCPConnector(limit=limit, ssl=ssl.create_default_context(cadata=authority))
    return aiohttp.ClientSession(connector=connector, headers=opened_by(config["users"][0]["user"]["token"]), **options)


def opened_by(token: str) -> dict[str, str]:
    """The headers of a caller that has the token."""
    return {"Authorization": f"Bearer {token}"}
