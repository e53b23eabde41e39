"""The Valkey of the chart starts: its script, run here, makes a server that takes the Secret's password only."""

import os
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from tests.support import chart
from tests.support.ports import free_port
from tests.support.redis import server_binary
from tests.support.wait import wait_until

Started = tuple[str, dict[str, str], str]
"""The URL of the Secret with the address of here; the container's environment; its readiness probe."""

PASSWORD = "p@ss/word:with%25signs+$HOME`id`'"


@pytest.fixture
def started(tmp_path: Path) -> Generator[Started]:
    """Of a server that was started as the container would start it, but in a folder and on the loopback."""
    documents = chart.render({"valkey": {"auth": {"password": PASSWORD}, "maxMemory": "64mb"}})
    given = chart.service_environment(documents, "valkey")
    port = free_port()
    (bin_, run, data) = (tmp_path / name for name in ("bin", "run", "data"))
    for folder in (bin_, run, data):
        folder.mkdir()
    (bin_ / "valkey-server").symlink_to(server_binary("valkey"))
    shell, flags, script = chart.service_command(documents, "valkey")
    for theirs, ours in (
        ("/run/valkey", str(run)),
        ("/data", str(data)),
        ("port 6379", f"port {port}\nbind 127.0.0.1"),
    ):
        assert theirs in script
        script = script.replace(theirs, ours)
    env = {"PATH": f"{bin_}:{os.environ['PATH']}", **given}
    process = subprocess.Popen([shell, flags, script], env=env, stdout=subprocess.DEVNULL)
    try:
        whole: str = chart.service_environment(documents, "watcher")["SLIPWAY_REDIS_URL"]
        host = urlsplit(whole).hostname
        assert host == "slipway-valkey.slipway-system.svc"
        (container,) = chart.pod_spec(documents, "valkey")["containers"]
        probe = container["readinessProbe"]["exec"]["command"][-1]
        # The client of this machine has another name, and the port is not the usual one.
        yield (
            whole.replace(f"{host}:6379", f"127.0.0.1:{port}"),
            env,
            probe.replace("valkey-cli", f"redis-cli -p {port}"),
        )
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def url(started: Started) -> str:
    """Of the running server."""
    return started[0]


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="redis-cli is not on PATH")
def test_the_probe_knows_the_password(started: Started) -> None:
    """Ready means that a client with the password is answered."""
    url, environment, probe = started
    with _client(url) as client:
        wait_until(lambda: _answers(client), "it answers")
    wrong = {**environment, "VALKEY_PASSWORD": "another"}
    codes = [subprocess.run(["sh", "-c", probe], env=env, check=False).returncode for env in (environment, wrong)]
    assert codes == [0, 1]


def test_it_takes_the_url_of_the_secret(url: str) -> None:
    """Whatever signs the password holds; nothing is kept on disk, and nothing is thrown away."""
    with _client(url) as client:
        wait_until(lambda: _answers(client), "it answers")
        settings = client.config_get("*")  # pyright: ignore
    assert settings["maxmemory"] == str(64 * 1024 * 1024)
    assert (settings["maxmemory-policy"], settings["save"], settings["appendonly"]) == ("noeviction", "", "no")


def test_it_takes_no_other_password(url: str) -> None:
    """Whoever reaches it still has to know."""
    with _client(url) as client:
        wait_until(lambda: _answers(client), "it answers")
    parts = urlsplit(url)
    with (
        redis.Redis(host=parts.hostname or "", port=parts.port or 0) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()  # pyright: ignore[reportUnknownMemberType]


def _client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url)  # pyright: ignore[reportUnknownMemberType]


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())  # pyright: ignore[reportUnknownMemberType]
    except redis.ConnectionError:
        return False
