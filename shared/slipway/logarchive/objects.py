"""Implements `ArchiveObjects` in a folder, in S3, in Google Cloud Storage or in Azure.

Owns the accepted addresses, the deadline of a call, and the meaning of the library's errors. The library reads
credentials from the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`) or uses the identity of the pod. An endpoint without
TLS is refused unless it is on this machine, or the operator allows it with the library's own variable
(`AWS_ALLOW_HTTP=true`).
"""

import asyncio
import importlib
import ipaddress
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from slipway.errors import DeniedError, PermanentError, TooLargeError, UnavailableError
from slipway.logarchive.archive import ObjectSize

if TYPE_CHECKING:
    from obstore.store import ObjectStore

CALL_S: Final = 15.0
"""Deadline of one call in seconds, including its retries."""
RETRIES_MAX: Final = 2
OBJECT_BYTES_MAX: Final = 32 * 1024 * 1024
"""We write no larger objects, so a larger one is refused."""
SCHEMES: Final = ("file", "s3", "gs", "az")
_ENDPOINTS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "s3": ("AWS_ALLOW_HTTP", ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")),
    "az": ("AZURE_ALLOW_HTTP", ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")),
}
"""{scheme: (variable that allows plain HTTP, variables from which the library reads an endpoint)}"""
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")
"""Parts of server messages about a missing bucket: a missing archive must not be treated as an empty one."""
_NO_PLACE: Final = "there is no bucket for the archive of logs; create it, or correct SLIPWAY_LOG_ARCHIVE_URL"
T = TypeVar("T")


def check_archive_url(url: str) -> None:
    """Raise ValueError when `url` is not a valid address of an archive."""
    if not url:
        return
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ValueError("must begin with s3://, gs://, az:// or file:///")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("must be an address without credentials, query and fragment; credentials come from AWS_*, ...")
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise ValueError("must name an absolute folder: file:///var/lib/slipway/logs")
    elif not parts.netloc:
        raise ValueError(f"must name a bucket: {parts.scheme}://bucket/prefix")
    if any(part in (".", "..") for part in unquote(parts.path).split("/")):
        raise ValueError("must not contain . or .. as a part of its path")


def open_archive(url: str, *, call_s: float = CALL_S, env: Mapping[str, str] = os.environ) -> "StoredObjects":
    """Open the archive at that address; `call_s` is the deadline of each call in seconds.

    Raises `PermanentError` when the settings of the library are wrong.
    """
    check_archive_url(url)
    may_be_plain = _may_be_plain(url, env)
    # The library has 15 MB of code, so a service without an archive does not load it.
    store = importlib.import_module("obstore.store")
    try:
        if url.startswith("file:"):
            folder = Path(unquote(urlsplit(url).path))
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            opened = store.LocalStore(folder)
        else:
            opened = store.from_url(
                url,
                client_options={"timeout": "10s", "connect_timeout": "5s", "allow_http": may_be_plain},
                retry_config={"max_retries": RETRIES_MAX},
            )
    except Exception as error:
        raise PermanentError(f"SLIPWAY_LOG_ARCHIVE_URL: {error}") from error
    return StoredObjects(opened, call_s)


def _may_be_plain(url: str, env: Mapping[str, str]) -> bool:
    """Whether the endpoint of that archive is plain HTTP and is allowed. Raises `PermanentError` when it is not
    allowed."""
    allows, names = _ENDPOINTS.get(urlsplit(url).scheme, ("", ()))
    plain = [name for name in names if env.get(name, "").lower().startswith("http://")]
    if not plain:
        return False
    if env.get(allows, "").lower() in ("true", "1") or all(_is_here(env[name]) for name in plain):
        return True
    raise PermanentError(
        f"SLIPWAY_LOG_ARCHIVE_URL: {plain[0]} has no TLS, so logs would be sent in plain text; use https://, or set "
        f"{allows}=true if the network is trusted"
    )


def _is_here(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class StoredObjects:
    """An archive in an object store or a folder; see the module's docstring."""

    def __init__(self, store: "ObjectStore", call_s: float = CALL_S) -> None:
        self._store, self._call_s = store, call_s
        self._api: Any = importlib.import_module("obstore")
        self._errors: Any = importlib.import_module("obstore.exceptions")

    async def create(self, path: str, data: bytes) -> bool:
        try:
            await self._written(path, data, mode="create")
        except self._errors.AlreadyExistsError:
            return False
        return True

    async def put(self, path: str, data: bytes) -> None:
        await self._written(path, data, mode="overwrite")

    async def get(self, path: str) -> bytes | None:
        async def read() -> bytes:
            found = await self._api.get_async(self._store, path)
            if found.meta["size"] > OBJECT_BYTES_MAX:
                raise TooLargeError(f"the object {path} of the archive is too large for a log of Slipway")
            return bytes(await found.bytes_async())

        try:
            return await self._called(read)
        except FileNotFoundError:
            return None

    async def paths(self, folder: str, *, after: str = "", limit: int = 1000) -> list[str]:
        return [each.path for each in await self.sizes(folder, after=after, limit=limit)]

    async def sizes(self, folder: str, *, after: str = "", limit: int = 1000) -> list[ObjectSize]:
        async def read() -> list[ObjectSize]:
            found: list[ObjectSize] = []
            async for page in self._api.list(self._store, prefix=folder.rstrip("/"), offset=after or None):
                found += [
                    ObjectSize(each["path"], each["size"], int(each["last_modified"].timestamp() * 1000))
                    for each in page
                ]
                # A folder lists its files in no order, so it must be read to the end.
                if len(found) >= limit and not self._is_folder:
                    break
            return sorted(found)[:limit]

        try:
            return await self._called(read)
        except FileNotFoundError:
            return []

    async def delete(self, paths: list[str]) -> None:
        for path in paths:
            try:
                await self._called(lambda path=path: self._api.delete_async(self._store, path))
            except FileNotFoundError:
                continue

    async def _written(self, path: str, data: bytes, *, mode: str) -> None:
        try:
            await self._called(lambda: self._api.put_async(self._store, path, data, mode=mode))
        except FileNotFoundError as error:
            # A write needs only the bucket, so this error means that the bucket is missing.
            raise UnavailableError(f"{_NO_PLACE}: {_said(error)}") from error

    @property
    def _is_folder(self) -> bool:
        return type(self._store).__name__ == "LocalStore"

    async def _called(self, call: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(self._call_s):
                return await call()
        except TimeoutError as error:
            raise UnavailableError(f"the archive of logs did not answer within {self._call_s:g} s") from error
        except FileNotFoundError as error:
            if _is_without_bucket(error):
                raise UnavailableError(f"{_NO_PLACE}: {_said(error)}") from error
            raise
        except self._errors.AlreadyExistsError:
            raise
        except (self._errors.PermissionDeniedError, self._errors.UnauthenticatedError, PermissionError) as error:
            raise DeniedError(f"the archive of logs refuses its credentials: {_said(error)}") from error
        except (self._errors.BaseError, OSError) as error:
            why = _NO_PLACE if _is_without_bucket(error) else "the archive of logs does not answer"
            raise UnavailableError(f"{why}: {_said(error)}") from error


def _is_without_bucket(error: BaseException) -> bool:
    return any(word in str(error) for word in _NO_BUCKET)


def _said(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300]
