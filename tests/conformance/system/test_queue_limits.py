"""Run limits and budgets of queues on a real API server: writing them, reading them, and the ends that they cause."""

from tests.conformance.system.operator import GROUP
from tests.conformance.system.system import System, a_body
from tests.support.wait import wait_until


def test_a_queue_ends_its_work_and_counts_what_it_used(system: System) -> None:
    """The queue's run limit ends allocations without one of their own; the queue's budget is compared with the daily
    totals."""
    queue = {"pool": "default", "maxRuntime": "2s", "budgets": [{"gpuHours": 1000, "window": "7d"}]}
    since = system.audit.position()
    kind = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Queue"}
    system.operator.create(f"{GROUP}/queues", {**kind, "metadata": {"name": "short"}, "spec": queue})
    body = a_body("training", 1, queue="short")
    answer = system.post("/allocations", body)
    assert answer["warnings"] == ["queue short ends its allocations after 2s, although the launch sets no limit"]
    ended = system.wait_for(answer["id"], "Terminated", timeout_s=60.0)
    assert (ended["status"]["result"], ended["status"]["reason"]) == ("TimedOut", "MaxRuntime")

    def totals_are_read() -> bool:
        asked = system.audit.requests(system.installation.account("scheduler"), since=since)
        return any((each.verb, each.resource) == ("get", "configmaps") for each in asked)

    wait_until(totals_are_read, "the scheduler has read the totals", timeout_s=90.0)
