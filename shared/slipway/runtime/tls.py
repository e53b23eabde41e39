"""The certificate of a listener: a folder as a mounted TLS Secret is one, looked at again when its files change.

Owns the files and the context made of them. New connections get the new certificate; what is open goes on.
"""

import ssl
from pathlib import Path

from slipway.errors import InvalidError

CERTIFICATE, KEY = "tls.crt", "tls.key"


class Certificate:
    """Of one folder; `context` is what the server is given, and stays the same object.

    Raises:
        InvalidError: there is no certificate and key that fit each other.
    """

    def __init__(self, folder: str) -> None:
        self._files = (Path(folder) / CERTIFICATE, Path(folder) / KEY)
        self._seen: tuple[bytes, ...] = ()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.look()

    def look(self) -> bool:
        """Whether there was another certificate than before; it counts from now on.

        Raises:
            InvalidError: what is there now cannot be used; the one before goes on to count.
        """
        try:
            found = tuple(file.read_bytes() for file in self._files)
            if found == self._seen:
                return False
            # Tried apart: a context that takes a certificate and refuses its key is left in between.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
                context.load_cert_chain(*self._files)
        except (OSError, ssl.SSLError) as error:
            where = self._files[0].parent
            raise InvalidError(f"{where} has no {CERTIFICATE} and {KEY} that fit each other: {error}") from error
        self._seen = found
        return True
