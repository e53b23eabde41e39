"""Webhooks of an older release are moved into their own namespace, once, with their age."""

import base64
from collections.abc import Awaitable, Callable

import msgspec

from slipway.api.webhooks.hook import SELECTOR, Config, Webhook, of_secret, to_secret
from slipway.crd.meta import ANNOTATION_MOVED
from slipway.errors import NotFoundError
from slipway.kube.objects import Secret
from slipway.kube.resources import NAMESPACES, SECRETS
from slipway.ops.setup.webhooks import move
from tests.support.kube_core import CoreKube
from tests.support.small_cluster import a_client, a_core
from tests.support.virtual_time import VirtualClock, run_virtual

OLD, OWN = "slipway-system", "slipway-system-webhooks"
CONFIG = Config(url="https://receiver.example/hook")


class OlderReleaseCluster:
    """A cluster with the namespace of an older release."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.kube: CoreKube = a_client(a_core(self.clock.now))

    async def prepare(self, *names: str) -> None:
        await self.kube.create(NAMESPACES, {"metadata": {"name": OLD}})
        for name in names:
            await self.kube.create(
                SECRETS, to_secret(Webhook(name=name, config=CONFIG, key=b"k" * 32), OLD), namespace=OLD
            )
        other = {"metadata": {"name": "other"}, "data": {"a": base64.b64encode(b"b").decode()}}
        await self.kube.create(SECRETS, other, namespace=OLD)

    async def move(self) -> int:
        return await move(self.kube, source=OLD, target=OWN, release="slipway")

    async def secrets(self, namespace: str) -> dict[str, Secret]:
        listed = await self.kube.list(SECRETS, namespace=namespace)
        return {each.metadata.name: each for each in listed.items}

    async def webhooks(self, namespace: str) -> list[Webhook]:
        listed = await self.kube.list(SECRETS, namespace=namespace, label_selector=SELECTOR)
        return [found for found in map(of_secret, listed.items) if found is not None]


def _run(play: Callable[[OlderReleaseCluster], Awaitable[None]]) -> None:
    async def main() -> None:
        await play(OlderReleaseCluster())

    run_virtual(main)


def test_webhooks_are_moved_unchanged() -> None:
    """Moved webhooks keep key, filter and age, so that they still get the events that were not sent yet; other Secrets
    stay where they are."""

    async def play(older_cluster: OlderReleaseCluster) -> None:
        await older_cluster.prepare("a", "b")
        before = await older_cluster.webhooks(OLD)
        await older_cluster.clock.sleep(3_600)
        assert await older_cluster.move() == 2
        after = await older_cluster.webhooks(OWN)
        assert list(map(_said, after)) == list(map(_said, before))
        assert {each.created_at for each in after} == {each.created_at for each in before}
        assert set(await older_cluster.secrets(OWN)) == {"slipway-webhook-a", "slipway-webhook-b"}

    _run(play)


def test_the_older_release_still_has_them() -> None:
    """The older release keeps its webhooks until it is replaced, and after a rollback: they are marked and stay."""

    async def play(older_cluster: OlderReleaseCluster) -> None:
        await older_cluster.prepare("a")
        await older_cluster.move()
        assert [each.name for each in await older_cluster.webhooks(OLD)] == ["a"]
        marked = await older_cluster.secrets(OLD)
        assert marked["slipway-webhook-a"].metadata.annotations[ANNOTATION_MOVED] == OWN
        assert ANNOTATION_MOVED not in marked["other"].metadata.annotations

    _run(play)


def test_what_is_removed_does_not_come_back() -> None:
    """The next upgrade neither copies a webhook again that users removed, nor overwrites one that they changed."""

    async def play(older_cluster: OlderReleaseCluster) -> None:
        await older_cluster.prepare("a", "b")
        await older_cluster.move()
        await older_cluster.kube.delete(SECRETS, "slipway-webhook-a", namespace=OWN)
        changed = {"metadata": {"annotations": {"changed": "yes"}}}
        await older_cluster.kube.patch(SECRETS, "slipway-webhook-b", changed, namespace=OWN)
        assert await older_cluster.move() == 0
        left = await older_cluster.secrets(OWN)
        assert set(left) == {"slipway-webhook-b"}
        assert left["slipway-webhook-b"].metadata.annotations["changed"] == "yes"

    _run(play)


def test_a_move_that_was_cut_off_goes_on() -> None:
    """An interrupted move continues: a webhook that was copied but not marked is found and marked."""

    async def play(older_cluster: OlderReleaseCluster) -> None:
        await older_cluster.prepare("a")
        await older_cluster.move()
        await older_cluster.kube.patch(
            SECRETS, "slipway-webhook-a", {"metadata": {"annotations": {ANNOTATION_MOVED: None}}}, namespace=OLD
        )
        assert await older_cluster.move() == 1
        assert await older_cluster.move() == 0

    _run(play)


def test_the_namespace_is_helms() -> None:
    """The namespace has Helm's marks, so that the upgrade adopts it; an existing namespace is left as it is."""

    async def play(older_cluster: OlderReleaseCluster) -> None:
        await older_cluster.prepare()
        try:
            await older_cluster.kube.get(NAMESPACES, OWN)
        except NotFoundError:
            await older_cluster.move()
        made = (await older_cluster.kube.get(NAMESPACES, OWN)).metadata
        assert made.labels["app.kubernetes.io/managed-by"] == "Helm"
        assert made.annotations["meta.helm.sh/release-name"] == "slipway"
        assert made.annotations["meta.helm.sh/release-namespace"] == OLD
        await older_cluster.move()

    _run(play)


def _said(webhook: Webhook) -> Webhook:
    return msgspec.structs.replace(webhook, uid="", resource_version="")
