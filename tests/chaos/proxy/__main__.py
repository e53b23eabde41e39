"""The fault proxy as a process: `python -m tests.chaos.proxy CONFIG`, with commands as JSON lines on standard input.

`{"add": RULE}` answers `{"number": N}`; `{"drop": N}` answers `{"struck": COUNT}`;
`{"stalled": true}` answers `{"watches": COUNT}`, of those that a dropped rule left without a word. It ends with its
input.
"""

import asyncio
import ssl
import sys
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from tests.chaos.proxy.kube import KubeListener, Upstream
from tests.chaos.proxy.messages import HEAD_BYTES_MAX
from tests.chaos.proxy.redis import RedisListener
from tests.chaos.proxy.rules import OF_REDIS, OF_WATCHES, Rule, Rules


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of both sides of the proxy. Ports are `{name of the process: port}`."""

    seed: int
    kube_port: int
    redis_port: int
    kube_listeners: dict[str, int]
    redis_listeners: dict[str, int]
    ca: str = ""
    """the authority that signed the API server's certificate; empty: no TLS"""


class Proxy:
    """All listeners, and the rules for them."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._rules = Rules(config.seed)
        tls = ssl.create_default_context(cafile=config.ca) if config.ca else None
        kube = Upstream(host="127.0.0.1", port=config.kube_port, tls=tls)
        streams = Upstream(host="127.0.0.1", port=config.redis_port)
        self._kube = {name: KubeListener(name, kube, self._rules) for name in config.kube_listeners}
        self._redis = {name: RedisListener(name, streams, self._rules) for name in config.redis_listeners}
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Open every listener."""
        config = self._config
        listeners = [(self._kube[name].serve, port) for name, port in config.kube_listeners.items()]
        listeners += [(self._redis[name].serve, port) for name, port in config.redis_listeners.items()]
        for serve, port in listeners:
            self._servers.append(await asyncio.start_server(serve, "127.0.0.1", port, limit=HEAD_BYTES_MAX))

    def stop(self) -> None:
        """Stop listening; open connections end with the process."""
        for server in self._servers:
            server.close()

    def do(self, command: dict[str, Any]) -> dict[str, int]:
        """Execute one command."""
        if "drop" in command:
            return {"struck": self._rules.drop(command["drop"])}
        if "stalled" in command:
            return {"watches": sum(listener.stalled for listener in self._kube.values())}
        standing = self._rules.add(msgspec.convert(command["add"], Rule))
        if standing.rule.kind in OF_WATCHES:
            for listener in self._kube.values():
                listener.strike(standing)
        if standing.rule.kind in OF_REDIS:
            for listener in self._redis.values():
                listener.strike(standing)
        return {"number": standing.number}


async def _serve(config: Config) -> None:
    proxy = Proxy(config)
    await proxy.start()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    _say({"ready": 1})
    while line := await reader.readline():
        _say(proxy.do(msgspec.json.decode(line)))
    proxy.stop()


def _say(answer: dict[str, int]) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


def main() -> int:
    """Serve until the end of the input, then return 0."""
    uvloop.run(_serve(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Config)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
