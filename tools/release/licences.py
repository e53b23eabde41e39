"""The licences of the components of a release: read from the packages, converted to SPDX, checked with an allow-list.

Owns the allow-lists and the mapping from other names of licences to SPDX. A licence that is not listed fails the
release. A maintainer then reads the licence, and adds it here or removes the package.

Source: SPDX specification, annex "SPDX license expressions"; PEP 639.
"""

import re
from importlib.metadata import Distribution

ALLOWED = frozenset(
    {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "MPL-2.0", "PSF-2.0"}
    | {"Zlib"}
)
"""Allowed licences of Python packages and of the page's scripts: they may be shipped with Apache-2.0 software."""
ALLOWED_OF_SYSTEM = ALLOWED | {
    "LGPL-2.1-or-later",
    "LicenseRef-public-domain",
    "GPL-3.0-or-later WITH GCC-exception-3.1",
    "blessing",
    "bzip2-1.0.6",
}
"""Allowed licences of the image's system libraries: also licences that allow linking with any program."""
ELSEWHERE = {"async-timeout": "Apache-2.0", "httpx2-jsfetch": "BSD-3-Clause"}
"""{package that only other platforms or older versions of Python need: its licence, read by a person}"""
SCRIPTS = {
    "@preact/signals": "MIT",
    "@preact/signals-core": "MIT",
    "@tanstack/virtual-core": "MIT",
    "@xterm/addon-fit": "MIT",
    "@xterm/xterm": "MIT",
    "htm": "Apache-2.0",
    "js-yaml": "MIT",
    "preact": "MIT",
    "uplot": "MIT",
}
"""{npm package that our pages vendor: its licence, from the file beside its scripts}"""
SYSTEM = {
    "ca-certificates": "MPL-2.0",
    "libbz2-1.0": "bzip2-1.0.6",
    "libc6": "LGPL-2.1-or-later",
    "libcrypt1": "LGPL-2.1-or-later",
    "libffi8": "MIT",
    "libgcc-s1": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "liblzma5": "LicenseRef-public-domain",
    "libsqlite3-0": "blessing",
    "libssl3": "Apache-2.0",
    "libstdc++6": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "libuuid1": "BSD-3-Clause",
    "zlib1g": "Zlib",
}
"""{Debian package: the licence of its files in the image}; Debian's own texts are not SPDX"""
_WORDS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Modified BSD License": "BSD-3-Clause",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""{name of a licence in a package: SPDX}; any other name is used unchanged, and refused unless it is SPDX"""
_CLASSIFIER = "License :: OSI Approved :: "


def of(package: Distribution) -> str:
    """Return the licence of an installed package as an SPDX expression; empty when the package names none."""
    stated = _field(package, "License-Expression")
    if stated:
        return stated
    first = _field(package, "License").strip().partition("\n")[0].strip()
    # Some packages have the whole text of the licence in this field; its first line is the name.
    if first and (found := _WORDS.get(first, first)) in ALLOWED:
        return found
    classified = [each.removeprefix(_CLASSIFIER) for each in package.metadata.get_all("Classifier") or ()]
    named = [_WORDS[each] for each in classified if each in _WORDS]
    return " OR ".join(dict.fromkeys(named)) or first


def _field(package: Distribution, name: str) -> str:
    found = package.metadata.get_all(name) or [""]
    return str(found[0])


def problem(name: str, licence: str, allowed: frozenset[str] = ALLOWED) -> str:
    """Return why a package with this licence cannot be shipped; empty when it can."""
    if not licence:
        return f"{name} names no licence: find its licence, and add it to tools/release/licences.py"
    if not is_allowed(licence, allowed):
        return f"{name} has the licence {licence!r}, which is not in the allow-list of tools/release/licences.py"
    return ""


def is_allowed(expression: str, allowed: frozenset[str] = ALLOWED) -> bool:
    """Whether at least one alternative (OR) has only allowed licences (AND). False for nested expressions."""
    if "(" in expression:
        return False
    return any(
        all(part.strip() in allowed for part in re.split(r"\s+AND\s+", choice))
        for choice in re.split(r"\s+OR\s+", expression)
    )
