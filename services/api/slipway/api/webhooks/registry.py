"""The store of webhooks: one Secret for each, in a namespace for them.

Owns reads and writes of webhooks. Must not know deliveries. A watch of the Secrets with Slipway's label keeps the
webhooks in memory, so that events and deliveries need no LIST. While that watch is interrupted, or has not begun, reads
LIST the Secrets: `fresh` each time, `known` at most every `KNOWN_S`.
"""

import asyncio
from collections.abc import Callable, Mapping

from slipway.api.cluster.watched import WatchedObjects
from slipway.api.ports import WatchingKube
from slipway.api.webhooks.hook import SELECTOR, Webhook, of_secret, secret_name, to_secret
from slipway.errors import AlreadyExistsError, NotFoundError
from slipway.kube.objects import Secret
from slipway.kube.resources import SECRETS
from slipway.kube.scope import StopSignal
from slipway.runtime.clock import Clock, Random

KNOWN_S = 5.0


class WebhookRegistry:
    """The webhooks of an installation."""

    def __init__(self, kube: WatchingKube, clock: Clock, random: Random, *, namespace: str) -> None:
        self.on_created: Callable[[str], object] = lambda _name: None
        """Called with the name of each webhook that the watch shows for the first time."""
        self._kube = kube
        self._clock = clock
        self._namespace = namespace
        self._watched = WatchedObjects(kube, SECRETS, clock, random, namespace=namespace, label_selector=SELECTOR)
        self._watched.store.on_change(self._changed)
        self._shown: dict[str, Webhook] = {}
        """{name: webhook} as the watch shows them"""
        self._known: Mapping[str, Webhook] = {}
        """{name: webhook} from the last LIST"""
        self._known_at_s = float("-inf")
        self._loading = asyncio.Lock()

    @property
    def plural(self) -> str:
        """The plural name of the watched resource."""
        return self._watched.plural

    async def run(self, stop: StopSignal) -> None:
        """Watch until `stop` is set."""
        await self._watched.run(stop)

    async def fresh(self) -> Mapping[str, Webhook]:
        """Return {name: webhook} as the watch shows them, own writes included; without a watch, from a LIST."""
        if not self._watched.is_running:
            return await self.listed()
        await self._watched.ready()
        return self._shown

    async def listed(self) -> Mapping[str, Webhook]:
        """Return {name: webhook} from a LIST of the API server."""
        asked_at_s = self._clock.monotonic()
        listed = await self._kube.list(SECRETS, namespace=self._namespace, label_selector=SELECTOR)
        found = (of_secret(secret) for secret in listed.items)
        self._known = {webhook.name: webhook for webhook in found if webhook is not None}
        self._known_at_s = asked_at_s
        return self._known

    async def known(self) -> Mapping[str, Webhook]:
        """Return {name: webhook} as the watch shows them; without a watch, from a LIST at most `KNOWN_S` old."""
        if self._watched.is_running:
            return self._shown
        async with self._loading:
            if self._clock.monotonic() - self._known_at_s >= KNOWN_S:
                await self.listed()
        return self._known

    @property
    def last(self) -> Mapping[str, Webhook]:
        """{name: webhook} as last observed, however long ago."""
        return self._shown if self._watched.is_running else self._known

    async def get(self, name: str) -> Webhook:
        """Read one webhook from the API server. Raises NotFoundError."""
        try:
            found = of_secret(await self._kube.get(SECRETS, secret_name(name), namespace=self._namespace))
        except NotFoundError:
            found = None
        if found is None:
            raise NotFoundError(f"there is no webhook {name}; GET /api/v1/webhooks lists them")
        return found

    async def create(self, webhook: Webhook) -> Webhook:
        """Create a webhook. Raises AlreadyExistsError."""
        try:
            created = await self._kube.create(SECRETS, to_secret(webhook, self._namespace))
        except AlreadyExistsError:
            raise AlreadyExistsError(
                f"webhook {webhook.name} exists; PATCH /api/v1/webhooks/{webhook.name} changes it"
            ) from None
        return self._read_back(created, webhook)

    async def replace(self, webhook: Webhook) -> Webhook:
        """Replace a webhook that was read before. Raises StaleError when it has changed since that read."""
        replaced = await self._kube.replace(SECRETS, to_secret(webhook, self._namespace))
        return self._read_back(replaced, webhook)

    async def delete(self, webhook: Webhook, *, resource_version: str = "") -> None:
        """Delete a webhook; with `resource_version`, raises StaleError when it has another version."""
        await self._kube.delete(
            SECRETS,
            secret_name(webhook.name),
            namespace=self._namespace,
            uid=webhook.uid,
            resource_version=resource_version or None,
        )
        self._known_at_s = float("-inf")

    def _read_back(self, secret: Secret, meant: Webhook) -> Webhook:
        self._known_at_s = float("-inf")
        self._watched.wrote(secret)
        stored = of_secret(secret)
        return stored if stored is not None else meant

    def _changed(self, old: Secret | None, new: Secret | None) -> None:
        was = of_secret(old) if old is not None else None
        now = of_secret(new) if new is not None else None
        if was is not None:
            self._shown.pop(was.name, None)
        if now is not None:
            self._shown[now.name] = now
            if was is None:
                self.on_created(now.name)
