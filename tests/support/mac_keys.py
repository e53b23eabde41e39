"""Folders of keys for message authentication codes, like a mounted Secret."""

import base64
from pathlib import Path

from slipway.runtime.clock import Clock
from slipway.streams.mac_keys import FEED_PURPOSE, KEY_BYTES, MacKeys


def write_key(folder: Path, name: str, byte: int) -> None:
    """Write a key of one repeated byte into the folder, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(base64.urlsafe_b64encode(bytes([byte]) * KEY_BYTES))


def a_folder(folder: Path, byte: int = 1) -> Path:
    """A folder with one key, `1.key`."""
    write_key(folder, "1.key", byte)
    return folder


def some_keys(folder: Path, clock: Clock, *, purpose: str = FEED_PURPOSE, accepts_unsigned: bool = False) -> MacKeys:
    """The keys of the folder, as a process that starts now reads them."""
    return MacKeys(folder, purpose, clock, accepts_unsigned=accepts_unsigned)
