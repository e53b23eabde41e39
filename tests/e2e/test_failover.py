"""Two schedulers as real processes: the leader dies, ends, or hangs, and the other takes over in time.

The lease is short here, so that the tests are short. The bound is the promised one: the length of the lease and a
second after a death, a second after an orderly end. `BUSY_S` is the delay of a busy machine.
tests/simulation/test_failover.py checks the promise to the millisecond in virtual time.
"""

import contextlib
import os
import signal
import time
from collections.abc import Generator

import httpx2
import pytest

from tests.support.local_stack import Json, RunningStack, running_stack
from tests.support.plain_http import NO_TLS
from tests.support.wait import wait_until

SCHEDULERS = ("scheduler", "scheduler-1")
LEASE_S = 4.0
BUSY_S = 3.0
POOL = "/apis/slipway.dev/v1alpha1/resourcepools/default"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/slipway-system/leases/slipway-scheduler-default"
ENV = {
    "SLIPWAY_LEASE_DURATION_S": str(LEASE_S),
    "SLIPWAY_LEASE_RENEW_DEADLINE_S": "2.5",
    "SLIPWAY_LEASE_RETRY_S": "0.5",
}
BODY: Json = {
    "kind": "command",
    "ranks": [{"count": 1, "resources": {"cpu": "100m"}}],
    "template": {"spec": {"containers": [{"name": "main", "image": "local", "command": ["true"]}]}},
}


@pytest.fixture(scope="module", params=["with Redis", "without Redis"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningStack]:
    folder = tmp_path_factory.mktemp("failover") / "data"
    redis = request.param == "with Redis"
    with running_stack(folder, cpus=32, redis=redis, replicas={"scheduler": 2}, env=ENV) as running:
        yield running


def ledger(stack: RunningStack) -> Json:
    """Epoch and tick of the ledger, and its open decisions."""
    found: Json = stack.kubernetes("GET", POOL)["status"]
    return found


def leader(stack: RunningStack) -> int:
    """The pid of the leading scheduler, once another one waits."""
    wait_until(lambda: len(schedulers(stack)) == 2, "two schedulers run")

    def holder() -> int | None:
        pid = int(str(stack.kubernetes("GET", LEASE)["spec"].get("holderIdentity") or "-0").rsplit("-", 1)[1])
        return pid if pid in schedulers(stack) and ledger(stack).get("epoch", 0) > 0 else None

    found = wait_until(holder, "one of them leads", timeout_s=30)
    assert found is not None
    return found


def schedulers(stack: RunningStack) -> list[int]:
    return [pid for pid in map(stack.pid, SCHEDULERS) if pid]


def is_ready(stack: RunningStack, name: str) -> bool:
    """Whether it competes for the lease: a restarted scheduler needs a moment."""
    with contextlib.suppress(httpx2.HTTPError):
        return httpx2.get(f"{stack.stack.children[name].url}/readyz", verify=NO_TLS, trust_env=False).status_code == 200
    return False


def works(stack: RunningStack) -> Json:
    """Wait until both run and a launch has ended since, so that both are warm."""
    wait_until(lambda: len(schedulers(stack)) == 2, "two schedulers run")
    for name in SCHEDULERS:
        wait_until(lambda name=name: is_ready(stack, name), f"{name} is ready", timeout_s=60)
    return stack.wait_for(stack.launch(BODY), "Terminated")


def commit_after(stack: RunningStack, before: Json, begun: float) -> float:
    """Seconds until the ledger has a tick of a later epoch, while a launch waits for it."""
    launched = stack.launch(BODY)

    def committed() -> bool:
        now = ledger(stack)
        return now["epoch"] > before["epoch"] and now.get("tick", 0) > before.get("tick", 0)

    wait_until(committed, "a tick of the new epoch", timeout_s=LEASE_S + 30)
    took_s = time.monotonic() - begun
    stack.wait_for(launched, "Terminated")
    return took_s


def test_a_leader_that_dies_is_replaced_within_its_lease_and_a_second(pair: RunningStack) -> None:
    """kill -9 releases nothing: the standby waits for the lease, and no longer."""
    works(pair)
    victim, before = leader(pair), ledger(pair)
    begun = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    assert commit_after(pair, before, begun) <= LEASE_S + 1.0 + BUSY_S


def test_a_leader_that_ends_is_replaced_within_a_second(pair: RunningStack) -> None:
    """SIGTERM: the lease is released, and the standby, which is warm, ticks."""
    works(pair)
    victim, before = leader(pair), ledger(pair)
    begun = time.monotonic()
    os.kill(victim, signal.SIGTERM)
    assert commit_after(pair, before, begun) <= min(1.0 + BUSY_S, LEASE_S)


def test_a_leader_that_stood_still_commits_nothing(pair: RunningStack) -> None:
    """A leader is stopped for longer than its lease in the middle of a plan: when it continues, it writes neither a
    tick nor an admission."""
    works(pair)
    victim, before = leader(pair), ledger(pair)
    os.kill(victim, signal.SIGSTOP)
    try:
        commit_after(pair, before, time.monotonic())
        settled = ledger(pair)
    finally:
        os.kill(victim, signal.SIGCONT)
    later = [pair.launch(BODY) for _ in range(3)]
    for each in later:
        view = pair.wait_for(each, "Terminated")
        assert view["status"]["admission"]["epoch"] == settled["epoch"]
    assert ledger(pair)["epoch"] == settled["epoch"]
    assert leader(pair) != victim
    assert victim in schedulers(pair)
