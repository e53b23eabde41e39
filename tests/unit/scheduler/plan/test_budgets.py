"""Budgets: their windows, when they close a queue, and the use that adds up between two reads."""

from slipway.model.facts import BudgetFact, QueueFact
from slipway.model.mig import GPU_UNITS
from slipway.scheduler.plan.state.past_use import QueueUsage, Spent, begin_of, budget_windows, exhausted

HOUR_MS = 3_600_000
DAY = 86_400.0


def a_budget(hours: float, window_s: float = DAY) -> BudgetFact:
    return BudgetFact(round(hours * HOUR_MS), window_s)


def tree(*queues: QueueFact) -> dict[str, QueueFact]:
    return {queue.name: queue for queue in queues}


def test_windows_follow_one_another_from_time_zero() -> None:
    """Windows follow one another also before time zero; the end of one is the beginning of the next."""
    times = [-1.0, 0.0, 59.999, 60.0, 119.0]
    assert [begin_of(60.0, at) for at in times] == [-60.0, 0.0, 0.0, 60.0, 60.0]


def test_a_budget_closes_its_queue_and_all_below_it() -> None:
    queues = tree(
        QueueFact(name="lab", budgets=(a_budget(2),)),
        QueueFact(name="vision", parent="lab"),
        QueueFact(name="speech", parent="lab"),
        QueueFact(name="ops"),
    )
    spent: Spent = {DAY: {"vision": HOUR_MS, "speech": HOUR_MS - 1, "ops": 99 * HOUR_MS}}
    assert exhausted(queues, spent, 5.0) == {}
    closed = exhausted(queues, {DAY: {"vision": HOUR_MS, "speech": HOUR_MS}}, DAY + 5.0)
    assert {name: (item.queue, item.until) for name, item in closed.items()} == {
        name: ("lab", 2 * DAY) for name in ("lab", "vision", "speech")
    }


def test_of_several_budgets_the_one_that_closes_for_longest_is_said() -> None:
    """Each budget counts its own window; the one that closes the queue for longest is reported."""
    queues = tree(
        QueueFact(name="lab", budgets=(a_budget(10, 7 * DAY),)),
        QueueFact(name="team", parent="lab", budgets=(a_budget(1), a_budget(5, 2 * DAY))),
    )
    assert budget_windows(queues) == [DAY, 2 * DAY, 7 * DAY]
    only_day: Spent = {DAY: {"team": HOUR_MS}, 2 * DAY: {"team": HOUR_MS}, 7 * DAY: {"team": HOUR_MS}}
    assert exhausted(queues, only_day, 10.0)["team"].until == DAY
    week: Spent = {DAY: {"team": HOUR_MS}, 7 * DAY: {"team": 10 * HOUR_MS}}
    assert exhausted(queues, week, 10.0)["team"].queue == "lab"


def test_running_work_adds_to_its_usage() -> None:
    """GPUs in use add to the usage from the moment of the reading, within the asked window; days before the window do
    not count."""
    accounts = QueueUsage(
        at=DAY + 100.0, days={0.0: {"a": 7}, DAY: {"a": 50_000}}, held={"a": 2 * GPU_UNITS, "b": GPU_UNITS}
    )
    assert accounts.spent([DAY], DAY + 110.0) == {DAY: {"a": 70_000, "b": 10_000}}
    assert accounts.spent([2 * DAY], DAY + 100.0) == {2 * DAY: {"a": 50_007, "b": 0}}
    assert accounts.spent([DAY], 2 * DAY + 1.0) == {DAY: {"a": 2000, "b": 1000}}
    assert accounts.spent([], DAY) == {}


def test_queues_in_a_circle_come_to_an_end() -> None:
    """Queues in a circle are set aside elsewhere; `exhausted` only has to come to an end."""
    queues = tree(QueueFact(name="a", parent="b", budgets=(a_budget(1),)), QueueFact(name="b", parent="a"))
    assert exhausted(queues, {DAY: {"b": HOUR_MS}}, 0.0).keys() == {"a", "b"}
