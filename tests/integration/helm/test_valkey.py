"""The Valkey of the chart: its script, run here, starts a server with only the Secrets' accounts, over TLS."""

import base64
import os
import shutil
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import redis

from slipway.errors import ControlPlaneError
from slipway.runtime import redis_url
from slipway.runtime.clock import SeededRandom, SystemClock
from slipway.streams import accounts
from slipway.streams.client import RedisSettings
from slipway.streams.redis_streams import connect
from tests.support import chart
from tests.support.ports import free_port
from tests.support.redis import server_binary
from tests.support.wait import wait_until

Json = dict[str, Any]

PASSWORD = "p@ss/word:with%25signs+$HOME`id`'"


class StartedValkey(msgspec.Struct, frozen=True):
    """A server as the container would start it, in a local folder and on the loopback."""

    documents: list[Json]
    port: int
    folder: Path
    environment: dict[str, str]
    probe: str

    def here(self, address: str) -> str:
        """The local address for an address of the cluster."""
        host = urlsplit(address).hostname
        assert host == "slipway-valkey.slipway-system.svc"
        return address.replace(f"{host}:6379", f"localhost:{self.port}")

    def url_of(self, service: str) -> str:
        """The URL to which the pod of a service connects, by its environment."""
        given = chart.service_environment(self.documents, service)
        authority = {redis_url.CA_FILE: str(self.folder / "tls" / "ca.crt")} if redis_url.CA_FILE in given else {}
        return self.here(redis_url.from_environment({**given, **authority}))

    @property
    def administrator(self) -> str:
        """The URL in the Secret of the administrator."""
        secret = chart.find(self.documents, "Secret", "valkey")["stringData"]
        whole = redis_url.whole_url(
            secret["url"], ca_file=str(self.folder / "tls" / "ca.crt") if self.folder.joinpath("tls").is_dir() else ""
        )
        return self.here(whole)


@contextmanager
def starting(kind: str, folder: Path, values: Json) -> Generator[StartedValkey]:
    documents = chart.render(values)
    given = chart.service_environment(documents, "valkey")
    port = free_port()
    (bin_, run, data) = (folder / name for name in ("bin", "run", "data"))
    for each in (bin_, run, data):
        each.mkdir()
    (bin_ / "valkey-server").symlink_to(server_binary(kind))
    shell, flags, script = chart.service_command(documents, "valkey")
    spec = chart.pod_spec(documents, "valkey")
    mounts = {each["name"]: each["mountPath"] for each in spec["containers"][0]["volumeMounts"]}
    places = {"/run/valkey": str(run), "/data": str(data), "port 6379": f"port {port}\nbind 127.0.0.1"}
    for volume in spec["volumes"]:
        if files := _files(documents, volume):
            own = folder / volume["name"]
            own.mkdir()
            for name, content in files.items():
                (own / name).write_bytes(content)
            mounted = mounts[volume["name"]]
            places[mounted] = str(own / "accounts") if volume["name"] == "accounts" else str(own)
    for theirs, ours in places.items():
        assert theirs in script, theirs
        script = script.replace(theirs, ours)
    env = {"PATH": f"{bin_}:{os.environ['PATH']}", **given}
    (container,) = spec["containers"]
    probe = container["readinessProbe"]["exec"]["command"][-1].replace("/etc/valkey/tls", str(folder / "tls"))
    process = subprocess.Popen([shell, flags, script], env=env, stdout=subprocess.DEVNULL)
    try:
        # The client of this machine has another name, and the port differs.
        found = StartedValkey(documents, port, folder, env, probe.replace("valkey-cli", f"redis-cli -p {port}"))
        with administrator(found) as client:
            wait_until(lambda: _answers(client), "it answers")
        yield found
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(params=["redis over TLS", "valkey without"])
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[StartedValkey]:
    """A started Redis with TLS, or a Valkey without it: the Valkey of the wheel is built without TLS."""
    kind, has_tls = request.param.split()[0], "TLS" in request.param
    values: Json = {"maxMemory": "64mb", "auth": {"password": PASSWORD}, "tls": {"enabled": has_tls}}
    with starting(kind, tmp_path, {"valkey": values, "audit": {"enabled": True}}) as found:
        yield found


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="redis-cli is not on PATH")
def test_the_probe_knows_the_password(started: StartedValkey) -> None:
    """The pod is ready when a client with the password gets an answer."""
    wrong = {**started.environment, "VALKEY_PASSWORD": "another"}
    codes = [
        subprocess.run(["sh", "-c", started.probe], env=env, check=False).returncode
        for env in (started.environment, wrong)
    ]
    assert codes == [0, 1]


