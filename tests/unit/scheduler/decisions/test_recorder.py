"""Recorded ticks are replayed bit for bit; a lost record costs its chain, never a tick."""

import zlib

import msgspec
import pytest

from slipway.errors import InvalidError, UnavailableError
from slipway.model.facts import BudgetFact, ExtenderFact, PoolFact, QueueFact, VolumeFact
from slipway.scheduler import recorder
from slipway.scheduler.decisions import record
from slipway.scheduler.plan.state.extender_results import ExtenderAnswer, Key
from slipway.scheduler.plan.state.past_use import QueueUsage
from tests.support.planner import NAMESPACE, a_node, a_role, an_allocation, places, running
from tests.support.recording_leader import ListSink, RecordingLeader, replayed


def a_leader(sink: ListSink | None = None, *, epoch: int = 1) -> RecordingLeader:
    return RecordingLeader(sink, epoch=epoch).furnish(*(a_node(f"n{index}", cpu=4, gpus=2) for index in range(3)))


async def run_some(leadership: RecordingLeader, count: int = 4, *, prefix: str = "a") -> None:
    """Run `count` ticks that each admit something, while large allocations wait."""
    for number in range(count):
        leadership.submit(
            an_allocation(f"{prefix}{number}", a_role(2)), an_allocation(f"big{number}", a_role(1, cpu=64))
        )
        assert leadership.tick().admits
        if number:
            leadership.end(f"{prefix}{number - 1}")
    await leadership.recorder.flush()


def chains(sink: ListSink) -> list[tuple[str, int]]:
    return [(each.chain, each.number) for each in sink.entries]


async def test_recorded_ticks_are_reproduced() -> None:
    """A replay reproduces decisions, order, scores, waiting counts and reasons; the record contains the decisions."""
    leadership = a_leader()
    await run_some(leadership)
    report = replayed(leadership.log)
    assert (report.ticks, report.differences, report.skipped) == (4, [], [])
    assert (report.first, report.last, report.decisions, report.same) == (1, 4, 4, 4)
    first = record.unpack(leadership.log[0][0])
    assert [admit.allocation for admit in first.decided.admits] == ["default/a0"]
    assert first.decided.waiting == {"NoFit": 1}
    assert first.decided.reasons["default/big0"]["code"] == "NoFit"
    assert first.decided.looked[0] == "default/a0"
    assert first.decided.scores["default/a0"]["n0"]["total"] > 0
    assert chains(leadership.sink_list) == [("1-1", number) for number in range(4)]


async def test_the_growth_of_a_gang_is_a_decision() -> None:
    """A report counts a growth as a decision, so `same` is never larger than `decisions`."""
    leadership = a_leader()
    leadership.submit(running(an_allocation("elastic", a_role(3, 1)), {0: "n0"}), an_allocation("new"))
    made = leadership.tick()
    await leadership.recorder.flush()
    assert (len(made.admits), len(made.grows)) == (1, 1)
    report = replayed(leadership.log)
    assert (report.decisions, report.same, report.differences) == (2, 2, [])


async def test_only_what_changed_is_written() -> None:
    """The record of a tick after the base contains the facts that changed, and no others."""
    leadership = a_leader()
    await run_some(leadership, 2)
    base, second = (record.unpack(data) for data, _ in leadership.log)
    assert set(base.facts) >= {"nodes", "queues", "namespaces", "resourcepools", "allocations"}
    assert set(second.facts) == {"allocations"}
    assert set(second.facts["allocations"]) == {"default/a0", "default/a1", "default/big1"}


async def test_a_tick_that_decides_nothing_is_not_recorded() -> None:
    """The next record contains the facts of a tick without decisions, and of a tick whose decisions were refused."""
    leadership = a_leader()
    leadership.submit(an_allocation("big", a_role(1, cpu=64)))
    assert leadership.tick().is_empty
    leadership.submit(an_allocation("a"))
    leadership.tick(commits=False)
    leadership.submit(an_allocation("b"))
    leadership.tick()
    await leadership.recorder.flush()
    assert len(leadership.log) == 1
    assert not replayed(leadership.log).differences


