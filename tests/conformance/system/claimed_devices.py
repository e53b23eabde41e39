"""Devices of a driver that does not run, with the objects of a cluster that has it: a class, a slice of a node,
claims for pods."""

from tests.conformance.system.neighbours import PoolUnderTest
from tests.conformance.system.operator import Json
from tests.conformance.system.volumes import a_template

RESOURCES = "/apis/resource.k8s.io/v1"


def make_toys(own_pool: PoolUnderTest, node: str, name: str, *, count: int = 1) -> Json:
    """Make that many devices on the node, under this name; return a pod template that claims one."""
    driver = f"{name}.example.org"
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    own_pool.make(f"{RESOURCES}/deviceclasses", {"metadata": {"name": name}, "spec": {"selectors": [selector]}})
    devices = [{"name": f"toy-{index}"} for index in range(count)]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    own_pool.make(
        f"{RESOURCES}/resourceslices",
        {
            "metadata": {"name": f"{node}-{name}"},
            "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": devices},
        },
    )
    wanted = {"requests": [{"name": "toy", "exactly": {"deviceClassName": name}}]}
    own_pool.make(
        f"{RESOURCES}/namespaces/default/resourceclaimtemplates",
        {"metadata": {"name": name}, "spec": {"spec": {"devices": wanted}}},
    )
    template = a_template("")
    template["spec"]["volumes"] = []
    template["spec"]["resourceClaims"] = [{"name": "toy", "resourceClaimTemplateName": name}]
    template["spec"]["containers"][0]["resources"] = {"claims": [{"name": "toy"}]}
    return template
