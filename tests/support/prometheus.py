"""A real Prometheus for tests, found on the PATH or unpacked from its Debian package: it scrapes, and answers queries.

Owns where the program comes from, its process, and its HTTP API.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import yaml

from tests.support.plain_http import NO_TLS
from tests.support.wait import wait_until

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slipway" / "prometheus"
GET_S = 240.0
Sample = tuple[Mapping[str, str], float]


def find(program: str = "prometheus") -> str:
    """The path of the program; empty when it neither exists nor can be fetched."""
    unpacked = CACHE / "usr" / "bin" / program
    found = shutil.which(program) or (str(unpacked) if unpacked.exists() else "")
    if found or not (shutil.which("apt-get") and shutil.which("dpkg")):
        return found
    CACHE.mkdir(parents=True, exist_ok=True)
    # Unpacked, not installed: an installed package would add pages and fonts that are not needed, and start a service.
    words = (["apt-get", "download", "prometheus"], ["sh", "-c", "dpkg -x prometheus_*.deb ."])
    for argv in words:
        try:
            done = subprocess.run(argv, cwd=CACHE, capture_output=True, timeout=GET_S, check=False)
        except subprocess.TimeoutExpired:
            return ""
        if done.returncode:
            return ""
    return str(unpacked) if unpacked.exists() else ""


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, expression: str) -> list[Sample]:
        """Return the samples of an expression now, as (labels, value). Fails when Prometheus refuses the expression."""
        answer = httpx2.get(f"{self.url}/api/v1/query", params={"query": expression}, verify=NO_TLS, trust_env=False)
        told: Any = answer.json()
        assert told["status"] == "success", (expression, told)
        result = told["data"]["result"]
        if told["data"]["resultType"] == "scalar":
            return [({}, float(result[1]))]
        return [(each["metric"], float(each["value"][1])) for each in result]

    def exemplars(self, expression: str) -> list[Mapping[str, str]]:
        """The labels of the exemplars that it stores for an expression."""
        params = {"query": expression, "start": "0", "end": "32503680000"}
        answer = httpx2.get(f"{self.url}/api/v1/query_exemplars", params=params, verify=NO_TLS, trust_env=False)
        told: Any = answer.json()
        return [each["labels"] for series in told["data"] for each in series["exemplars"]]

    def rules(self) -> dict[str, str]:
        """{alert: its health} of the rules that it has loaded."""
        told: Any = httpx2.get(f"{self.url}/api/v1/rules", verify=NO_TLS, trust_env=False).json()
        return {rule["name"]: rule["health"] for group in told["data"]["groups"] for rule in group["rules"]}


@contextmanager
def running_prometheus(
    program: str, folder: Path, targets: Mapping[str, str], groups: list[Any], *, token: str, port: int = 0
) -> Generator[Prometheus]:
    """A Prometheus that scrapes `{name: host:port}` each second, with that token, and evaluates these rules.

    It listens on `port`; 0 means a free port.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}), encoding="utf-8")
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": [address]}], "authorization": {"credentials": token}}
            for name, address in targets.items()
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", port))
        address = f"127.0.0.1:{chosen.getsockname()[1]}"
    argv = [program, f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]
    argv += [f"--web.listen-address={address}", "--enable-feature=exemplar-storage", "--log.level=warn"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder)
        try:
            wait_until(lambda: _is_ready(process, address), "Prometheus is ready", timeout_s=30.0)
            yield Prometheus(f"http://{address}")
        finally:
            process.terminate()
            process.wait(20)


def remember(folder: Path, lines: list[str]) -> None:
    """Store past series, in the OpenMetrics format with times, for a server that starts in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "past").write_text("\n".join([*lines, "# EOF", ""]), encoding="utf-8")
    argv = [find("promtool"), "tsdb", "create-blocks-from", "openmetrics", "past", "data"]
    subprocess.run(argv, cwd=folder, check=True, capture_output=True, timeout=120)


def _is_ready(process: "subprocess.Popen[bytes]", address: str) -> bool:
    assert process.poll() is None, "Prometheus has ended"
    try:
        return httpx2.get(f"http://{address}/-/ready", verify=NO_TLS, trust_env=False).status_code == 200
    except httpx2.HTTPError:
        return False