async def test_a_lost_log_begins_again() -> None:
    """After a FLUSHALL the next tick is a base, with everything in it."""
    leadership = a_leader()
    await run_some(leadership, 2)
    leadership.sink_list.lose()
    await run_some(leadership, 2, prefix="b")
    assert chains(leadership.sink_list) == [("1-3", 0), ("1-3", 1)]
    assert replayed(leadership.log).ticks == 2


async def test_an_outage_costs_no_tick_and_a_base_follows() -> None:
    """The recorder packs nothing while it cannot write; then a base contains all that was missed."""
    leadership = a_leader()
    await run_some(leadership, 2)
    leadership.sink_list.fault = UnavailableError("away")
    await run_some(leadership, 2, prefix="b")
    assert chains(leadership.sink_list) == [("1-1", 0), ("1-1", 1)]
    leadership.clock.advance(recorder.AWAY_S)
    await run_some(leadership, 2, prefix="c")
    assert chains(leadership.sink_list)[2:] == [("1-5", 0), ("1-5", 1)]
    report = replayed(leadership.log)
    assert (report.ticks, report.differences) == (4, [])


async def test_what_does_not_fit_is_dropped() -> None:
    """The recorder drops records beyond `WAITING_MAX`; the next base contains the facts of the dropped ticks."""
    leadership = a_leader()
    for number in range(recorder.WAITING_MAX + 3):
        leadership.submit(an_allocation(f"a{number}"))
        leadership.tick()
        leadership.end(f"a{number}")
    await leadership.recorder.flush()
    assert len(leadership.log) == recorder.WAITING_MAX
    await run_some(leadership, 1, prefix="b")
    assert chains(leadership.sink_list)[-1] == (f"1-{recorder.WAITING_MAX + 4}", 0)
    report = replayed(leadership.log)
    assert (report.ticks, report.differences) == (recorder.WAITING_MAX + 1, [])


