"""Checks of the running system: leases, pools, queues, workspaces, nodes, and the tasks' door.

This module owns the reads and their meaning. The times of a lease come from its holder's clock. So a lease that looks
old is read twice before it is reported as old.

`judge_redis` returns the findings about the condition of a Redis server.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Protocol

from slipway.crd.meta import LABEL_WORKSPACE
from slipway.errors import DeniedError, NotFoundError
from slipway.kube.objects import Lease
from slipway.kube.ports import Gets, Lists
from slipway.kube.resources import LEASES, NAMESPACES, NODES, PROVISIONING_REQUESTS, QUEUES, RESOURCE_POOLS
from slipway.model.facts import PROVISIONING_REQUEST
from slipway.model.times import parse_time
from slipway.ops.doctor.finding import Finding, failed, judge_skew, ok, skipped, warning
from slipway.runtime.clock import Clock
from slipway.streams.accounts import BY_NAME
from slipway.streams.ports import STALE_S, ServerHealth

FEED_LEASE = "slipway-feed"
POOL_LEASE = "slipway-scheduler-"
DURATION_S = 15.0
AGAIN_S = 5.0
"""A holder renews its lease at least every four seconds."""


class Kube(Gets, Lists, Protocol):
    """The calls to Kubernetes."""


class RunningSystem:
    """Examines one system. `ahead_s`: by how many seconds the API server's clock is ahead of ours."""

    def __init__(self, kube: Kube, clock: Clock, namespace: str, ahead_s: float) -> None:
        self._kube = kube
        self._clock = clock
        self._namespace = namespace
        self._ahead_s = ahead_s

    async def workspaces(self) -> list[str]:
        """Return the namespaces that are workspaces."""
        return [
            item.metadata.name
            for item in (await self._kube.list(NAMESPACES, label_selector=f"{LABEL_WORKSPACE}=true")).items
        ]

    async def basic_objects(self) -> list[Finding]:
        """Check pools, queues, workspaces and nodes."""
        try:
            pools = [item.metadata.name for item in (await self._kube.list(RESOURCE_POOLS)).items]
            queues = {item.metadata.name: item.spec.pool for item in (await self._kube.list(QUEUES)).items}
        except NotFoundError:
            return [skipped("pools and queues", "the definitions are not installed")]
        names = await self.workspaces()
        nodes = len((await self._kube.list(NODES)).items)
        findings = [
            ok("pools", ", ".join(pools))
            if pools
            else failed("pools", "none: nothing can be placed", "kubectl apply of a ResourcePool (docs/install.md)")
        ]
        lost = sorted(name for name, pool in queues.items() if pool not in pools)
        if not queues:
            findings.append(failed("queues", "none", "kubectl apply of a Queue (docs/install.md)"))
        elif lost:
            mend = f"kubectl edit queue.slipway.dev {lost[0]}   (or create its pool)"
            findings.append(failed("queues", f"of a pool that does not exist: {', '.join(lost)}", mend))
        else:
            findings.append(ok("queues", ", ".join(sorted(queues))))
        label = f"kubectl label namespace NAME {LABEL_WORKSPACE}=true"
        findings.append(
            ok("workspaces", ", ".join(names))
            if names
            else failed("workspaces", f"no namespace has the label {LABEL_WORKSPACE}=true", label)
        )
        if nodes:
            findings.append(ok("nodes", str(nodes)))
        else:
            findings.append(failed("nodes", "none: nothing can start", "kubectl get nodes"))
        return findings

    async def elastic_pools(self) -> dict[str, str]:
        """Return {pool that requests nodes from an autoscaler: its mode}."""
        try:
            pools = (await self._kube.list(RESOURCE_POOLS)).items
        except NotFoundError:
            return {}
        return {pool.metadata.name: pool.spec.autoscaling.mode for pool in pools if pool.spec.autoscaling is not None}

    async def autoscaling(self, elastic: Mapping[str, str]) -> list[Finding]:
        """Check that the kind is installed by which the pools in `elastic` request nodes. Empty when no pool uses
        it.
        """
        asking = ", ".join(sorted(name for name, mode in elastic.items() if mode == PROVISIONING_REQUEST))
        if not asking:
            return []
        try:
            await self._kube.list(PROVISIONING_REQUESTS, namespace=self._namespace, limit=1)
        except NotFoundError:
            said = f"pools use ProvisioningRequests ({asking}), but the kind is not installed"
            mend = "install it with the Cluster Autoscaler, or set spec.autoscaling.mode: PlaceholderPods"
            return [failed("autoscaling", said, mend)]
        except DeniedError:
            return [
                skipped(
                    "autoscaling",
                    "you have no permission to list ProvisioningRequests",
                    "run it as a user who may list them",
                )
            ]
        return [ok("autoscaling", f"ProvisioningRequests: {asking}")]

    async def leases(self) -> list[Finding]:
        """Check the lease of the watchers and that of each pool: held, renewed, and with a correct clock."""
        try:
            pools = [item.metadata.name for item in (await self._kube.list(RESOURCE_POOLS)).items]
            found = await self._leases()
        except DeniedError:
            return [skipped("leases", "you may not list them", "run it as a user who may list leases")]
        except NotFoundError:
            return [skipped("leases", "the definitions are not installed")]
        wanted = {FEED_LEASE: "watcher", **{f"{POOL_LEASE}{pool}": "scheduler" for pool in pools}}
        old = [name for name in wanted if name in found and abs(self._age_s(found[name])) > DURATION_S]
        later: dict[str, Lease] = {}
        if old:
            await self._clock.sleep(AGAIN_S)
            later = await self._leases()
        return [self._lease(name, service, found.get(name), later.get(name)) for name, service in wanted.items()]

    def _lease(self, name: str, service: str, lease: Lease | None, later: Lease | None) -> Finding:
        check = f"lease {name}"
        logs = f"kubectl --namespace {self._namespace} logs deployment/slipway-{service} --tail 50"
        if lease is None or not lease.spec.holder_identity or not lease.spec.renew_time:
            return failed(check, f"no process holds it: does a {service} run in namespace {self._namespace}?", logs)
        age_s = self._age_s(lease)
        if abs(age_s) <= DURATION_S:
            skew = judge_skew(f"clock of the {service}", -min(age_s, 0.0), f"the {service}'s node", margin_s=1.5)
            if age_s < 0 and skew.mend:
                return skew
            return ok(check, f"{lease.spec.holder_identity}, renewed {max(age_s, 0.0):.0f} s ago")
        is_alive = later is not None and later.metadata.resource_version != lease.metadata.resource_version
        if is_alive:
            return judge_skew(f"clock of the {service}", -age_s, f"the {service}'s node", margin_s=3.0)
        return failed(check, f"last renewed {age_s:.0f} s ago by {lease.spec.holder_identity}", logs)

    async def _leases(self) -> dict[str, Lease]:
        listed = await self._kube.list(LEASES, namespace=self._namespace)
        return {item.metadata.name: item for item in listed.items}

    def _age_s(self, lease: Lease) -> float:
        """Return the seconds since its last renewal, by the API server's clock; negative when the renewal is in the
        future.
        """
        now = self._clock.now() + self._ahead_s
        return now - parse_time(lease.spec.renew_time) if lease.spec.renew_time else now


