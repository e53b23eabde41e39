"""Where webhooks are kept: a Secret each, in a namespace for them.

Owns reading and writing them. Must not know deliveries. `fresh` is what routing asks: a webhook that was there before
an event must be in a list that was made after the event. `known` may be some seconds old.
"""

import asyncio
from collections.abc import Mapping

from slipway.api.ports import Kube
from slipway.api.webhooks.hook import SELECTOR, Webhook, of_secret, secret_name, to_secret
from slipway.errors import AlreadyExistsError, NotFoundError
from slipway.kube.resources import SECRETS
from slipway.runtime.clock import Clock

KNOWN_S = 5.0


class WebhookRegistry:
    """The webhooks of an installation."""

    def __init__(self, kube: Kube, clock: Clock, *, namespace: str) -> None:
        self._kube = kube
        self._clock = clock
        self._namespace = namespace
        self._known: Mapping[str, Webhook] = {}
        self._known_at_s = float("-inf")
        self._loading = asyncio.Lock()

    async def fresh(self) -> Mapping[str, Webhook]:
        """{name: webhook} as they are now."""
        asked_at_s = self._clock.monotonic()
        listed = await self._kube.list(SECRETS, namespace=self._namespace, label_selector=SELECTOR)
        found = (of_secret(secret) for secret in listed.items)
        self._known = {webhook.name: webhook for webhook in found if webhook is not None}
        self._known_at_s = asked_at_s
        return self._known

    async def known(self) -> Mapping[str, Webhook]:
        """The same, a few seconds old at most."""
        async with self._loading:
            if self._clock.monotonic() - self._known_at_s >= KNOWN_S:
                await self.fresh()
        return self._known

    @property
    def last(self) -> Mapping[str, Webhook]:
        """The last list, however old."""
        return self._known

    async def get(self, name: str) -> Webhook:
        """One, as it is now. Raises NotFoundError."""
        try:
            found = of_secret(await self._kube.get(SECRETS, secret_name(name), namespace=self._namespace))
        except NotFoundError:
            found = None
        if found is None:
            raise NotFoundError(f"there is no webhook {name}; GET /api/v1/webhooks lists them")
        return found

    async def create(self, webhook: Webhook) -> Webhook:
        """A new one. Raises AlreadyExistsError."""
        try:
            created = await self._kube.create(SECRETS, to_secret(webhook, self._namespace))
        except AlreadyExistsError:
            raise AlreadyExistsError(
                f"webhook {webhook.name} exists; PATCH /api/v1/webhooks/{webhook.name} changes it"
            ) from None
        return self._read_back(of_secret(created), webhook)

    async def replace(self, webhook: Webhook) -> Webhook:
        """Another state of one that was read. Raises StaleError when somebody else was quicker."""
        replaced = await self._kube.replace(SECRETS, to_secret(webhook, self._namespace))
        return self._read_back(of_secret(replaced), webhook)

    async def delete(self, webhook: Webhook) -> None:
        """Remove it."""
        await self._kube.delete(SECRETS, secret_name(webhook.name), namespace=self._namespace, uid=webhook.uid)
        self._known_at_s = float("-inf")

    def _read_back(self, stored: Webhook | None, meant: Webhook) -> Webhook:
        self._known_at_s = float("-inf")
        return stored if stored is not None else meant
