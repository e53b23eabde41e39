"""The doctor checks whether the kind is installed by which pools request nodes from an autoscaler."""

import pytest

from slipway.kube.resources import CRDS, RESOURCE_POOLS
from slipway.ops.doctor.finding import Finding
from slipway.ops.doctor.running import RunningSystem
from tests.support.provisioning_requests import definition
from tests.support.small_cluster import a_client, a_core, furnish
from tests.support.virtual_time import VirtualClock, run_virtual


def findings(mode: str | None, *, has_kind: bool) -> list[Finding]:
    """The findings when the pool requests nodes in this mode."""
    found: list[Finding] = []

    async def main() -> None:
        clock = VirtualClock()
        kube = a_client(a_core(clock.now))
        await furnish(kube)
        if has_kind:
            await kube.create(CRDS, definition(with_rules=False))
        if mode is not None:
            await kube.patch(RESOURCE_POOLS, "default", {"spec": {"autoscaling": {"mode": mode}}})
        system = RunningSystem(kube, clock, "slipway-system", 0.0)
        found.extend(await system.autoscaling(await system.elastic_pools()))

    run_virtual(main)
    return found


@pytest.mark.parametrize("mode", [None, "PlaceholderPods"])
def test_pools_that_need_no_kind_are_no_finding(mode: str | None) -> None:
    """Pools that request no nodes, or request them by pods, cause no finding."""
    assert findings(mode, has_kind=False) == []


def test_a_kind_that_is_missing_is_named_with_what_to_do() -> None:
    """A missing kind is reported with the fix, because requests of the pool have no effect."""
    (found,) = findings("ProvisioningRequest", has_kind=False)
    assert "pools use ProvisioningRequests (default), but the kind is not installed" in str(found)
    assert "install it with the Cluster Autoscaler" in str(found)


def test_a_kind_that_is_there_is_fine() -> None:
    """An installed kind is fine, and the finding names the pools that use it."""
    (found,) = findings("ProvisioningRequest", has_kind=True)
    assert "ProvisioningRequests: default" in str(found)
