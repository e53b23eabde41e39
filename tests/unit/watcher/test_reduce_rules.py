"""Rules on failures by role and exit code, and success before all ranks have ended."""

from typing import Any

import pytest

from slipway.crd.v1alpha1 import Allocation, RoleSpec, Signals, SuccessPolicy, SuccessTarget
from slipway.model.lifecycle import Event, Phase, RankState
from slipway.model.reasons import Reason, Result
from slipway.model.times import format_time
from tests.support.builders import AllocationStory, PodStory, a_pod, an_allocation
from tests.support.reductions import NOW, a_running, ending, once, settled

FAIL: dict[str, Any] = {"action": "fail", "exitCodes": [42]}
KILLED = 143


def ruled(ranks: int, *rules: dict[str, Any], limit: int = 10, **spec: Any) -> AllocationStory:
    return a_running(ranks, failurePolicy={"rules": list(rules), "maxUncountedRestarts": limit}, **spec)


def succeeding(ranks: int, *targets: dict[str, Any], **spec: Any) -> AllocationStory:
    return a_running(ranks, successPolicy={"targets": list(targets)}, **spec)


def restarts_of(allocation: Allocation) -> tuple[int, int, int, int]:
    """(attempt, restarts by the user's fault, by the infrastructure's, uncounted)."""
    status = allocation.status
    return status.attempt, status.restarts, status.infra_restarts, status.uncounted_restarts


# --- what an action means


def test_fail_ends_it_without_another_attempt() -> None:
    """The action fail ends the allocation without another attempt, whatever maxRestarts is; the message names the
    rule."""
    failed = settled(ruled(1, FAIL, maxRestarts=5).it, a_pod().exited(42))
    assert ending(failed) == (Phase.TERMINATED, Result.FAILED, Reason.RANK_FAILED)
    assert failed.status.message == "rank 0 on n0: exit code 42; failurePolicy.rules[0] says fail"


def test_the_events_name_the_rule() -> None:
    """The events have `rule`, the position of the rule in the list."""
    first = once(ruled(1, {"action": "retry", "exitCodes": [1]}, FAIL).it, a_pod().exited(42)).allocation
    entry = next(each for each in first.status.transitions if each.type is Event.TERMINATING)
    assert (entry.reason, entry.data["rule"], entry.data["exitCode"]) == (Reason.RANK_FAILED, 1, 42)


def test_a_failure_that_no_rule_matches_is_treated_as_without_rules() -> None:
    """A failure that no rule matches counts against maxRestarts."""
    again = settled(ruled(1, FAIL, maxRestarts=1).it, a_pod().exited(41))
    assert restarts_of(again) == (2, 1, 0, 0)
    assert again.status.message == "attempt 1 ended with RankFailed: rank 0 on n0: exit code 41"


def test_retry_counts_against_max_restarts() -> None:
    """The action retry counts against maxRestarts: when none are left, the allocation has failed, and the message says
    so."""
    story = ruled(1, {"action": "retry"}, maxRestarts=1)
    assert restarts_of(settled(story.it, a_pod().exited(7))) == (2, 1, 0, 0)
    failed = settled(story.with_status(restarts=1).it, a_pod().exited(7))
    assert ending(failed) == (Phase.TERMINATED, Result.FAILED, Reason.RANK_FAILED)
    assert failed.status.message == ("rank 0 on n0: exit code 7; failurePolicy.rules[0] says retry; maxRestarts is 1")


def test_not_counted_is_another_attempt_after_a_backoff() -> None:
    """The action notCounted starts another attempt after a backoff, and does not count against maxRestarts."""
    again = settled(ruled(1, {"action": "notCounted", "exitCodes": [75]}).it, a_pod().exited(75))
    assert restarts_of(again) == (2, 0, 0, 1)
    assert again.status.not_before
    assert again.status.transitions[-1].data["counted"] is False


def test_what_is_not_counted_has_a_limit_of_its_own() -> None:
    """Uncounted restarts have a limit of their own; beyond it they count, so that nothing restarts for ever."""
    story = ruled(1, {"action": "notCounted"}, limit=2, maxRestarts=1).with_status(uncounted_restarts=2)
    again = settled(story.it, a_pod().exited(75))
    assert restarts_of(again) == (2, 1, 0, 2)
    assert again.status.message.endswith("maxUncountedRestarts is 2, so it counts against maxRestarts")
    failed = settled(story.with_status(uncounted_restarts=2, restarts=1).it, a_pod().exited(75))
    assert ending(failed) == (Phase.TERMINATED, Result.FAILED, Reason.RANK_FAILED)