def test_it_takes_the_url_of_the_secret(started: StartedValkey) -> None:
    """The password may contain any character; nothing is stored on disk, and nothing is evicted."""
    with administrator(started) as client:
        settings = client.config_get("*")  # pyright: ignore
    assert settings["maxmemory"] == str(64 * 1024 * 1024)
    assert (settings["maxmemory-policy"], settings["save"], settings["appendonly"]) == ("noeviction", "", "no")


def test_it_takes_no_other_password(started: StartedValkey) -> None:
    """A client with network access needs the password too, and TLS where it is on."""
    with (
        redis.Redis(host="127.0.0.1", port=started.port) as stranger,
        pytest.raises((redis.AuthenticationError, redis.ConnectionError)),
    ):
        stranger.ping()  # pyright: ignore[reportUnknownMemberType]
    mine, default = urlsplit(started.url_of("api")), urlsplit(started.administrator)
    other = started.url_of("api").replace(mine.password or "", default.password or "")
    with redis.Redis.from_url(other) as client, pytest.raises(redis.AuthenticationError):  # pyright: ignore
        client.ping()  # pyright: ignore[reportUnknownMemberType]


def test_there_are_the_accounts_of_the_table_and_no_more(started: StartedValkey) -> None:
    """Each account has the rules that the code has for it."""
    with administrator(started) as client:
        users = [line.split() for line in client.acl_list()]  # pyright: ignore
        expected = {"default", *(f"slipway-{account.name}" for account in accounts.ACCOUNTS)}
        assert {user[1] for user in users} == expected
        for account in accounts.ACCOUNTS:
            client.execute_command("ACL", "SETUSER", "meant", "reset", "on", *account.arguments())  # pyright: ignore
            meant, found = (client.acl_getuser(name) for name in ("meant", f"slipway-{account.name}"))  # pyright: ignore
            assert {**found, "passwords": [], "flags": []} == {**meant, "passwords": [], "flags": []}  # pyright: ignore
            assert len(found["passwords"]) == 1  # pyright: ignore


@pytest.mark.parametrize("service", ["api", "scheduler", "podworker", "watcher", "audit"])
async def test_each_pod_logs_in_with_its_own_account(started: StartedValkey, service: str) -> None:
    """Its environment is enough to log in, and the account has the rights that the service needs."""
    url = started.url_of(service)
    assert url.startswith("rediss://") == started.folder.joinpath("tls").is_dir()
    streams = connect(RedisSettings(url=url, name=service), clock=SystemClock(), random=SeededRandom(1))
    try:
        found = await streams.conditions.look()
    finally:
        await streams.aclose()
    assert (found.account, found.refused) == (service, [])


async def test_a_server_with_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    """A service that is led to another server does not send its password."""
    (mine, theirs) = (tmp_path / "mine", tmp_path / "theirs")
    for folder in (mine, theirs):
        folder.mkdir()
    with starting("redis", theirs, {}) as other:
        (own,) = [chart.render()]
        ca = base64.b64decode(chart.find(own, "Secret", "valkey-tls")["data"]["ca.crt"])
        (mine / "ca.crt").write_bytes(ca)
        url = other.url_of("api").replace(str(theirs / "tls"), str(mine))
        streams = connect(RedisSettings(url=url, name="api"), clock=SystemClock(), random=SeededRandom(1))
        try:
            with pytest.raises(ControlPlaneError, match="unavailable"):
                await streams.dead.page()
        finally:
            await streams.aclose()


@contextmanager
def administrator(started: StartedValkey) -> Generator[redis.Redis]:
    with redis.Redis.from_url(started.administrator, decode_responses=True) as client:  # pyright: ignore
        yield client


def _files(documents: Sequence[Json], volume: Json) -> dict[str, bytes]:
    """The files in a volume of a Secret or a ConfigMap."""
    if "secret" in volume:
        name, kind = volume["secret"]["secretName"], "Secret"
    elif "configMap" in volume:
        name, kind = volume["configMap"]["name"], "ConfigMap"
    else:
        return {}
    (found,) = [each for each in documents if each["kind"] == kind and each["metadata"]["name"] == name]
    plain: dict[str, str] = found.get("stringData", {}) if kind == "Secret" else found["data"]
    encoded: dict[str, str] = found.get("data", {}) if kind == "Secret" else {}
    return {key: text.encode() for key, text in plain.items()} | {
        key: base64.b64decode(text) for key, text in encoded.items()
    }


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())  # pyright: ignore[reportUnknownMemberType]
    except redis.ConnectionError:
        return False
