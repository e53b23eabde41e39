"""The installed product: its version, whether another version is compatible, and which extra is missing.

Owns the name of the distribution. It differs from the name of the package, because `slipway` on PyPI is another
project.
"""

import re
from typing import Final

DISTRIBUTION: Final = "slipway-ai"
VERSION_HEADER: Final = "Slipway-Version"
"""Header of each response of the api: the version of the process that sent it."""
_MINOR = re.compile(r"(\d+)\.(\d+)(?![\d])")


def installed_version() -> str | None:
    """Return the installed version; None when the sources are used without an installation."""
    # Importing this module takes longer than most commands run.
    from importlib import metadata

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def mismatch(own: str | None, server: str, url: str) -> str:
    """Return why these versions of client and server are not compatible, with how to upgrade which side; empty when
    they are.

    They are compatible while major and minor version are equal. A version without these two numbers is compatible with
    every other.
    """
    mine, its = _MINOR.match(own or ""), _MINOR.match(server)
    if mine is None or its is None:
        return ""
    here, there = (tuple(int(part) for part in found.groups()) for found in (mine, its))
    if here == there:
        return ""
    both = f"this is Slipway {own}, the server {url} is {server}"
    if here < there:
        return f"{both}: upgrade here, with the wheel of that release: pipx install --force slipway_ai-{server}-*.whl"
    return f"{both}: the server should be upgraded (helm upgrade); until then use a client of its version"


def missing_extra(error: ModuleNotFoundError, extra: str) -> str | None:
    """Return what to install for a missing module: the plain install contains only the command and the SDK.

    None when no extra helps: the import error names no module, or it names one of our own.
    """
    module = (error.name or "").partition(".")[0]
    if not module or module == "slipway":
        return None
    return f"it needs {module}, which is not part of the plain install: pip install '{DISTRIBUTION}[{extra}]'"
