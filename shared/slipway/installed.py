"""What of the product is installed here: its version, and the extra that something needs that is missing.

Owns the name of the distribution, which is not that of the package: `slipway` on PyPI is another project.
"""

from importlib import metadata
from typing import Final

DISTRIBUTION: Final = "slipway-ai"


def installed_version() -> str | None:
    """The version; None when the sources are used without being installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def missing_extra(error: ModuleNotFoundError, extra: str) -> str | None:
    """What to install for a module that is missing because the plain install has only the command and the SDK.

    None when no extra would help: the module is one of our own, or the extra brings nothing of that name.
    """
    module = (error.name or "").partition(".")[0]
    if not module or module == "slipway":
        return None
    return f"it needs {module}, which is not part of the plain install: pip install '{DISTRIBUTION}[{extra}]'"