def judge_task_listener(listen: str, answers: bool | None) -> Finding:
    """Judge the tasks' door, from the api's report about itself."""
    if not listen:
        return warning(
            "tasks' door",
            "none: ranks cannot use the task API (preemption signals, all-gather)",
            "set api.settings.taskListen, or SLIPWAY_TASK_LISTEN",
        )
    if answers is False:
        return failed("tasks' door", f"no answer at {listen}", "read the log of the api")
    return ok("tasks' door", f"the api listens at {listen}")


FLOOR = (7, 0)
HEADROOM = 0.15
"""The fraction of maxmemory that should be free."""
REFUSED_SHOWN = 5
_NUMBERS = re.compile(r"(\d+)\.(\d+)")


def judge_redis(facts: ServerHealth) -> Iterator[Finding]:
    """Yield every finding about the server."""
    yield from _version(facts)
    if facts.role not in ("", "master"):
        yield failed("redis role", f"a {facts.role}: writes are refused", "let SLIPWAY_REDIS_URL name the master")
    yield from _memory(facts)
    yield from _persistence(facts)
    yield from _account(facts)
    if facts.time is None:
        yield skipped("redis clock", "our account may not call TIME", _grant("+time"))
    else:
        yield judge_skew("redis clock", facts.time - facts.asked_at, "the Redis server", margin_s=0.5)
    yield from _backlog(facts)