def test_an_ignored_failure_is_as_good_as_an_end_with_0() -> None:
    """An ignored failure is treated as an exit with 0: the others continue, and the record keeps the exit code."""
    story = ruled(2, {"action": "ignore", "exitCodes": [3]})
    on = once(story.it, a_pod(0).running(), a_pod(1).exited(3), consistent=True)
    assert on.allocation.status.phase is Phase.RUNNING
    done = settled(story.it, a_pod(0).exited(0), a_pod(1).exited(3))
    assert ending(done) == (Phase.TERMINATED, Result.SUCCEEDED, Reason.COMPLETED)
    assert done.status.message == "rank 1: exit code 3; failurePolicy.rules[0] says ignore"
    assert [(rank.phase, rank.exit_code) for rank in done.status.ranks or []] == [
        (RankState.SUCCEEDED, 0),
        (RankState.FAILED, 3),
    ]


def test_an_ignored_rank_does_not_keep_the_gang_from_running() -> None:
    """An ignored rank that ended before the others had started does not keep the gang from Running."""
    story = a_running(2, failurePolicy={"rules": [{"action": "ignore"}]}).with_status(phase=Phase.STARTING)
    recorded = once(story.it, a_pod(0).bound(), a_pod(1).exited(3)).allocation
    assert recorded.status.phase is Phase.STARTING
    assert once(recorded, a_pod(0).running(), consistent=True).allocation.status.phase is Phase.RUNNING


# --- what a rule is about


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        (a_pod().failed("NodeLost"), Reason.NODE_LOST),
        (a_pod().failed("Evicted", "low on memory"), Reason.EVICTED),
        (a_pod().running().deleted(at_s=12).with_status(phase="Failed"), Reason.POD_DELETED),
    ],
)
def test_a_lost_rank_is_named_by_disruption(lost: PodStory, reason: Reason) -> None:
    """A rule with `disruption` matches a lost rank, for work that must not run twice or to count the loss. Rules on
    exit codes do not match it."""
    failed = settled(ruled(1, {"action": "fail", "disruption": True}, maxRestarts=5).it, lost)
    assert ending(failed) == (Phase.TERMINATED, Result.FAILED, reason)
    counted = settled(ruled(1, {"action": "retry", "disruption": True}, maxRestarts=1).it, lost)
    assert restarts_of(counted) == (2, 1, 0, 0)
    assert restarts_of(settled(ruled(1, {"action": "fail"}).it, lost)) == (2, 0, 1, 0)


def test_a_counted_loss_still_avoids_its_node() -> None:
    """A counted loss still avoids its node: the rule decides only how the loss is counted."""
    lost = settled(ruled(1, {"action": "notCounted", "disruption": True}).it, a_pod().failed("Evicted"))
    assert (restarts_of(lost), lost.status.avoid_nodes) == ((2, 0, 0, 1), ["n0"])


def test_an_exit_after_the_deletion_of_its_pod_is_a_loss() -> None:
    """An exit after the deletion of its pod is a loss: the program was ordered to end, so its code is no evidence."""
    rules = ({"action": "ignore", "exitCodes": [KILLED]}, {"action": "fail", "exitCodes": [KILLED]})
    killed = a_pod().exited(KILLED, at_s=12).deleted(at_s=10)
    assert restarts_of(settled(ruled(1, *rules[:1]).it, killed)) == (2, 0, 1, 0)
    assert restarts_of(settled(ruled(1, rules[1]).it, killed)) == (2, 0, 1, 0)


def test_a_cancel_goes_before_every_rule() -> None:
    """A killed allocation is canceled, also when its rank failed by itself."""
    story = ruled(1, {"action": "notCounted"}).killed()
    assert ending(settled(story.it, a_pod().exited(75)))[1] is Result.CANCELED


# --- in a gang


def test_fail_ends_a_gang_that_could_go_on() -> None:
    """The action fail ends a gang above its minimum: minAvailable is for losses, and this failure makes the other ranks
    useless."""
    story = ruled(3, FAIL, minAvailable=1, maxRestarts=5)
    first = once(story.it, a_pod(0).running(), a_pod(1).exited(42), a_pod(2).running()).allocation
    assert (first.status.phase, first.status.transitions[-1].data["rank"]) == (Phase.TERMINATING, 1)
    spared = once(story.it, a_pod(0).running(), a_pod(1).exited(41), a_pod(2).running()).allocation
    assert spared.status.phase is Phase.RUNNING


