"""What tests call on the loopback without TLS, at the cost of a call.

httpx reads the authorities of the world for each client that is not told which to trust, and each `httpx.get` is a
client: 39 ms of processor time, in probes that are asked fifty times a second.
"""

import ssl
from typing import Final

NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts nobody: an https:// address is refused."""
