"""The requests of a rank, and which container is the main one."""

import pytest

from slipway.crd.roleresources import is_nested, main_container, normal, overlaid, role_requests
from slipway.crd.v1alpha1 import RoleSpec
from slipway.model.resources import Resources
from tests.support.allocations import Json, a_template


def container(name: str, **fields: object) -> Json:
    return {"name": name, **fields}


@pytest.mark.parametrize(
    ("names", "annotation", "index"),
    [
        (["a", "b"], None, 0),
        (["a", "main"], None, 1),
        (["a", "main"], "a", 0),
        (["a", "main"], "gone", 1),
        ([], None, 0),
    ],
)
def test_the_main_container(names: list[str], annotation: str | None, index: int) -> None:
    """The main container is the one that the annotation names, else `main`, else the first."""
    template: Json = {"spec": {"containers": [container(name) for name in names]}}
    if annotation:
        template["metadata"] = {"annotations": {"slipway.dev/main-container": annotation}}
    assert main_container(template) == index


@pytest.mark.parametrize("template", [{}, {"spec": None}, {"spec": {"containers": "x"}}, {"spec": {"containers": [1]}}])
def test_a_misshapen_template_has_a_first_container(template: Json) -> None:
    """For a malformed template the main container is the first, because the caller validates the template anyway."""
    assert main_container(template) == 0


def test_extended_resources_are_limited_to_their_request() -> None:
    """Kubernetes refuses a GPU request without the same limit."""
    assert normal({"cpu": 1, "nvidia.com/gpu": 2}) == {
        "requests": {"cpu": "1", "nvidia.com/gpu": "2"},
        "limits": {"nvidia.com/gpu": "2"},
    }


def test_limits_fill_up_requests() -> None:
    """A limit without a request is the request."""
    assert normal({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": 1}}) == {
        "requests": {"cpu": "1", "memory": "1Gi"},
        "limits": {"cpu": "2", "memory": "1Gi"},
    }


def test_empty_resources_are_flat() -> None:
    """Empty resources are an empty flat map, in both spellings."""
    assert not is_nested({})
    assert normal({}) == {"requests": {}}


def test_a_named_resource_replaces_request_and_limit() -> None:
    """A role that asks for 4 cpus must not stay under the template's limit of 2."""
    base = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}}
    assert overlaid(base, {"cpu": 4}) == {"requests": {"memory": "1Gi", "cpu": "4"}}
    assert overlaid({}, {}) == {}


def test_role_resources_go_to_the_main_container() -> None:
    """Sidecars keep theirs, and all are summed."""
    template = a_template(
        container("side", resources={"requests": {"cpu": "250m"}}),
        container("main", resources={"requests": {"cpu": "1", "memory": "1Gi"}}),
    )
    role = RoleSpec(resources={"cpu": "2"})
    assert role_requests(role, template) == Resources.parse({"cpu": "2250m", "memory": "1Gi"})
    assert role_requests(RoleSpec(), template) == Resources.parse({"cpu": "1250m", "memory": "1Gi"})


def test_init_containers_raise_the_peak_and_sidecars_the_sum() -> None:
    """The request of a pod is as Kubernetes counts it: init containers raise the peak, sidecars the sum."""
    template = a_template(
        container("main"),
        initContainers=[
            container("sidecar", restartPolicy="Always", resources={"requests": {"cpu": "500m"}}),
            container("init", resources={"limits": {"cpu": "3"}}),
        ],
    )
    assert role_requests(RoleSpec(resources={"cpu": 1}), template) == Resources.parse({"cpu": "3500m"})


def test_a_role_without_a_template_asks_for_its_resources() -> None:
    """A role without a template requests its own resources, also before a template was filled in."""
    assert role_requests(RoleSpec(resources={"cpu": 1}), {}) == Resources.parse({"cpu": 1})
