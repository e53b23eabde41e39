"""What of the product is installed here: its version, whether another version fits it, and the extra that is missing.

Owns the name of the distribution, which is not that of the package: `slipway` on PyPI is another project.
"""

import re
from typing import Final

DISTRIBUTION: Final = "slipway-ai"
VERSION_HEADER: Final = "Slipway-Version"
"""of an answer of the api: the version of the process that gave it"""
_MINOR = re.compile(r"(\d+)\.(\d+)(?![\d])")


def installed_version() -> str | None:
    """The version; None when the sources are used without being installed."""
    # It takes longer to import than most commands need.
    from importlib import metadata

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def mismatch(own: str | None, server: str, url: str) -> str:
    """Why a client and a server of these versions do not fit, and which side to upgrade how; empty when they fit.

    They fit while major and minor version are the same. A version that says neither fits everything.
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
    """What to install for a module that is missing because the plain install has only the command and the SDK.

    None when no extra would help: the module is one of our own, or the extra brings nothing of that name.
    """
    module = (error.name or "").partition(".")[0]
    if not module or module == "slipway":
        return None
    return f"it needs {module}, which is not part of the plain install: pip install '{DISTRIBUTION}[{extra}]'"
