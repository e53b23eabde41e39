"""Findings about the condition of a Redis server. Pure."""

import re
import shlex
from collections.abc import Iterator

from slipway.ops.doctor.clocks import judge_skew
from slipway.ops.doctor.finding import Finding, failed, ok, skipped, warning
from slipway.streams.accounts import BY_NAME
from slipway.streams.server_health import STALE_S, ServerHealth

FLOOR = (7, 0)
HEADROOM = 0.15
"""The fraction of maxmemory that should be free."""
REFUSED_SHOWN = 5
_NUMBERS = re.compile(r"(\d+)\.(\d+)")


def judge(facts: ServerHealth) -> Iterator[Finding]:
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
