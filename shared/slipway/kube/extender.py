"""Calls of HTTP extenders: one POST with a limited time and a limited size of the response.

Owns the HTTP side of kube-scheduler's extender protocol. Must not know the bodies (`extender_wire.py`), nor when a call
is made (`slipway.scheduler.extenders`, `slipway.podworker.binding`).

Promises: a call ends within the extender's timeout, even if the response arrives byte by byte. Redirects are not
followed, proxies in the environment are not used, cookies are not stored, and a response body is read only up to a
limit. Cluster administrators write the address of an extender into a ResourcePool, so any http or https address is
accepted.
"""

import asyncio
import functools
import os
import ssl

import aiohttp

from slipway.kube.extender_wire import ExtenderFault
from slipway.model.facts import ExtenderFact, ExtenderTls

ANSWER_MIN_BYTES = 1024 * 1024
ANSWER_FACTOR = 8
CONNECTIONS_MAX = 64
_OK = 200
_CHUNK = 64 * 1024


class ExtenderClient:
    """Calls extenders; one client per process. No connection is opened before the first call."""

    def __init__(self, user_agent: str = "slipway") -> None:
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def post(self, extender: ExtenderFact, verb: str, body: bytes) -> bytes:
        """Return the body of the extender's response to `verb`.

        Raises:
            ExtenderFault: the extender did not respond in time, or not with 200.
        """
        try:
            async with asyncio.timeout(extender.timeout_s):
                return await self._post(extender, verb, body)
        except TimeoutError as error:
            raise ExtenderFault(f"no answer within {extender.timeout_s:g} s") from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise ExtenderFault("its certificate cannot be verified") from error
        except aiohttp.ClientConnectorError as error:
            raise ExtenderFault("it accepts no connection") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ExtenderFault(f"the connection failed ({type(error).__name__})") from error

    async def _post(self, extender: ExtenderFact, verb: str, body: bytes) -> bytes:
        url = f"{extender.url.rstrip('/')}/{verb}"
        headers = {"Content-Type": "application/json"}
        tls = _tls(extender.tls, _written(extender.tls)) if url.startswith("https:") else True
        name = extender.tls.server_name or None
        session = self._opened()
        async with session.post(
            url, data=body, headers=headers, allow_redirects=False, ssl=tls, server_hostname=name
        ) as response:
            if response.status != _OK:
                raise ExtenderFault(f"it answers {response.status}")
            return await _read(response, max(ANSWER_MIN_BYTES, ANSWER_FACTOR * len(body)))

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                headers={"User-Agent": self._user_agent, "Accept-Encoding": "identity"},
                trust_env=False,
                auto_decompress=False,
            )
        return self._session


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    parts: list[bytes] = []
    left = most
    async for part in response.content.iter_chunked(_CHUNK):
        left -= len(part)
        if left < 0:
            response.close()
            raise ExtenderFault(f"its answer is longer than {most} bytes")
        parts.append(part)
    return b"".join(parts)


def _written(tls: ExtenderTls) -> tuple[int, ...]:
    """Return when each file of certificates was written: a mounted Secret is replaced when it is renewed. Raises
    OSError.
    """
    return tuple(os.stat(path).st_mtime_ns for path in (tls.ca_file, tls.cert_file, tls.key_file) if path)


@functools.lru_cache(maxsize=32)
def _tls(tls: ExtenderTls, _: tuple[int, ...]) -> ssl.SSLContext:
    """Return the TLS context, made again for each time of its files. Raises ValueError or OSError for certificates that
    cannot be used.
    """
    context = ssl.create_default_context(cafile=tls.ca_file or None, cadata=tls.ca_data or None)
    if tls.cert_file:
        context.load_cert_chain(tls.cert_file, tls.key_file or None)
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
