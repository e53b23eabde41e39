"""What GPUs do, beside which work holds them: which series belong to which rank, and which work counts as idle."""

from collections.abc import Mapping

import pytest

from slipway.api.settings import Settings
from slipway.api.usage.gpu_days import GpuDay
from slipway.api.usage.gpu_use import (
    AllocationGpuUse,
    PodGpuUse,
    PodKey,
    Sample,
    expected_samples,
    query_of,
    read_use,
    use_of,
)
from slipway.api.usage.prometheus import check_prometheus_url
from slipway.crd.meta import ObjectMeta
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation, AllocationSpec, AllocationStatus, RankStatus
from slipway.model.ids import pod_name
from slipway.model.lifecycle import Kind, Phase, RankState
from slipway.model.times import format_time
from slipway.runtime.clock import SystemClock
from tests.support.api_world import ApiWorld, api_world

NOW, IDLE_S = 10_000_000.0, 1_800.0
OFTEN = expected_samples(IDLE_S)


def a_gang(
    name: str = "run-a", *, ranks: int = 2, gpus: int = 4, runs_s: float = 7_200.0, phase: Phase = Phase.RUNNING
) -> Allocation:
    status = AllocationStatus(
        phase=phase,
        attempt=1,
        slots=ranks * gpus,
        ranks=[RankStatus(phase=RankState.RUNNING)] * ranks,
        started_at=format_time(NOW - runs_s, "seconds"),
    )
    return Allocation(
        metadata=ObjectMeta(name=name, namespace="default", uid="11111111-0000-0000-0000-000000000000"),
        spec=AllocationSpec(kind=Kind.TRAINING, queue="research", pool="default"),
        status=status,
    )


def key_of(allocation: Allocation, rank: int, attempt: int = 1) -> PodKey:
    return "default", pod_name(id_of(allocation), attempt, rank)


def figures(*, mean: float, peak: float, gpus: int = 4, samples: float = OFTEN) -> PodGpuUse:
    return PodGpuUse(gpus=gpus, mean=mean, peak=peak, samples=samples)


def the_row(allocation: Allocation, use: Mapping[PodKey, PodGpuUse]) -> AllocationGpuUse:
    [row] = use_of([allocation], use, now=NOW, idle_s=IDLE_S, idle_percent=5.0)
    return row


def series(value: float, figure: str, **labels: str) -> Sample:
    return {"slipway_figure": figure, **labels}, value


def test_a_gang_is_as_busy_as_its_gpus_are_on_average() -> None:
    """Each GPU counts once, whichever rank has it; the peak is that of the busiest."""
    gang = a_gang()
    row = the_row(gang, {key_of(gang, 0): figures(mean=80, peak=100), key_of(gang, 1): figures(mean=20, peak=30)})
    assert (row.percent, row.peak_percent, row.is_idle) == (50.0, 100.0, False)
    assert [(rank.rank, rank.percent) for rank in row.ranks] == [(0, 80.0), (1, 20.0)]


@pytest.mark.parametrize(
    ("runs_s", "peak", "samples", "is_idle"),
    [
        (7_200.0, 4.9, OFTEN, True),
        (7_200.0, 5.0, OFTEN, False),
        (1_799.0, 0.0, OFTEN, False),
        (7_200.0, 0.0, OFTEN / 3, False),
    ],
    ids=["did nothing", "did something", "has just begun", "was rarely looked at"],
)
def test_idle_is_what_was_seen_to_do_nothing_for_the_whole_time(
    runs_s: float, peak: float, samples: float, is_idle: bool
) -> None:
    """Work that has just begun, or was rarely looked at, is not idle: the view never names busy work as idle."""
    gang = a_gang(runs_s=runs_s)
    seen = figures(mean=0, peak=peak, samples=samples)
    assert the_row(gang, {key_of(gang, 0): seen, key_of(gang, 1): seen}).is_idle is is_idle


def test_a_gang_of_which_a_rank_has_no_figures_is_not_called_idle() -> None:
    """The rank that is not seen may do all the work."""
    gang = a_gang()
    row = the_row(gang, {key_of(gang, 0): figures(mean=0, peak=0)})
    assert (row.is_idle, row.percent) == (False, 0.0)


def test_figures_of_another_attempt_are_not_taken() -> None:
    """Pods of the attempt before have other names."""
    gang = a_gang()
    row = the_row(gang, {key_of(gang, 0, attempt=2): figures(mean=90, peak=90)})
    assert (row.percent, row.ranks) == (None, [])


def test_only_what_runs_and_holds_gpus_is_told_the_idle_first_then_the_larger() -> None:
    """Work that waits or has no GPU wastes none."""
    idle, small, large = a_gang("run-idle", ranks=1), a_gang("run-small", ranks=1), a_gang("run-large", ranks=3)
    others = [a_gang("run-waits", phase=Phase.PENDING), a_gang("run-cpu", gpus=0)]
    use = {key_of(idle, 0): figures(mean=0, peak=0)}
    found = use_of([*others, small, large, idle], use, now=NOW, idle_s=IDLE_S, idle_percent=5.0)
    assert [row.id for row in found] == [id_of(each) for each in (idle, large, small)]


