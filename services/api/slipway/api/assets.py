"""`/assets/...`: the scripts and styles of our pages, and what is vendored for them.

Owns which files are served, their media types and their tags. Each is read, compressed and hashed once, when it is
first asked for. Nothing else of the package can be asked for: the names are a closed list.
"""

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from slipway.errors import NotFoundError

PATH = "/assets/{path:path}"
_FOLDER = Path(__file__).parent / "assets"
_JS, _CSS = "text/javascript", "text/css"
_OURS = {
    "terminal/terminal.js": _JS,
    "terminal/terminal.css": _CSS,
    "trace/trace.js": _JS,
    "trace/trace.css": _CSS,
    "waiting/waiting.js": _JS,
    "waiting/waiting.css": _CSS,
}
_VENDORED = {
    "terminal/vendor/xterm-6.0.0.mjs": _JS,
    "terminal/vendor/xterm-6.0.0.css": _CSS,
    "terminal/vendor/xterm-addon-fit-0.11.0.mjs": _JS,
}
_CACHE = {True: "public, max-age=31536000, immutable", False: "no-cache"}
"""A vendored file has its version in its name."""


class Asset(NamedTuple):
    """A file as it is sent."""

    plain: bytes
    compressed: bytes
    tag: str


async def asset(request: Request) -> Response:
    """One file."""
    path = str(request.path_params["path"])
    media_type = _OURS.get(path) or _VENDORED.get(path)
    if media_type is None:
        raise NotFoundError(f"there is no asset {path[:128]!r}")
    found = load(path)
    headers = {"Cache-Control": _CACHE[path in _VENDORED], "ETag": found.tag, "Vary": "Accept-Encoding"}
    if found.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    is_small = "gzip" in request.headers.get("accept-encoding", "")
    if is_small:
        headers["Content-Encoding"] = "gzip"
    return Response(found.compressed if is_small else found.plain, headers=headers, media_type=media_type)


@cache
def load(path: str) -> Asset:
    """A file of the list."""
    plain = (_FOLDER / path).read_bytes()
    return Asset(plain, gzip.compress(plain, mtime=0), f'"{hashlib.sha256(plain).hexdigest()[:24]}"')