def _version(facts: ServerHealth) -> Iterator[Finding]:
    found = _NUMBERS.match(facts.version)
    if found is None:
        yield skipped("redis version", "our account may not read it", _grant("+info"))
    elif (int(found[1]), int(found[2])) < FLOOR:
        floor = f"{FLOOR[0]}.{FLOOR[1]}"
        yield failed("redis version", f"{facts.product}, older than {floor}", f"run Redis {floor} or Valkey, or newer")
    else:
        yield ok("redis version", facts.product)


def _memory(facts: ServerHealth) -> Iterator[Finding]:
    set_policy = (
        "redis-cli CONFIG SET maxmemory-policy noeviction   (and in its configuration, so that it survives a restart)"
    )
    if facts.policy is None:
        yield skipped("redis eviction", "our account may not read maxmemory-policy", _grant("+info"))
    elif facts.policy != "noeviction":
        yield failed("redis eviction", f"maxmemory-policy is {facts.policy}: keys can be evicted", set_policy)
    elif facts.evicted:
        yield warning("redis eviction", f"noeviction now; {facts.evicted} keys were evicted before", set_policy)
    else:
        yield ok("redis eviction", "noeviction")
    if facts.memory_used is None or facts.memory_max is None:
        yield skipped("redis memory", "our account may not read it", _grant("+info"))
    elif not facts.memory_max:
        mib = facts.memory_used // 2**20
        yield warning(
            "redis memory",
            f"{mib} MiB used, and no maxmemory: it may use all memory of its machine",
            "redis-cli CONFIG SET maxmemory 512mb   (docs/operating.md, Capacity, says how much it needs)",
        )
    else:
        free = 1 - facts.memory_used / facts.memory_max
        said = f"{facts.memory_used // 2**20} of {facts.memory_max // 2**20} MiB used"
        if free < HEADROOM:
            yield failed("redis memory", said, f"redis-cli CONFIG SET maxmemory {2 * facts.memory_max // 2**20}mb")
        else:
            yield ok("redis memory", said)


def _persistence(facts: ServerHealth) -> Iterator[Finding]:
    if facts.is_persisting is False:
        yield failed("redis disk", "its last write to disk failed: it may refuse writes", "redis-cli INFO persistence")
    elif facts.appendonly is None:
        yield skipped("redis disk", "our account may not read it", _grant("+info"))
    elif facts.appendonly or facts.saves:
        yield ok("redis disk", "append-only file" if facts.appendonly else "snapshots")
    else:
        yield ok("redis disk", "none: a restart loses logs, and streams must be rebuilt")


def _account(facts: ServerHealth) -> Iterator[Finding]:
    if facts.refused:
        account = BY_NAME[facts.account]
        shown = "; ".join(facts.refused[:REFUSED_SHOWN])
        more = f" and {len(facts.refused) - REFUSED_SHOWN} more" if len(facts.refused) > REFUSED_SHOWN else ""
        yield failed(
            "redis account",
            f"the account {account.name} may not: {shown}{more}",
            f"redis-cli ACL SETUSER USER {shlex.join(account.arguments())}",
        )
    else:
        yield ok("redis account", f"has all permissions that the {facts.account} needs")


def _backlog(facts: ServerHealth) -> Iterator[Finding]:
    if facts.dead is None:
        yield skipped("dead letters", "the login may not count them", "let the api check: unset SLIPWAY_REDIS_URL")
    elif facts.dead:
        yield warning("dead letters", f"{facts.dead}", "slipway dead ls; then slipway dead replay ID, or drop ID")
    else:
        yield ok("dead letters", "none")
    if facts.stale_consumers is None:
        yield skipped("consumers", "this login may not read them", "let the api check: unset SLIPWAY_REDIS_URL")
    elif facts.stale_consumers:
        yield failed(
            "consumers",
            f"{facts.stale_consumers} have held hints for over {STALE_S:.0f} s, and no other consumer has claimed them",
            "kubectl --namespace slipway-system get deployment slipway-podworker; kubectl --namespace slipway-system "
            "logs deployment/slipway-podworker",
        )
    else:
        yield ok("consumers", f"none is stale; {facts.waiting} hints are waiting")


def _grant(right: str) -> str:
    return f"to allow the check: redis-cli ACL SETUSER USER {right}"
