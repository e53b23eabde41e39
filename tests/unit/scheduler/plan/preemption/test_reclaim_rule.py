"""The reclaim rule gives the same verdicts for all at once and one by one, whatever was taken and given back before."""

import random

from slipway.model.facts import QueueFact
from slipway.model.resources import CPU, GPU, Resources
from slipway.scheduler.plan.planner import queue_tree
from slipway.scheduler.plan.preemption.reclaim_rule import NOT, ReclaimClaim
from slipway.scheduler.plan.queueing.queue_tree import QueueTree
from tests.support.planner import a_snapshot, nodes

TEAMS, LEAVES = 3, 4
DEMAND = {CPU: 4_000, GPU: 1}
USES = ({CPU: 2_000}, {CPU: 1_000, GPU: 2}, {GPU: 1})


def a_tree() -> QueueTree:
    """Teams with leaf queues below them, some with a nominal, some with a weight."""
    queues = [QueueFact(name=f"team-{team}", nominal=Resources.of({CPU: 8_000})) for team in range(TEAMS)]
    for team in range(TEAMS):
        for leaf in range(LEAVES):
            nominal = Resources.of({CPU: 4_000 * leaf, GPU: leaf}) if leaf else None
            queues.append(QueueFact(name=f"q-{team}-{leaf}", parent=f"team-{team}", nominal=nominal, weight=leaf + 1))
    return queue_tree(a_snapshot(nodes(10, cpu=12, gpus=4), queues=queues))


def test_batched_verdicts_equal_single_verdicts() -> None:
    """`judge_all` and `judge` agree over many states of one tree, although `judge_all` does not find the queues above
    their due anew."""
    chance, tree = random.Random(7), a_tree()
    leaves = [f"q-{team}-{leaf}" for team in range(TEAMS) for leaf in range(LEAVES)]
    kinds = {name: [(at * len(USES) + kind, use) for kind, use in enumerate(USES)] for at, name in enumerate(leaves)}
    seen: set[int] = set()
    taken: list[tuple[str, dict[str, int]]] = []
    for _ in range(300):
        if taken and chance.random() < 0.4:
            name, use = taken.pop(chance.randrange(len(taken)))
            tree.take(name, {each: -amount for each, amount in use.items()}, preemptible=True)
        else:
            taken.append((chance.choice(leaves), chance.choice(USES)))
            tree.take(taken[-1][0], taken[-1][1], preemptible=True)
        claim = ReclaimClaim(tree, chance.choice(leaves), DEMAND)
        found = claim.judge_all(kinds, len(leaves) * len(USES))
        for name, own in kinds.items():
            for kind, use in own:
                verdict = claim.judge(name, use)
                assert found[kind] == (verdict if name != claim.queue else NOT)
                seen.add(verdict)
    assert len(seen) == 3