def test_the_labels_of_a_scrape_with_and_without_honor_labels_name_the_same_pod() -> None:
    """Without `honorLabels`, `pod` is the exporter's own, and the rank that the exporter names is in `exported_pod`."""
    exported = {"namespace": "gpu", "pod": "dcgm-x", "exported_namespace": "default", "exported_pod": "run-a"}
    honest = {"namespace": "default", "pod": "run-b"}
    found = read_use(
        series(value, figure, **labels)
        for labels in (exported, honest)
        for figure, value in (("mean", 10.0), ("peak", 20.0), ("samples", 30.0), ("gpus", 2.0))
    )
    assert found == {
        ("default", name): PodGpuUse(gpus=2, mean=10.0, peak=20.0, samples=30.0) for name in ("run-a", "run-b")
    }


def test_series_without_a_number_or_with_a_figure_missing_are_left_out() -> None:
    """A GPU that Prometheus has just lost has no mean, which does not make it idle."""
    own = {"namespace": "default", "pod": "run-a"}
    broken = [series(float("nan"), "mean", **own), *(series(1.0, name, **own) for name in ("peak", "samples", "gpus"))]
    assert read_use(broken) == {}


def test_a_query_looks_at_a_gpu_thirty_times_and_at_least_once_a_minute() -> None:
    """Samples of a minute are enough, however long the idle time is."""
    assert "[1800s:60s]" in query_of("X", 1_800.0)
    assert "[60s:2s]" in query_of("X", 60.0)
    assert "(100 * Y)[300s:" in query_of("100 * Y", 1_800.0)


@pytest.mark.parametrize("text", ["prometheus:9090", "ftp://a", "http://a?x=1", "http://me:secret@a"])
def test_an_address_that_is_none_is_refused_with_an_example(text: str) -> None:
    """An address with a password is refused too, because the password would be in the logs of the start."""
    with pytest.raises(ValueError, match="such as http://prometheus"):
        check_prometheus_url(text)


async def test_without_a_prometheus_the_api_says_that_it_has_none(world: ApiWorld) -> None:
    """Without a Prometheus the list is empty, and it is no error; pages and commands then show no use of GPUs."""
    view = (await world.get("/gpu-use")).json()
    assert (view["isConfigured"], view["items"], view["idleSeconds"]) == (False, [], 1_800.0)


@pytest.mark.parametrize("query", ["", "?workspace=", "?user=", "?id=", "?workspace=&user=&id=", "?workspace=default"])
async def test_an_empty_filter_accepts_everything(query: str) -> None:
    """The fields of a form may be left empty, in this list as in the others."""
    today = format_time(SystemClock().now())[:10]

    async def use() -> Mapping[PodKey, PodGpuUse]:
        return {}

    async def days() -> list[GpuDay]:
        return [GpuDay(day=today, pod=("default", "p"), gpu_type="", held_s=3600.0, used_s=60.0)]

    async with api_world(Settings(prometheus_url="http://127.0.0.1:9")) as world:
        await world.launch(name="busy", ranks=[{"resources": {"nvidia.com/gpu": 1}}])
        await world.run("busy", slots=1)
        await world.parts.gpu_use.get("use", use)
        await world.parts.gpu_days.get(today, days)
        assert [row["workspace"] for row in (await world.get(f"/gpu-use{query}")).json()["items"]] == ["default"]
        of_days = query.replace("?", f"?from={today}&to={today}&") or f"?from={today}&to={today}"
        assert (await world.get(f"/gpu-use/days{of_days}")).json()["total"]["heldSeconds"] == 3600.0


async def test_days_that_are_not_known_have_a_place_among_few() -> None:
    """Each day is a long query to Prometheus, so only three run at a time. Days that were asked for lately need no
    place."""
    day = "2026-01-02"
    many, one = "/gpu-use/days?from=2025-12-01&to=2025-12-31", f"/gpu-use/days?from={day}&to={day}"

    async def nothing() -> list[GpuDay]:
        return []

    async with api_world(Settings(prometheus_url="http://127.0.0.1:9")) as world:
        places = world.parts.gpu_days_places
        await world.parts.gpu_days.get(day, nothing)
        with places.held("a"), places.held("b"), places.held("c"):
            refused = await world.get(many)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
            assert "3 questions about GPUs on past days are in progress already" in refused.json()["detail"]
            assert (await world.get(one)).status_code == 200
        away = await world.get(many)
        assert (away.status_code, away.json()["title"]) == (503, "A service that the request needs cannot be reached")
        # The address is the operators', and the answer a user's.
        assert "127.0.0.1" not in away.text
        assert "SLIPWAY_PROMETHEUS_URL" in away.text
