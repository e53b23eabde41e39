"""The certificate of a listener: a folder like a mounted TLS Secret, which is read again when its files change.

This module owns the files and the SSL context made of them. New connections use the new certificate; open connections
continue.
"""

import ssl
from pathlib import Path

from slipway.errors import InvalidError

CERTIFICATE, KEY = "tls.crt", "tls.key"


class Certificate:
    """The certificate of one folder. `context` is passed to the server and stays the same object.

    Raises:
        InvalidError: the folder has no certificate and key that fit each other.
    """

    def __init__(self, folder: str) -> None:
        self._files = (Path(folder) / CERTIFICATE, Path(folder) / KEY)
        self._seen: tuple[bytes, ...] = ()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.look()

    def look(self) -> bool:
        """Read the files again. Return whether there was a new certificate, which is then in use.

        Raises:
            InvalidError: the new files cannot be used; the certificate before stays in use.
        """
        try:
            found = tuple(file.read_bytes() for file in self._files)
            if found == self._seen:
                return False
            # A separate context is tried first. A context that accepts a certificate and then refuses its key would be
            # left half changed.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
                context.load_cert_chain(*self._files)
        except (OSError, ssl.SSLError) as error:
            where = self._files[0].parent
            raise InvalidError(f"{where} has no {CERTIFICATE} and {KEY} that belong together: {error}") from error
        self._seen = found
        return True
