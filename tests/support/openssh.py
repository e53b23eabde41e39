"""OpenSSH's server and rsync for a rank of the local cluster, unpacked from their Debian packages.

Owns where the programs come from, and the environment in which they run without being installed. As root, sshd requires
an account of its own, which this machine may not have: nss_wrapper simulates one.
"""

import getpass
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slipway" / "openssh"
PACKAGES = ("openssh-server", "libwrap0", "libnss-wrapper", "rsync", "libpopt0")
GET_S = 240.0


def environment(folder: Path) -> Mapping[str, str] | None:
    """The variables of a rank that has sshd and rsync, with files below `folder`; None where they are not available."""
    if not (shutil.which("ssh") and shutil.which("scp") and shutil.which("ssh-keygen")):
        return None
    root = CACHE / "root"
    if not (root / "usr/sbin/sshd").exists() and not _unpack(root):
        return None
    libraries = next(root.glob("usr/lib/*/libnss_wrapper.so"), None)
    if libraries is None:
        return None
    user, home = getpass.getuser(), Path.home()
    passwd, group = folder / "passwd", folder / "group"
    own = f"{user}:x:{os.getuid()}:{os.getgid()}::{home}:/bin/sh\n"
    passwd.write_text(f"{own}sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n", encoding="ascii")
    group.write_text(f"{user}:x:{os.getgid()}:\nnogroup:x:65534:\n", encoding="ascii")
    return {
        "PATH": f"{root}/usr/sbin:{root}/usr/bin:/usr/local/bin:/usr/bin:/bin",
        "LD_LIBRARY_PATH": str(libraries.parent),
        "LD_PRELOAD": str(libraries),
        "NSS_WRAPPER_PASSWD": str(passwd),
        "NSS_WRAPPER_GROUP": str(group),
    }


def _unpack(root: Path) -> bool:
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        return False
    root.mkdir(parents=True, exist_ok=True)
    # The packages are unpacked, not installed: an installed package would start a server on this machine.
    unpack = "for each in *.deb; do dpkg -x $each root || exit 1; done"
    for argv in (["apt-get", "download", *PACKAGES], ["sh", "-c", unpack]):
        try:
            done = subprocess.run(argv, cwd=CACHE, capture_output=True, timeout=GET_S, check=False)
        except subprocess.TimeoutExpired:
            return False
        if done.returncode:
            return False
    return (root / "usr/sbin/sshd").exists()
