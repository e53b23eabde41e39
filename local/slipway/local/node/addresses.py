"""One loopback address for each pod.

Owns which pod has which address. Linux answers on all of 127.0.0.0/8, so pods on one machine can all listen on the
same port, as they do in a cluster; elsewhere every pod has 127.0.0.1.

Invariants: two live pods never share an address (where there are several); the choice is a function of the uid unless
that address is taken, so that a restarted node chooses again what it chose before.
"""

import hashlib
import ipaddress
import socket

SHARED = "127.0.0.1"
_FIRST = int(ipaddress.IPv4Address("127.64.0.0"))
_COUNT = 1 << 22


class Addresses:
    """The addresses in use. `several`: whether this machine has more than one; found out when it is not said."""

    def __init__(self, *, several: bool | None = None) -> None:
        self._several = _has_several() if several is None else several
        self._by_uid: dict[str, str] = {}
        self._taken: set[str] = set()

    def claim(self, uid: str, wanted: str = "") -> str:
        """The pod's address; `wanted` is the one it is known by already."""
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
        """The pod is gone."""
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
