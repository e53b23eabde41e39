"""The version of the server that a client talks to, as its answers name it; a warning when it does not fit, once."""

import warnings
from collections.abc import Mapping

from slipway.installed import VERSION_HEADER, installed_version, mismatch


class VersionWarning(UserWarning):
    """Client and server have different minor versions; the text says which side to upgrade."""


class ServerVersion:
    """Of one client."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.value = ""
        """empty before the first answer, and of a server that does not say it"""

    def heard(self, headers: Mapping[str, str]) -> None:
        """Take it from an answer; the first that does not fit warns."""
        said = headers.get(VERSION_HEADER, "")
        if not said or said == self.value:
            return
        is_first, self.value = not self.value, said
        if is_first and (text := mismatch(installed_version(), said, self._url)):
            warnings.warn(text, VersionWarning, stacklevel=4)
