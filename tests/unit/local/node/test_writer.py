"""The writer of a pod's status."""

import asyncio
import uuid

from slipway.crd.meta import ObjectMeta
from slipway.local.apiserver.core import ClusterCore
from slipway.local.node.podview import NodePod
from slipway.local.node.writer import StatusWriter
from slipway.runtime.clock import SeededRandom
from slipway.runtime.tasks import TaskGroup
from tests.support.clock import FakeClock
from tests.support.kube_core import CoreKube


async def test_the_writer_ends_when_the_object_is_deleted() -> None:
    """The writer also ends when it waits for a change of the status, not only when a write finds no object."""
    clock, random = FakeClock(), SeededRandom(1)
    kube = CoreKube(ClusterCore(clock=clock.now, new_uid=lambda: str(uuid.uuid4())), random=random)
    pod = NodePod(metadata=ObjectMeta(name="p"))
    writer = StatusWriter(kube, pod, lambda seen: seen.status, clock=clock, random=random)
    async with asyncio.timeout(5), TaskGroup() as tasks:
        tasks.create_task(writer.run())
        writer.changed()
        await writer.flush()
        writer.on_deleted()
