"""The access to an API server: host, TLS and token, read from a kubeconfig.

Reads client certificates, tokens and token files; no exec plugins: a test account has none.
"""

import base64
import ssl
import tempfile
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
import yaml

from tests.conformance.kubelets.objects import Json


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the API server, and the credentials."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    token: str = ""

    @property
    def head(self) -> str:
        """The headers of every request."""
        lines = f"Host: {self.host}:{self.port}\r\nUser-Agent: kubelet-stand-in\r\n"
        return lines + (f"Authorization: Bearer {self.token}\r\n" if self.token else "")


def read_access(path: Path) -> Access:
    """Return the access of the kubeconfig's current context.

    Raises:
        ValueError: it is no kubeconfig, or uses a feature that is not supported here.
    """
    config = cast(Json, yaml.safe_load(path.read_text(encoding="utf-8")))
    context = _named(config, "contexts", config.get("current-context"))["context"]
    cluster = _named(config, "clusters", context["cluster"])["cluster"]
    user: Json = _named(config, "users", context["user"]).get("user") or {}
    if "exec" in user or "auth-provider" in user:
        raise ValueError(f"{path}: simulated nodes take client certificates and tokens only")
    url = urlsplit(str(cluster["server"]))
    tls = _context(path.parent, cluster, user) if url.scheme == "https" else None
    return Access(
        host=url.hostname or "",
        port=url.port or (443 if tls else 80),
        tls=tls,
        token=str(user.get("token") or "") or _file(path.parent, user.get("tokenFile")),
    )


def _named(config: Json, kind: str, name: Any) -> Json:
    for item in cast(list[Json], config.get(kind) or []):
        if item.get("name") == name:
            return item
    raise ValueError(f"the kubeconfig has no {kind} named {name!r}")


def _context(folder: Path, cluster: Json, user: Json) -> ssl.SSLContext:
    authority = _blob(folder, cluster, "certificate-authority")
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    certificate, key = _blob(folder, user, "client-certificate"), _blob(folder, user, "client-key")
    if certificate and key:
        # The library reads certificates only from files.
        with tempfile.NamedTemporaryFile(suffix=".pem") as file:
            file.write(key + b"\n" + certificate)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _blob(folder: Path, words: Json, name: str) -> bytes:
    if words.get(f"{name}-data"):
        return base64.b64decode(str(words[f"{name}-data"]))
    return (folder / str(words[name])).read_bytes() if words.get(name) else b""


def _file(folder: Path, name: Any) -> str:
    return (folder / str(name)).read_text(encoding="utf-8").strip() if name else ""
