"""A Python environment with Airflow, in the cache: Airflow pins so many packages that it cannot be installed beside
ours.

Owns the environment and its database. The environment is made once for each version; it cannot be made without the
package index.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slipway"
AIRFLOW = "3.3.2"
PACKAGES = (f"apache-airflow-core=={AIRFLOW}", "httpx2", "msgspec", "websockets", "pyyaml", "pathspec")
INSTALL_S = 420.0
MIGRATE_S = 180.0


def python() -> Path | None:
    """The interpreter of the environment; None when it cannot be made."""
    uv = Path(sys.executable).parent / "uv"
    folder = CACHE / f"airflow-{AIRFLOW}"
    found = folder / "bin" / "python"
    if (folder / "whole").exists():
        return found
    shutil.rmtree(folder, ignore_errors=True)
    for argv in (
        [str(uv), "venv", "--python", sys.executable, str(folder)],
        [str(uv), "pip", "install", "--python", str(found), *PACKAGES],
    ):
        try:
            done = subprocess.run(argv, capture_output=True, timeout=INSTALL_S, check=False)
        except (subprocess.TimeoutExpired, FileNotFoundError):
            return None
        if done.returncode:
            return None
    (folder / "whole").touch()
    return found


def environment(folder: Path) -> dict[str, str]:
    """The variables of an Airflow whose files and database are below `folder`, with the SDK of this checkout."""
    return {
        **os.environ,
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db",
        "PYTHONPATH": ":".join(str(ROOT / each) for each in ("shared", "local", "services/api")),
    }


def migrate(interpreter: Path, env: dict[str, str]) -> None:
    """Make the tables of its database."""
    argv = [str(interpreter), "-m", "airflow", "db", "migrate"]
    subprocess.run(argv, env=env, capture_output=True, timeout=MIGRATE_S, check=True)