def test_a_retry_does_not_end_a_gang_that_can_go_on() -> None:
    """The action retry does not end a gang above its minimum: it applies when the gang has lost too many ranks."""
    story = ruled(3, {"action": "retry"}, minAvailable=2, maxRestarts=1)
    on = once(story.it, a_pod(0).running(), a_pod(1).exited(7), a_pod(2).running()).allocation
    assert on.status.phase is Phase.RUNNING


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0)])
def test_the_first_failure_decides(first: int, second: int) -> None:
    """The first of two failures decides, also when a watcher that was away sees both at once."""
    story = ruled(2, FAIL, {"action": "notCounted", "exitCodes": [75]})
    pods = {0: a_pod(0).exited(42, at_s=10 + first), 1: a_pod(1).exited(75, at_s=10 + second)}
    done = settled(story.it, *pods.values())
    assert done.status.phase is (Phase.TERMINATED if first == 0 else Phase.PENDING)


def test_the_first_failure_decides_also_when_it_is_long_on_record() -> None:
    """The first fatal failure decides, also when it was recorded long ago: the record has no times, but the pods have.
    The gang could lose the first two ranks."""
    story = ruled(4, {"action": "notCounted", "exitCodes": [75]}, minAvailable=2, maxRestarts=5)
    first, second, third = a_pod(2).exited(75, at_s=8), a_pod(0).exited(1, at_s=12), a_pod(1).exited(1, at_s=30)
    on = settled(story.it, a_pod(0).running(), a_pod(1).running(), first, a_pod(3).running())
    on = settled(on, second, a_pod(1).running(), first, a_pod(3).running(), now=NOW + 5)
    assert on.status.phase is Phase.RUNNING
    assert [rank.exit_code for rank in on.status.ranks or []] == [1, None, 75, None]
    done = once(on, second, third, first, a_pod(3).running(), now=NOW + 20).allocation
    assert done.status.transitions[-1].data["rank"] == 2
    assert done.status.transitions[-1].time == format_time(NOW + 20)


@pytest.mark.parametrize(("at_s", "phase"), [(8, Phase.TERMINATED), (12, Phase.PENDING)])
def test_a_fatal_failure_goes_before_a_later_loss(at_s: int, phase: Phase) -> None:
    """A fatal failure wins over a later loss; a loss before it had already ended the attempt."""
    story = ruled(2, FAIL)
    lost = a_pod(1).running().deleted(at_s=10)
    first = once(story.it, a_pod(0).exited(42, at_s=at_s), lost).allocation
    over = lost.with_status(phase="Failed")
    assert settled(first, a_pod(0).exited(42, at_s=at_s), over).status.phase is phase


def test_a_fatal_failure_after_losses_that_the_gang_survived() -> None:
    """A fatal failure decides after losses that the gang survived, because these have not ended the attempt."""
    story = ruled(3, FAIL, minAvailable=2)
    on = settled(story.it, a_pod(0).running(), a_pod(1).failed("NodeLost"), a_pod(2).running())
    assert on.status.phase is Phase.RUNNING
    first = once(on, a_pod(0).running(), a_pod(1).failed("NodeLost"), a_pod(2).exited(42)).allocation
    assert (first.status.phase, first.status.transitions[-1].data["rank"]) == (Phase.TERMINATING, 2)


def test_a_fatal_failure_after_one_that_put_success_out_of_reach() -> None:
    """After a failure that made success impossible, a fatal one does not decide: the first has ended the attempt, also
    when both are seen at once."""
    policies = {
        "failurePolicy": {"rules": [{"action": "notCounted", "exitCodes": [75]}, FAIL]},
        "successPolicy": {"targets": [{"role": "worker", "count": 3}]},
    }
    story = a_running(3, minAvailable=1, **policies)
    done = settled(story.it, a_pod(0).exited(75, at_s=9), a_pod(1).exited(42, at_s=10), a_pod(2).exited(0, at_s=11))
    assert restarts_of(done) == (2, 0, 0, 1)


# --- success


def test_a_target_that_is_met_ends_the_others() -> None:
    """When the success policy is met, the other ranks are ended like daemons; the message names the condition."""
    story = succeeding(3, {"role": "worker", "count": 2})
    on = once(story.it, a_pod(0).exited(0), a_pod(1).running(), a_pod(2).running()).allocation
    assert on.status.phase is Phase.RUNNING
    first = once(on, a_pod(0).exited(0), a_pod(1).running(), a_pod(2).exited(0)).allocation
    assert (first.status.phase, first.status.reason) == (Phase.TERMINATING, Reason.COMPLETED)
    assert first.status.transitions[-1].data == {"target": 0}
    killed = a_pod(1).exited(KILLED, at_s=18).deleted(at_s=16)
    done = settled(first, a_pod(0).exited(0), killed, a_pod(2).exited(0))
    assert ending(done) == (Phase.TERMINATED, Result.SUCCEEDED, Reason.COMPLETED)
    assert done.status.message == "successPolicy.targets[0]: 2 of 3 ranks of worker ended well"


