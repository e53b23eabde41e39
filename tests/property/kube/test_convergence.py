"""After any faults of the watch, a reflector's store equals the cluster, and so do its listeners."""

import asyncio
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.errors import DeniedError, ExpiredError, UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.objects import ConfigMap
from slipway.kube.reflector import Reflector
from slipway.kube.resources import CONFIG_MAPS
from slipway.kube.store import ObjectStore, by_label
from slipway.local.apiserver.core import ClusterCore
from slipway.runtime.clock import SeededRandom
from tests.support.kube_core import CoreKube
from tests.support.virtual_time import VirtualClock, run_virtual

NAMES = st.sampled_from(["a", "b", "c", "d"])
STEP = st.one_of(
    st.tuples(st.just("put"), NAMES),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.just("pass"), st.sampled_from(["0", "0.5", "20", "400"])),
    st.tuples(
        st.sampled_from(["compact", "stall", "close", "lag", "refuse", "expire", "deny", "lose", "heal"]), st.just("")
    ),
)


class FaultyWatch:
    """A cluster, a reflector of it, and the faults between them."""

    def __init__(self) -> None:
        uids = count(1)
        self.clock = VirtualClock()
        self.core = ClusterCore(clock=self.clock.now, new_uid=lambda: f"uid-{next(uids)}")
        self.core.bootstrap()
        self.kube = CoreKube(self.core, random=SeededRandom(5))
        self.store: ObjectStore[ConfigMap] = ObjectStore({"parity": by_label("parity")})
        self.mirror: dict[str, ConfigMap] = {}
        self.store.on_change(self._mirror)
        self.reflector = Reflector(self.kube, CONFIG_MAPS, self.store, clock=self.clock, random=SeededRandom(6))
        self._writes = 0

    def _mirror(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        """The state of a listener that keys by uid."""
        if old is not None:
            assert self.mirror.pop(old.metadata.uid) == old
        if new is not None:
            assert new.metadata.uid not in self.mirror
            self.mirror[new.metadata.uid] = new

    async def step(self, what: str, argument: str) -> None:
        exists = self.core.store.find("configmaps", "default", argument) is not None
        match what:
            case "put":
                self._writes += 1
                labels = {"parity": str(self._writes % 2)}
                body = {"metadata": {"name": argument, "labels": labels}, "data": {"n": str(self._writes)}}
                if exists:
                    self.core.update("configmaps", "default", argument, body)
                else:
                    self.core.create("configmaps", "default", body)
            case "delete" if exists:
                self.core.delete("configmaps", "default", argument)
            case "pass":
                await asyncio.sleep(float(argument))
            case "compact":
                self.core.store.compact()
            case "stall":
                self.kube.is_stalled = True
            case "close":
                self.kube.closes_watches = True
            case "lag":
                self.kube.lists_at = max(self.core.version - 3, 1)
            case "refuse" | "expire" | "deny" | "lose":
                self._break(what)
            case "heal":
                self.heal()
            case _:
                pass

    def _break(self, how: str) -> None:
        error = {"expire": ExpiredError("old"), "deny": DeniedError("no")}.get(how, UnavailableError("down"))

        async def fail(_verb: Verb, _plural: str) -> None:
            raise error

        if how == "lose":
            self.kube.after = fail
        else:
            self.kube.before = fail

    def heal(self) -> None:
        async def pass_(_verb: Verb, _plural: str) -> None:
            await asyncio.sleep(0)

        self.kube.is_stalled = self.kube.closes_watches = False
        self.kube.lists_at = None
        self.kube.before = self.kube.after = pass_

    def truth(self) -> dict[str, str]:
        records = self.core.list("configmaps").items
        return {record["metadata"]["uid"]: record["metadata"]["resourceVersion"] for record in records}


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(STEP, max_size=40))
def test_the_store_converges_after_any_faults(steps: list[tuple[str, str]]) -> None:
    """Two minutes after the last fault, store, indexes and listeners equal the cluster."""

    async def main() -> None:
        weather, stop = FaultyWatch(), asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(weather.reflector.run(stop))
            for what, argument in steps:
                await weather.step(what, argument)
            weather.heal()
            await asyncio.sleep(120)
            truth = weather.truth()
            assert {item.metadata.uid: item.metadata.resource_version for item in weather.store.items()} == truth
            assert {uid: item.metadata.resource_version for uid, item in weather.mirror.items()} == truth
            indexed = [item for value in "01" for item in weather.store.indexed("parity", value)]
            assert {item.metadata.uid for item in indexed} == set(truth)
            assert weather.store.version <= weather.core.version
            stop.set()

    run_virtual(main)
