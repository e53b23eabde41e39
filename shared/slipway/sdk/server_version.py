"""The version of the server in its answers, and one warning when it does not fit the version of the client."""

import warnings
from collections.abc import Mapping

from slipway.installed import VERSION_HEADER, installed_version, mismatch


class VersionWarning(UserWarning):
    """Client and server have different minor versions; the text says which side to upgrade."""


class ServerVersion:
    """The server version that one client has seen."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.value = ""
        """empty before the first answer, and when the server does not send its version"""

    def heard(self, headers: Mapping[str, str]) -> None:
        """Read the version from the headers of an answer. Warns when the first version seen does not fit."""
        said = headers.get(VERSION_HEADER, "")
        if not said or said == self.value:
            return
        is_first, self.value = not self.value, said
        if is_first and (text := mismatch(installed_version(), said, self._url)):
            warnings.warn(text, VersionWarning, stacklevel=4)