def test_a_failure_still_ends_it() -> None:
    """A failure still ends the gang: a success policy defines what is enough; minAvailable or a rule defines what may
    fail."""
    story = succeeding(3, {"role": "worker", "count": 1})
    first = once(story.it, a_pod(0).exited(1), a_pod(1).running(), a_pod(2).running()).allocation
    assert (first.status.phase, first.status.reason) == (Phase.TERMINATING, Reason.RANK_FAILED)


@pytest.mark.parametrize(("good_s", "bad_s", "result"), [(9, 10, Result.SUCCEEDED), (10, 9, Result.FAILED)])
def test_what_came_first_decides_between_success_and_failure(good_s: int, bad_s: int, result: Result) -> None:
    """Of a success and a failure that are seen at once, the earlier one decides."""
    story = succeeding(2, {"role": "worker", "indexes": [0]})
    assert settled(story.it, a_pod(0).exited(0, at_s=good_s), a_pod(1).exited(1, at_s=bad_s)).status.result is result


def test_a_success_that_is_out_of_reach_ends_it() -> None:
    """A gang whose success is impossible is ended, because its ranks would run for no result."""
    story = succeeding(3, {"role": "worker", "indexes": [0]}, minAvailable=1)
    first = once(story.it, a_pod(0).exited(5), a_pod(1).running(), a_pod(2).running()).allocation
    assert (first.status.phase, first.status.reason) == (Phase.TERMINATING, Reason.RANK_FAILED)


def test_an_ignored_failure_counts_for_the_success() -> None:
    """An ignored failure counts for the success like an exit with 0."""
    story = a_running(
        2,
        successPolicy={"targets": [{"role": "worker", "count": 2}]},
        failurePolicy={"rules": [{"action": "ignore", "exitCodes": [3]}]},
    )
    assert settled(story.it, a_pod(0).exited(3), a_pod(1).exited(0)).status.result is Result.SUCCEEDED


def test_a_role_is_waited_for_and_the_others_are_not() -> None:
    """The policy requires only one role; indexes count within that role."""
    roles = [RoleSpec(name="driver"), RoleSpec(name="worker", count=2)]
    policy = SuccessPolicy(targets=[SuccessTarget(role="worker", indexes=[1])])
    story = an_allocation().with_spec(ranks=roles, success_policy=policy).assigned().released().running()
    assert once(story.it, a_pod(0).exited(0), a_pod(1).exited(0), a_pod(2).running()).allocation.status.phase is (
        Phase.RUNNING
    )
    done = once(story.it, a_pod(0).running(), a_pod(1).running(), a_pod(2).exited(0)).allocation
    assert (done.status.phase, done.status.reason) == (Phase.TERMINATING, Reason.COMPLETED)


def test_a_policy_about_ranks_that_are_not_placed_decides_nothing() -> None:
    """A policy about ranks that are not placed decides nothing, because an elastic gang may start without them: then
    all its ranks must succeed."""
    roles = [RoleSpec(name="worker", count=2), RoleSpec(name="judge", min_available=0)]
    policy = SuccessPolicy(targets=[SuccessTarget(role="judge")])
    story = an_allocation(minAvailable=2).with_spec(ranks=roles, success_policy=policy)
    story = story.assigned("n0", "n1").released().running()
    assert once(story.it, a_pod(0).exited(0), a_pod(1).running()).allocation.status.phase is Phase.RUNNING
    assert settled(story.it, a_pod(0).exited(0), a_pod(1).exited(0)).status.result is Result.SUCCEEDED


def test_a_rank_that_is_waited_for_may_call_itself_a_daemon() -> None:
    """A rank that the policy requires is required also when it marks itself as a daemon."""
    story = succeeding(2, {"role": "worker", "indexes": [1]}).with_spec(signals=Signals(daemons=[1], attempt=1))
    on = settled(story.it, a_pod(0).exited(0), a_pod(1).running())
    assert on.status.phase is Phase.RUNNING
    assert settled(on, a_pod(0).exited(0), a_pod(1).exited(0)).status.result is Result.SUCCEEDED
