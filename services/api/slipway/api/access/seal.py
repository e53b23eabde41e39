"""Sealed texts: data that a browser stores for the api and can neither read nor change.

Owns the keys and the format of a sealed text: a struct, packed, compressed, then encrypted and authenticated by Fernet
of the package `cryptography`. The tag of a struct is its purpose, so a text that was sealed for one purpose cannot be
opened for another.

Keys are the files `*.key` of a folder (a mounted Secret) that all replicas share. A file contains one Fernet key, or
several, one a line. Every key opens texts. The key whose file name is last in the alphabet seals texts, once this
process has known it for `SETTLE_S`: other replicas may get a new key later, and have to open texts that are sealed
here. Without a folder the process generates a key of its own, which is lost when the process ends.

Invariants: a text that no key opens gives None, and no error. While the folder cannot be read, the keys that were read
last stay in use. No key is logged.

Source: https://github.com/fernet/spec/blob/master/Spec.md
"""

import asyncio
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from slipway.errors import UnavailableError
from slipway.runtime import log
from slipway.runtime.clock import Clock

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

SETTLE_S = 180.0
"""A kubelet may need this long to update a changed Secret in every replica."""
SUFFIX = ".key"
SEALED_CHARS_MAX = 3_900
"""Browsers store 4,096 bytes of a cookie, including its name and attributes."""
FILES_MAX, FILE_BYTES_MAX = 32, 4_096
T = TypeVar("T", bound=msgspec.Struct)

_log = log.get_logger(__name__)


class SealKeys:
    """The keys that open texts now, and the key that seals them."""

    def __init__(self, folder: Path | None, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._keys: dict[str, Fernet] = {}
        """{text of a key: its cipher}, the last file name in the alphabet first"""
        self._since: dict[str, float] = {}
        """{text of a key: when this process first read it}, by the monotonic clock"""
        self._ignored: tuple[str, ...] = ()

    @property
    def is_shared(self) -> bool:
        """Whether other replicas, and this one after a restart, have the same keys."""
        return self._folder is not None

    async def look(self) -> None:
        """Read the folder. Raises UnavailableError when it cannot be read and no key is known."""
        if self._folder is None:
            return
        try:
            files = await asyncio.to_thread(_read, self._folder)
        except OSError as error:
            if self._keys:
                _log.warning("folder of session keys not read", why=error.strerror)
                return
            raise UnavailableError(f"the folder of session keys {self._folder} cannot be read") from error
        self._take(files)

    def seal(self, value: msgspec.Struct) -> str:
        """Return the sealed text; it may be longer than a browser stores. Raises UnavailableError without a key."""
        key = self._sealing()
        if key is None:
            raise UnavailableError(f"no session key in {self._folder}, so no browser can log in: add a file *.key")
        packed = zlib.compress(msgspec.msgpack.encode(value), 9)
        return key.encrypt_at_time(packed, int(self._clock.now())).decode().rstrip("=")

    def open(self, text: str, as_type: type[T], *, chars_max: int = SEALED_CHARS_MAX) -> T | None:
        """Return the sealed value; None when no key opens it, its type differs, or it is longer than `chars_max`."""
        from cryptography.fernet import InvalidToken

        if not text or len(text) > chars_max or not text.isascii():
            return None
        padded = text + "=" * (-len(text) % 4)
        for key in self._keys.values():
            try:
                # The sealed value contains its own expiry, which the caller checks.
                packed = key.decrypt(padded)
            except InvalidToken:
                continue
            try:
                return msgspec.msgpack.decode(zlib.decompress(packed), type=as_type)
            except (msgspec.MsgspecError, zlib.error):
                return None
        return None

    def _sealing(self) -> "Fernet | None":
        if self._folder is None and not self._keys:
            from cryptography.fernet import Fernet

            key = Fernet.generate_key()
            self._keys = {key.decode(): Fernet(key)}
        now = self._clock.monotonic()
        settled = [key for text, key in self._keys.items() if now - self._since.get(text, -SETTLE_S) >= SETTLE_S]
        return next(iter(settled or self._keys.values()), None)

    def _take(self, files: dict[str, str]) -> None:
        from cryptography.fernet import Fernet

        found: dict[str, Fernet] = {}
        ignored: list[str] = []
        for name in sorted(files, reverse=True):
            for text in files[name].split():
                try:
                    found[text] = self._keys.get(text) or Fernet(text)
                except ValueError:
                    ignored.append(name)
        if tuple(ignored) != self._ignored:
            self._ignored = tuple(ignored)
            for name in ignored:
                _log.warning("session key ignored", file=name, why="must be 32 bytes in URL-safe base64")
        if not found and self._keys:
            _log.warning("no session key left in the folder; the keys read last stay in use", folder=str(self._folder))
            return
        if found.keys() != self._keys.keys():
            _log.info("session keys read", count=len(found))
        # At the start there is no need to wait: all texts that exist were sealed by one of these keys.
        known_since = self._clock.monotonic() if self._keys else self._clock.monotonic() - SETTLE_S
        self._since = {text: self._since.get(text, known_since) for text in found}
        self._keys = found


def _read(folder: Path) -> dict[str, str]:
    """Return {file name: its text}, without hidden files such as those of the kubelet (`..data`)."""
    entries = sorted(each for each in folder.iterdir() if each.suffix == SUFFIX and not each.name.startswith("."))
    found: dict[str, str] = {}
    for entry in entries[-FILES_MAX:]:
        with entry.open("rb") as file:
            found[entry.name] = file.read(FILE_BYTES_MAX).decode("ascii", "replace")
    return found
