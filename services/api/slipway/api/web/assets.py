"""`/assets/...`: the scripts and styles of our pages, and the vendored files that they need.

Owns which files are served, their media types and their ETags. Each file is read, compressed and hashed once, at its
first request. No other file of the package is served: the names are a closed list.

The modules of the page (`pages/`) import each other by relative paths, so their addresses begin with one digest of all
of them: `/assets/pages/DIGEST/main.js`. While replicas of two versions answer, a request may name the digest of the
other version. Then the answer is this version's file, and the browser must not cache it.
"""

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from slipway.api.http.etags import is_known
from slipway.errors import NotFoundError

PATH = "/assets/{path:path}"
_FOLDER = Path(__file__).parents[1] / "assets"
_JS, _CSS = "text/javascript", "text/css"
_OURS = {
    "docs/docs.css": _CSS,
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
_PAGES = "pages/"
_MODULES = Path(__file__).parents[1] / "pages"
_SUFFIXES = {".js": _JS, ".mjs": _JS, ".css": _CSS}
_CACHE = {True: "public, max-age=31536000, immutable", False: "no-cache"}
"""{whether a file never changes: its Cache-Control}. The name of a vendored file contains its version, and the address
of a page's module contains the digest of all modules, so these never change."""


class Asset(NamedTuple):
    """A file as it is sent: plain, compressed with gzip, and its ETag."""

    plain: bytes
    compressed: bytes
    tag: str


async def asset(request: Request) -> Response:
    """Return one file."""
    path = str(request.path_params["path"])
    is_kept = path in _VENDORED
    if path.startswith(_PAGES):
        digest, _, name = path.removeprefix(_PAGES).partition("/")
        is_kept, path = digest == pages_digest(), _PAGES + name
    media_type = files().get(path)
    if media_type is None:
        raise NotFoundError(f"there is no asset {path[:128]!r}")
    found = load(path)
    headers = {"Cache-Control": _CACHE[is_kept], "ETag": found.tag, "Vary": "Accept-Encoding"}
    if is_known(request, found.tag):
        return Response(status_code=304, headers=headers)
    is_small = "gzip" in request.headers.get("accept-encoding", "")
    if is_small:
        headers["Content-Encoding"] = "gzip"
    return Response(found.compressed if is_small else found.plain, headers=headers, media_type=media_type)


@cache
def load(path: str) -> Asset:
    """Load a file of the list."""
    plain = (_folder(path) / path).read_bytes()
    return Asset(plain, gzip.compress(plain, mtime=0), f'"{hashlib.sha256(plain).hexdigest()[:24]}"')


@cache
def files() -> dict[str, str]:
    """Return {path: media type} of all files that are served."""
    return {**_OURS, **_VENDORED, **page_files()}


@cache
def page_files() -> dict[str, str]:
    """Return {path: media type} of all files of the page."""
    vendor = _MODULES / "vendor"
    found = [*_MODULES.glob("*.*"), *vendor.glob("*.*"), *vendor.glob("*/*.*")]
    paths = sorted(each.relative_to(_MODULES.parent).as_posix() for each in found if each.suffix in _SUFFIXES)
    return {path: _SUFFIXES[Path(path).suffix] for path in paths}


@cache
def pages_digest() -> str:
    """Return a digest that changes with any file of the page."""
    whole = hashlib.sha256()
    for path in page_files():
        whole.update(f"{path} {load(path).tag}\n".encode())
    return whole.hexdigest()[:16]


def _folder(path: str) -> Path:
    return _MODULES.parent if path.startswith(_PAGES) else _FOLDER
