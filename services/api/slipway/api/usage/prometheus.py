"""The api's client for the Prometheus of the cluster: one instant query at a time, with a deadline and a size limit.

Owns the connection and the translation of its errors. Works with every server that speaks Prometheus' HTTP API (Thanos,
Mimir, VictoriaMetrics).

Source: https://prometheus.io/docs/prometheus/latest/querying/api/
"""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from slipway.errors import UnavailableError
from slipway.runtime.service import version

if TYPE_CHECKING:
    import httpx2

EXCHANGE_S = 5.0
ANSWER_BYTES_MAX = 32 * 1024 * 1024
_TEXT_CHARS_MAX = 300


def check_prometheus_url(text: str) -> str:
    """Return the address of a Prometheus when it is valid in the settings. Raises ValueError."""
    parts = urlsplit(text)
    if not parts.hostname or parts.scheme not in ("http", "https") or parts.query or parts.fragment or parts.username:
        raise ValueError(
            "must be an http:// or https:// address without user, query or fragment, such as "
            "http://prometheus.monitoring:9090"
        )
    return text


class PrometheusError(UnavailableError):
    """Prometheus cannot be reached, or refuses the query."""


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(msgspec.Struct, frozen=True, rename="camel"):
    result_type: str = ""
    result: tuple[_Series, ...] = ()


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    status: str = ""
    data: _Data = _Data()
    error: str = ""


def samples_of(status: int, body: bytes) -> list[tuple[dict[str, str], float]]:
    """Return (labels, value) of each series in an answer. Raises PrometheusError when the answer is none."""
    try:
        answer = msgspec.json.decode(body, type=_Answer)
        found = [(series.metric, float(series.value[1])) for series in answer.data.result]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PrometheusError(
            f"SLIPWAY_PROMETHEUS_URL answers {status}, which is not an answer of Prometheus"
        ) from error
    if answer.status != "success":
        words = "".join(each for each in answer.error if each.isprintable())[:_TEXT_CHARS_MAX]
        raise PrometheusError(f"Prometheus refuses the query (SLIPWAY_GPU_USE_QUERY): {words or status}")
    if answer.data.result_type != "vector":
        raise PrometheusError("the result of SLIPWAY_GPU_USE_QUERY is not a list of series")
    return found


class Prometheus:
    """A client of one server.

    With an empty `token_file` no token is sent; with an empty `ca_file` the authorities of the system are trusted.
    """

    def __init__(self, url: str, *, token_file: str = "", ca_file: str = "") -> None:
        self._url = f"{url.rstrip('/')}/api/v1/query"
        self._token_file = token_file
        self._ca_file = ca_file
        self._http: httpx2.AsyncClient | None = None

    async def ask(self, expression: str, *, at: float | None = None) -> list[tuple[dict[str, str], float]]:
        """Return (labels, value) of each series at the time `at` (epoch seconds), or now. Raises PrometheusError."""
        try:
            async with asyncio.timeout(EXCHANGE_S):
                status, body = await self._exchange(expression, at)
        except TimeoutError as error:
            raise PrometheusError(f"Prometheus did not answer within {EXCHANGE_S:g} s") from error
        return samples_of(status, body)

    async def aclose(self) -> None:
        """Close the connections; the next query opens new ones."""
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()

    async def _exchange(self, expression: str, at: float | None) -> tuple[int, bytes]:
        import httpx2

        headers = {"Accept": "application/json"}
        if self._token_file:
            headers["Authorization"] = f"Bearer {await asyncio.to_thread(self._token)}"
        body = bytearray()
        try:
            http = await self._opened()
            form = {"query": expression} if at is None else {"query": expression, "time": f"{at:.3f}"}
            async with http.stream("POST", self._url, data=form, headers=headers) as response:
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > ANSWER_BYTES_MAX:
                        raise PrometheusError(f"Prometheus answers more than {ANSWER_BYTES_MAX} bytes")
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise PrometheusError(
                f"Prometheus (SLIPWAY_PROMETHEUS_URL) cannot be reached: {str(error) or type(error).__name__}"
            ) from error
        return response.status_code, bytes(body)

    def _token(self) -> str:
        try:
            return Path(self._token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise PrometheusError(f"SLIPWAY_PROMETHEUS_TOKEN_FILE: {self._token_file} cannot be read") from error

    async def _opened(self) -> "httpx2.AsyncClient":
        if self._http is None:
            import httpx2

            verify = await asyncio.to_thread(_authorities, self._ca_file)
            if self._http is None:
                agent = {"User-Agent": f"slipway/{version()}"}
                self._http = httpx2.AsyncClient(verify=verify, trust_env=False, timeout=EXCHANGE_S, headers=agent)
        return self._http


def _authorities(ca_file: str) -> Any:
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise PrometheusError(f"SLIPWAY_PROMETHEUS_CA_FILE: {ca_file} cannot be read as certificates") from error