async def test_a_chain_is_not_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new base follows `CHAIN_MAX` records, so that a late reader finds one."""
    monkeypatch.setattr(recorder, "CHAIN_MAX", 2)
    leadership = a_leader()
    await run_some(leadership, 5)
    assert [number for _, number in chains(leadership.sink_list)] == [0, 1, 0, 1, 0]
    assert replayed(leadership.log).ticks == 5


async def test_two_leaders_and_a_deposed_one() -> None:
    """A reader separates the chains of an old and a new leader, however their entries are mixed."""
    sink = ListSink()
    old, new = a_leader(sink), a_leader(sink, epoch=2)
    await run_some(old, 2)
    await run_some(new, 2)
    await run_some(old, 1, prefix="late")
    report = replayed(old.log)
    assert (report.ticks, report.differences, report.skipped) == (5, [], [])


async def test_a_trimmed_log_is_read_from_its_first_base() -> None:
    """A replay skips records whose base is lost, and reports them as skipped."""
    leadership = a_leader()
    await run_some(leadership, 2)
    leadership.sink_list.lose()
    await run_some(leadership, 2, prefix="b")
    orphan = (leadership.log[1][0], leadership.log[1][1])
    report = replayed([orphan, *leadership.log])
    assert [each.tick for each in report.skipped] == [4]
    assert report.ticks == 2


async def test_a_gap_in_a_chain_ends_it() -> None:
    """A replay skips the records after a gap, because their inputs are incomplete."""
    leadership = a_leader()
    await run_some(leadership, 4)
    log = leadership.log
    report = replayed([log[0], *log[2:]])
    assert [each.tick for each in report.skipped] == [3, 4]
    assert (report.ticks, report.differences) == (1, [])


async def test_an_entry_of_another_version_is_passed_over() -> None:
    """A record of an unknown format is skipped; it is not refused as damaged."""
    leadership = a_leader()
    await run_some(leadership, 2)
    foreign = record.sealed(zlib.compress(b'{"format": 99, "news": true}'))
    report = replayed([(foreign, 7), *leadership.log])
    assert [(each.tick, "99" in each.why) for each in report.skipped] == [(7, True)]
    assert report.ticks == 2


async def test_any_byte_that_is_changed_is_found() -> None:
    """A record with one changed byte, at any place, is refused."""
    leadership = a_leader()
    await run_some(leadership, 2)
    for place in range(len(leadership.log[0][0])):
        log = leadership.log
        data = bytearray(log[0][0])
        data[place] ^= 1
        with pytest.raises(InvalidError):
            replayed([(bytes(data), log[0][1]), *log[1:]])


async def test_a_fact_that_was_changed_is_found() -> None:
    """The hash of the inputs finds a changed fact, also when the record is packed again."""
    leadership = a_leader()
    await run_some(leadership, 1)
    text = zlib.decompress(leadership.log[0][0][: -record.SEAL_BYTES])
    changed = text.replace(b'"name":"n1","uid":"n1"', b'"name":"n1","uid":"nx"')
    assert changed != text
    with pytest.raises(InvalidError, match="differ from the recorded"):
        replayed([(record.sealed(zlib.compress(changed)), 1)])


async def test_a_decision_that_was_changed_is_a_difference() -> None:
    """The difference names the tick, the allocation, the recorded placements and the replayed ones."""
    leadership = a_leader()
    await run_some(leadership, 1)
    made = record.unpack(leadership.log[0][0])
    [admit] = made.decided.admits
    other = msgspec.structs.replace(admit, placements={0: "n2", 1: "n2"})
    forged = msgspec.structs.replace(made, decided=msgspec.structs.replace(made.decided, admits=(other,)))
    report = replayed([(record.pack(forged), 1)])
    [difference] = report.differences
    assert (difference.tick, difference.what, difference.allocation) == (1, "admit", "default/a0")
    assert difference.recorded["placements"] == {"0": "n2", "1": "n2"}
    assert difference.replayed["placements"] == {str(rank): node for rank, node in admit.placements.items()}


async def test_another_policy_says_what_it_would_have_done() -> None:
    """By default work without GPUs is spread; a policy that packs would place it on one node."""
    leadership = a_leader()
    leadership.submit(*(an_allocation(f"a{number}") for number in range(3)))
    leadership.tick()
    await leadership.recorder.flush()
    report = replayed(leadership.log, other=lambda pool: msgspec.structs.replace(pool, scores={"MostAllocated": 1}))
    [would] = report.would
    assert {each.allocation for each in would.different} == {"default/a1", "default/a2"}
    assert {each.other["placements"]["0"] for each in would.different} == {"n0"}
    assert (report.differences, would.same) == ([], 1)
    assert not replayed(leadership.log, other=lambda pool: pool).would


async def test_a_part_of_the_log_is_replayed() -> None:
    """Records before `first` are applied to the facts, but not planned."""
    leadership = a_leader()
    await run_some(leadership, 4)
    report = replayed(leadership.log, first=2, last=3)
    assert (report.first, report.last, report.ticks) == (2, 3, 2)


def test_an_empty_log_is_refused() -> None:
    """A replay of an empty log raises InvalidError."""
    with pytest.raises(InvalidError):
        replayed([])


async def test_work_of_other_pools_is_not_kept() -> None:
    """Records contain no allocations of other pools, and none that have ended: neither before the first record nor
    since."""
    leadership = a_leader()
    leadership.put("resourcepools", "other", PoolFact(name="other", node_selector={"x": "y"}))
    leadership.submit(an_allocation("foreign", pool="other"), an_allocation("ended"))
    leadership.end("ended")
    await run_some(leadership, 2)
    first, second = (record.unpack(data).facts["allocations"] for data, _ in leadership.log)
    assert set(first) == {"default/a0", "default/big0"}
    assert set(second) == {"default/a0", "default/a1", "default/big1"}
    leadership.sink_list.lose()
    await run_some(leadership, 1, prefix="b")
    base = record.unpack(leadership.log[0][0]).facts["allocations"]
    assert set(base) == {"default/a1", "default/b0", "default/big0", "default/big1"}


async def test_where_volumes_are_is_kept() -> None:
    """A replay excludes the nodes that could not reach a volume. The fact of a claim that no allocation names any more
    is removed."""
    leadership = RecordingLeader().furnish(a_node("n0", labels={"zone": "a"}), a_node("n1", labels={"zone": "b"}))
    terms = ({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]},)
    key = f"{NAMESPACE}/data"
    leadership.cluster.volumes.put(key, VolumeFact(namespace=NAMESPACE, name="data", terms=terms), 1)
    role = a_role(cpu=8, namespace=NAMESPACE, claims=("data",))
    leadership.submit(an_allocation("first", role), an_allocation("second", role, created=1.0))
    made = leadership.tick()
    leadership.cluster.volumes.drop(key, 2)
    leadership.submit(an_allocation("plain", created=2.0))
    leadership.tick()
    await leadership.recorder.flush()
    assert places(made) == {"first": ["n1"]}
    report = replayed(leadership.log)
    assert (report.ticks, report.differences) == (2, [])


async def test_what_budgets_have_used_is_kept() -> None:
    """A queue whose budget is used up keeps its work waiting, also in a replay; a later reading is another fact."""
    leadership = a_leader()
    budget = BudgetFact(3_600_000, 86_400.0)
    leadership.put("queues", "gpus", QueueFact(name="gpus", budgets=(budget,)))
    day = leadership.clock.now() // 86_400 * 86_400
    for number, used in enumerate((3_600_000, 0)):
        leadership.cluster.set_accounts(QueueUsage(at=leadership.clock.now(), days={day: {"gpus": used}}))
        leadership.submit(an_allocation(f"g{number}", a_role(1, gpus=1), queue="gpus"), an_allocation(f"c{number}"))
        admits = {admit.allocation for admit in leadership.tick().admits}
        assert ("default/g0" in admits) == (used == 0)
    await leadership.recorder.flush()
    report = replayed(leadership.log)
    assert (report.ticks, report.differences) == (2, [])


async def test_what_extenders_have_said_is_kept() -> None:
    """A replay uses the recorded answers of extenders and calls none."""
    leadership = a_leader()
    extender = ExtenderFact(url="http://e", filter_verb="filter")
    leadership.put("resourcepools", "default", PoolFact(name="default", extenders=(extender,)))
    leadership.submit(an_allocation("a"))
    [question] = leadership.tick(answers={}).questions
    leadership.tick(answers={question.key: ExtenderAnswer(asked=frozenset(question.nodes), passed=frozenset({"n2"}))})
    await leadership.recorder.flush()
    [admit] = record.unpack(leadership.log[0][0]).decided.admits
    assert set(admit.placements.values()) == {"n2"}
    report = replayed(leadership.log)
    assert (report.ticks, report.differences) == (1, [])


async def test_what_extenders_have_said_about_who_goes_is_kept() -> None:
    """A replay evicts the same work with the recorded answers, and calls no extender."""
    leadership = a_leader()
    guard = ExtenderFact(url="http://e", preempt_verb="preempt")
    leadership.put("resourcepools", "default", PoolFact(name="default", extenders=(guard,)))
    leadership.put("queues", "default", QueueFact(name="default", within_queue="LowerPriority"))
    answers: dict[Key, ExtenderAnswer] = {}
    fillers = [an_allocation(f"low{number}", a_role(1, cpu=4), preemptible=True) for number in range(3)]
    leadership.submit(*fillers)
    assert len(leadership.tick(answers=answers).admits) == 3
    leadership.submit(an_allocation("urgent", a_role(1, cpu=4), priority=9))
    [question] = leadership.tick(answers=answers).questions
    chosen = question.offers[-1]
    answers[question.key] = ExtenderAnswer(
        asked=frozenset(question.nodes),
        passed=frozenset({chosen.node}),
        offered={offer.node: offer.ids for offer in question.offers},
    )
    [evict] = leadership.tick(answers=answers).evictions
    assert evict.uid == chosen.victims[0].allocation.uid
    await leadership.recorder.flush()
    report = replayed(leadership.log)
    assert (report.ticks, report.differences) == (2, [])


async def test_a_fact_that_can_not_be_written_ends_the_recording_and_nothing_else() -> None:
    """The recorder stops when a fact cannot be encoded: it records a tick whole or not at all. The ticks go on."""
    leadership = a_leader()
    await run_some(leadership, 2)
    leadership.submit(an_allocation("odd", hold=True, gate_message="\ud800"))
    await run_some(leadership, 2, prefix="b")
    assert len(leadership.log) == 2
    assert not replayed(leadership.log).differences
