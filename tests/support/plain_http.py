"""Calls over plain HTTP that load no certificates.

Without `verify=NO_TLS` httpx2 loads the certificate authorities of the system for each client, and each `httpx2.get`
makes a client. That took 39 ms of processor time, in probes that run fifty times a second.
"""

import ssl
from typing import Final

NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""It holds no certificate authority, so a call to an https:// address fails."""
