"""Message authentication codes for values that one service writes into Redis and another service acts on.

This module owns the keys and the form of a code: HMAC-SHA256 over the purpose of the value, its place, and the value
itself. A code for one place, such as a number of the cluster feed, is invalid at any other place.

Keys are the files `*.key` of a folder (a mounted Secret), each with 32 bytes in URL-safe base64. All keys are accepted
on reading. The key whose file name is last in the alphabet signs, after it has been here for `SETTLE_S`, because
readers may see a new key later. A removed key is accepted for `SETTLE_S` more, so that keys may also be exchanged in
one step. The folder is read again at the first use after `LOOK_S`. It is an in-memory file system with at most
`FILES_MAX` small files, so reading it blocks for some tens of microseconds.

Invariants: while the folder cannot be read, or contains no key, the last keys stay in use. No key is logged. Not
promised: that a value is new. A value that was written at the same place before has the same code.
"""

import base64
import binascii
import hmac
from pathlib import Path
from typing import Final

from slipway.errors import UnavailableError
from slipway.runtime import log
from slipway.runtime.clock import Clock
from slipway.streams.macs import ForgedError

FEED_PURPOSE: Final = "slipway cluster feed"
GATHER_PURPOSE: Final = "slipway gatherings"
SUFFIX: Final = ".key"
KEY_BYTES: Final = 32
LOOK_S: Final = 10.0
SETTLE_S: Final = 180.0
"""Seconds that a kubelet may need to show a changed Secret to every reader."""
FILES_MAX, FILE_BYTES_MAX = 32, 4_096

_log = log.get_logger(__name__)


class MacKeys:
    """The keys of one purpose. Keys of two purposes differ, even when they are made from the same folder."""

    def __init__(self, folder: Path, purpose: str, clock: Clock, *, accepts_unsigned: bool = False) -> None:
        """With `accepts_unsigned`, a value without a code is accepted, because an earlier version writes such
        values.
        """
        self._accepts_unsigned = accepts_unsigned
        if accepts_unsigned:
            _log.warning(
                "values in Redis are accepted without a signature", purpose=purpose, how="accept_unsigned=false"
            )
        self._folder = folder
        self._purpose = purpose.encode()
        self._clock = clock
        self._keys: dict[str, hmac.HMAC] = {}
        """{text of a key: HMAC state that starts each code for this purpose}, the preferred signing key first."""
        self._since: dict[str, float] = {}
        """{text of a key: since when it is known}, by the monotonic clock."""
        self._gone: dict[str, float] = {}
        """{text of a key: since when it is no longer in the folder}."""
        self._signing: hmac.HMAC | None = None
        self._look_at_s = 0.0
        self._problem = ""

    def sign(self, place: bytes, value: bytes) -> bytes:
        """Return the code (32 bytes) of a value at a place. Raises UnavailableError when there is no key."""
        if self._clock.monotonic() >= self._look_at_s:
            self._look()
        if self._signing is None:
            raise UnavailableError(f"no key for what is written into Redis is in {self._folder}")
        return _code(self._signing, b"%d:%b%b" % (len(place), place, value))

    def check(self, code: bytes | None, place: bytes, value: bytes) -> None:
        """Raises ForgedError unless the code is one of our keys for this value at this place."""
        if self._clock.monotonic() >= self._look_at_s:
            self._look()
        if code is None:
            if self._accepts_unsigned:
                return
            raise ForgedError("a value in Redis has no message authentication code")
        message = b"%d:%b%b" % (len(place), place, value)
        for key in self._keys.values():
            if hmac.compare_digest(_code(key, message), code):
                return
        raise ForgedError("the message authentication code of a value in Redis is wrong")

    def _look(self) -> None:
        now = self._clock.monotonic()
        self._look_at_s = now + LOOK_S
        try:
            texts = _read(self._folder)
        except OSError as error:
            self._note(f"the folder cannot be read: {error.strerror}")
            texts = []
        found: dict[str, hmac.HMAC] = {}
        bad = 0
        for text in texts:
            key = _decoded(text)
            if key is None:
                bad += 1
            else:
                found[text] = hmac.new(hmac.digest(key, self._purpose, "sha256"), None, "sha256")
        if texts:
            self._note(f"{bad} of {len(texts)} keys are not {KEY_BYTES} bytes in URL-safe base64" if bad else "")
        if found:
            # At the start there is no need to wait, because every reader has these keys or will get them.
            known_since = now if self._keys else now - SETTLE_S
            # A removed key is kept as long as another process may not have the new one.
            gone = {text: self._gone.get(text, now) for text in self._keys if text not in found}
            self._gone = {text: since for text, since in gone.items() if now - since < SETTLE_S}
            keys = found | {text: self._keys[text] for text in self._gone}
            self._since = {text: self._since.get(text, known_since) for text in keys}
            self._keys = keys
        elif not self._problem:
            self._note("the folder holds no key")
        settled = [key for text, key in self._keys.items() if now - self._since[text] >= SETTLE_S]
        self._signing = next(iter(settled or self._keys.values()), None)

    def _note(self, problem: str) -> None:
        """Log a problem when it appears, not at each reading."""
        if problem and problem != self._problem:
            _log.warning("keys of values in Redis not read", folder=str(self._folder), why=problem)
        self._problem = problem


def keys_of(folder: str, purpose: str, clock: Clock, *, accepts_unsigned: bool = False) -> MacKeys | None:
    """Return the keys of a folder from a setting; None when it names none, and then nothing is signed or checked."""
    return MacKeys(Path(folder), purpose, clock, accepts_unsigned=accepts_unsigned) if folder else None


def _code(key: hmac.HMAC, message: bytes) -> bytes:
    begun = key.copy()  # saves computing the key schedule, which is a large part of the cost of a short message
    begun.update(message)
    return begun.digest()


def _decoded(text: str) -> bytes | None:
    try:
        key = base64.b64decode(text, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return key if len(key) == KEY_BYTES else None


def _read(folder: Path) -> list[str]:
    """Return the texts of all keys, the last file name first. Hidden files, such as the kubelet's `..data`, are
    ignored.
    """
    entries = sorted(each for each in folder.iterdir() if each.suffix == SUFFIX and not each.name.startswith("."))
    texts: list[str] = []
    for entry in reversed(entries[-FILES_MAX:]):
        with entry.open("rb") as file:
            texts += file.read(FILE_BYTES_MAX).decode("ascii", "replace").split()
    return texts
