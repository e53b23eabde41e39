"""The boards of the page in a browser: queues, the map of GPUs, ranks, usage."""

import json
from collections.abc import Generator
from typing import Any

import msgspec
import pytest

from slipway.api.usage.gpu_days import GpuDayRow, GpuDaysView
from slipway.api.usage.gpu_use import AllocationGpuUse, GpuUseView, RankGpuUse
from tests.browser.chromium import Page
from tests.browser.test_pages import TALK, Visit, command, gpus
from tests.support.local_stack import RunningStack
from tests.support.names import fresh
from tests.support.wait import wait_until

QUEUES = "/apis/slipway.dev/v1alpha1/queues"


@pytest.fixture
def visit(stack: RunningStack, page: Page) -> Visit:
    return Visit(stack, page)


@pytest.fixture(scope="module")
def borrower(stack: RunningStack) -> Generator[dict[str, str]]:
    """A queue that owns two GPUs, one that lends its own, and a gang that uses four; {queue, id}."""
    queue, lender = fresh("owns-two"), fresh("lends")
    for name, owned in ((queue, "2"), (lender, "8")):
        manifest = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}}
        stack.kubernetes(
            "POST", QUEUES, {**manifest, "spec": {"pool": "default", "nominal": {"nvidia.com/gpu": owned}}}
        )
    wait_until(lambda: queue in [each["name"] for each in stack.ask(lambda api: api.get("/queues"))["items"]], queue)
    id_ = stack.launch({**command(TALK, queue=queue, preemptible=True), "kind": "training", "ranks": gpus(2, 2)})
    wait_until(
        lambda: stack.view(id_)["phase"] == "Running",
        lambda: f"it runs: {stack.ask(lambda api: api.get(f'/allocations/{id_}/explain'))}",
    )
    yield {"queue": queue, "id": id_}
    # The quotas of these queues are reserved from all other users of the cluster, so delete them.
    stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))
    stack.wait_for(id_, "Terminated")
    for name in (queue, lender):
        stack.kubernetes("DELETE", f"{QUEUES}/{name}")


def answering(answers: dict[str, Any]) -> str:
    """A script that answers these addresses as an api with a Prometheus would; other requests pass."""
    bodies = {path: msgspec.json.encode(view).decode() for path, view in answers.items()}
    return f"""const ask = window.fetch, bodies = {json.dumps(bodies)};
    window.fetch = (where, how) => {{ const body = bodies[new URL(where, location).pathname];
      const headers = {{"Content-Type": "application/json"}};
      return body ? Promise.resolve(new Response(body, {{headers}})) : ask(where, how); }};"""


def test_a_queue_says_what_it_has_borrowed(visit: Visit, borrower: dict[str, str]) -> None:
    """The page shows the use beyond the nominal quota; a queue without a quota cannot exceed one."""
    visit.go("/queues")
    row = f"[...document.querySelectorAll('.tree tbody tr')].find(row => row.innerText.includes('{borrower['queue']}'))"
    cell = f"{row}?.querySelector('[data-label=Borrowed]').innerText"
    visit.page.wait_for(f"{cell} === '2'")
    visit.is_clean()


@pytest.mark.parametrize("path", ["/", "/queues/{queue}"])
def test_lists_say_how_many_gpus_work_has(visit: Visit, borrower: dict[str, str], path: str) -> None:
    """The list of all allocations and the list of a queue show the GPUs of all ranks together."""
    visit.go(path.format(**borrower))
    if path == "/":
        visit.press("Everyone's")
    rows = "[...document.querySelectorAll('.allocations tbody tr')]"
    row = f"{rows}.find(row => row.innerHTML.includes('{borrower['id']}'))"
    visit.page.wait_for(f"{row}?.querySelector('[data-label=GPUs]').innerText === '4'")
    visit.is_clean()


def test_ranks_show_which_peers_reached_the_rendezvous(visit: Visit, borrower: dict[str, str]) -> None:
    """Each rank of a gang is shown as soon as the others can reach it."""
    visit.go(f"/w/{borrower['id']}?tab=ranks")
    cells = "[...document.querySelectorAll('[data-label=Rendezvous]')].map(cell => cell.innerText)"
    visit.page.wait_for(f"{cells}.join() === 'arrived,arrived'")
    visit.is_clean()


def test_a_workload_says_what_it_used(stack: RunningStack, visit: Visit, borrower: dict[str, str]) -> None:
    """The page shows its time in each phase, over all attempts, and its GPU hours, with a link to the usage of its
    user."""
    visit.go(f"/w/{borrower['id']}")
    visit.page.wait_for("!!document.querySelector('#tab-usage')")
    visit.page.run("document.querySelector('#tab-usage').click()")
    visit.page.wait_for("document.querySelector('[aria-label=\"Time in each phase\"]')?.innerText.includes('Running')")
    visit.shows("GPU hours")
    visit.is_clean()


def test_the_node_map_shows_gpu_use_and_fragmentation(visit: Visit, borrower: dict[str, str]) -> None:
    """The map shows the use of GPUs where the api has figures; a rank without figures is marked."""
    row = AllocationGpuUse(
        id=borrower["id"],
        workspace="default",
        user="tester",
        kind="training",
        pool="default",
        queue=borrower["queue"],
        gpus=4,
        running_since="2026-01-02T03:04:05Z",
        percent=80.0,
        peak_percent=90.0,
        is_idle=False,
        ranks=[RankGpuUse(rank=0, gpus=2, percent=80.0, peak_percent=90.0)],
    )
    view = GpuUseView(is_configured=True, window_seconds=300, idle_seconds=1800, idle_percent=5, items=[row])
    visit.page.call("Page.enable")
    visit.page.call("Page.addScriptToEvaluateOnNewDocument", source=answering({"/api/v1/gpu-use": view}))
    visit.go("/cluster")
    visit.shows("Fragmentation: ")
    visit.press("By use")
    legend = "document.querySelector('.legend').innerText.split(/\\s+/).join(' ')"
    visit.page.wait_for(f"{legend}.includes('busy 2 no data 2')")
    assert visit.page.run("location.search") == "?by=use"
    visit.is_clean()


def test_usage_shows_what_was_used_beside_what_was_allocated(visit: Visit, borrower: dict[str, str]) -> None:
    """Usage is shown by day and by type of GPU, where the api has figures of past days."""
    day = "2026-01-02"
    total = GpuDayRow(by={}, held_seconds=7200.0, used_seconds=1800.0, percent=25.0)
    row = msgspec.structs.replace(total, by={"day": day, "gpuType": "H100"})
    view = GpuDaysView(is_configured=True, by=["day"], from_=day, to=day, items=[row], total=total)
    visit.page.call("Page.enable")
    visit.page.call("Page.addScriptToEvaluateOnNewDocument", source=answering({"/api/v1/gpu-use/days": view}))
    visit.go("/usage?by=day")
    visit.page.wait_for("document.querySelector('.usage tfoot [data-label=Used]')?.innerText.includes('0.5 25 %')")
    visit.press("By GPU type")
    visit.page.wait_for("!!document.querySelector('[aria-label=\"GPU hours by flavor\"] tfoot')")
    visit.page.wait_for(
        "document.querySelector('[aria-label=\"Usage by GPU type\"] tbody')?.innerText.includes('H100')"
    )
    visit.page.wait_for("document.querySelector('[data-label=\"GPU hours used\"]')?.innerText.includes('0.5')")
    visit.is_clean()
