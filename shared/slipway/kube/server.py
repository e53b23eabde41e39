"""What an API server says of itself: its version, and its clock. Pure."""

import re
from email.utils import parsedate_to_datetime

import msgspec

from slipway.errors import InvalidError

_NUMBERS = re.compile(r"v?(\d+)\.(\d+)")


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`version` as kubectl shows it; `time` in epoch seconds, cut to whole ones, None when the server does not tell."""

    version: str
    time: float | None

    @property
    def numbers(self) -> tuple[int, int]:
        """Major and minor; (0, 0) when the version is not one."""
        found = _NUMBERS.match(self.version)
        return (int(found[1]), int(found[2])) if found else (0, 0)


class _Version(msgspec.Struct):
    gitVersion: str = ""


def server_facts(body: bytes, date: str) -> ServerFacts:
    """The facts of an answer of `/version` and its Date header. Raises InvalidError."""
    try:
        version = msgspec.json.decode(body, type=_Version).gitVersion
    except msgspec.DecodeError as error:
        raise InvalidError(f"what answers is no API server: {error}") from error
    return ServerFacts(version=version, time=_time(date))


def _time(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
