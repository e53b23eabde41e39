"""One loopback address for each pod.

Owns the assignment of addresses to pods. Linux answers on all of 127.0.0.0/8, so all pods on one machine can listen on
the same port, as in a cluster. On other systems every pod has 127.0.0.1.

Invariants: two live pods never share an address (on a machine with several); the address is a function of the pod's uid
unless it is already in use, so that a restarted node chooses the same address again.
"""

import hashlib
import ipaddress
import socket

SHARED = "127.0.0.1"
_FIRST = int(ipaddress.IPv4Address("127.64.0.0"))
_COUNT = 1 << 22


class Addresses:
    """The addresses in use. `several`: whether this machine has several loopback addresses; None means find out."""

    def __init__(self, *, several: bool | None = None) -> None:
        self._several = _has_several() if several is None else several
        self._by_uid: dict[str, str] = {}
        self._taken: set[str] = set()

    def claim(self, uid: str, wanted: str = "") -> str:
        """Return the pod's address; `wanted` is the address that the pod already has, if any."""
        held = self._by_uid.get(uid)
        if held is not None:
            return held
        address = SHARED
        if self._several:
            address = wanted if wanted and wanted not in self._taken else self._free(uid)
            self._taken.add(address)
        self._by_uid[uid] = address
        return address

    def release(self, uid: str) -> None:
        """Free the address of a pod that no longer exists."""
        self._taken.discard(self._by_uid.pop(uid, ""))

    def _free(self, uid: str) -> str:
        index = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:4])
        while True:
            index = (index + 1) % _COUNT
            address = str(ipaddress.IPv4Address(_FIRST + index))
            if index & 0xFF not in (0, 0xFF) and address not in self._taken:
                return address


def _has_several() -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((str(ipaddress.IPv4Address(_FIRST + 1)), 0))
        except OSError:
            return False
        return True
