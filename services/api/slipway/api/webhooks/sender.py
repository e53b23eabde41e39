"""Sends one message once: resolve the name, check the addresses, connect to a checked address, post, read the status.

Owns the HTTP side and the meaning of an answer. Must not know queues, retries or Redis. Redirects are not followed and
bodies of answers are not read. No part of the URL is logged, because it may contain a token.

Invariant: a try ends within the time limit, whatever the receiver does.
"""

import asyncio
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from slipway.api.webhooks import hook
from slipway.api.webhooks.addresses import ForbiddenTargetError, Network, Resolver, WebhookTarget, parse_target
from slipway.api.webhooks.formats import CLOUDEVENTS_TYPE
from slipway.api.webhooks.hook import Webhook
from slipway.errors import ControlPlaneError, InvalidError
from slipway.model.numbers import number_in
from slipway.runtime.clock import Clock
from slipway.runtime.service import version

if TYPE_CHECKING:
    import httpx2

ADDRESSES_MAX = 3
"""The most addresses of a name that are tried."""
_GONE = 410
_RETRY_AFTER = ("429", "503")
_RETRY_AFTER_S_MAX = 3600.0


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """The message to send; its id is the same at each try."""

    id: str
    body: bytes
    traceparent: str = ""
    """traceparent of the span of this try"""
    content_type: str = CLOUDEVENTS_TYPE


class DeliveryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a try. `is_final` means that another try would end the same way."""

    delivered: bool
    status: int = 0
    detail: str = ""
    is_final: bool = False
    retry_after_s: float | None = None
    duration_s: float = 0.0


class Sender:
    """Sends messages; one per process. Each connection is used for one message, to one checked address."""

    def __init__(self, clock: Clock, *, timeout_s: float, allowed: Sequence[Network]) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._allowed = allowed
        self._resolver = Resolver()
        self._transport: httpx2.AsyncHTTPTransport | None = None

    async def aclose(self) -> None:
        """Close every connection."""
        self._resolver.close()
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    async def send(self, webhook: Webhook, message: Message) -> DeliveryResult:
        """Send once. It never raises, except when cancelled."""
        started_s = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._try(webhook, message)
        except TimeoutError:
            answer = DeliveryResult(delivered=False, detail=f"no answer within {self._timeout_s:g} s")
        except (ForbiddenTargetError, InvalidError) as error:
            answer = DeliveryResult(delivered=False, detail=str(error), is_final=True)
        except ControlPlaneError as error:
            answer = DeliveryResult(delivered=False, detail=str(error))
        return msgspec.structs.replace(answer, duration_s=self._clock.monotonic() - started_s)

    async def _try(self, webhook: Webhook, message: Message) -> DeliveryResult:
        import httpx2

        target = parse_target(webhook.config.url)
        addresses = (await self._resolver.resolve(target, self._allowed))[:ADDRESSES_MAX]
        said = ""
        for address in addresses:
            request = self._request(webhook, message, target, address, connect_s=self._timeout_s / len(addresses))
            try:
                response = await self._opened().handle_async_request(request)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                said = said or _reason(error)  # nothing was sent yet: another address may answer
                continue
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                return DeliveryResult(delivered=False, detail=f"the exchange broke: {type(error).__name__}")
            try:
                return _judge(response.status_code, response.headers.get("retry-after", ""))
            finally:
                await response.aclose()
        return DeliveryResult(delivered=False, detail=said)

    def _request(
        self, webhook: Webhook, message: Message, target: WebhookTarget, address: str, *, connect_s: float
    ) -> "httpx2.Request":
        import httpx2

        fields = {
            "Host": target.authority,
            "Content-Type": message.content_type,
            "User-Agent": f"slipway/{version()}",
            **({"traceparent": message.traceparent} if message.traceparent else {}),
            **hook.headers(webhook.key, message.id, message.body, now=self._clock.now()),
        }
        limit_s = self._timeout_s
        timeout = httpx2.Timeout(connect=connect_s, read=limit_s, write=limit_s, pool=limit_s)
        # The connection is to the address, but the certificate is verified for the name.
        extensions = {"timeout": timeout.as_dict(), "sni_hostname": target.host}
        url = httpx2.URL(scheme=target.scheme, host=address, port=target.port, raw_path=target.path.encode())
        return httpx2.Request("POST", url, headers=fields, content=message.body, extensions=extensions)

    def _opened(self) -> "httpx2.AsyncHTTPTransport":
        if self._transport is None:
            import httpx2

            # No limit in total: the tries of each webhook are limited, so that a dead receiver does not block others.
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
            self._transport = httpx2.AsyncHTTPTransport(limits=limits, trust_env=False)
        return self._transport


def _judge(status: int, retry_after: str) -> DeliveryResult:
    if 200 <= status < 300:
        return DeliveryResult(delivered=True, status=status)
    detail = f"answered {status}"
    if 300 <= status < 400:
        detail += "; redirects are not followed"
    after_s = number_in(retry_after)
    if str(status) not in _RETRY_AFTER or after_s is None:
        return DeliveryResult(delivered=False, status=status, detail=detail, is_final=status == _GONE)
    return DeliveryResult(delivered=False, status=status, detail=detail, retry_after_s=min(after_s, _RETRY_AFTER_S_MAX))


def _reason(error: Exception) -> str:
    """Return why there is no connection, without parts of the URL that the error repeats."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is refused: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return "no TLS connection could be made"
        cause = cause.__cause__ or cause.__context__
    return "it does not accept connections"
