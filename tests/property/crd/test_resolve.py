"""Resolving is idempotent and deterministic, and never fails with a traceback, whatever a template contains."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from slipway.crd.meta import ObjectMeta
from slipway.crd.resolve import resolve, role_requests, template_of
from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Kind
from tests.support.allocations import Json, a_pool, an_allocation

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = [
    "spec", "metadata", "labels", "annotations", "containers", "initContainers", "volumes", "securityContext",
    "resources", "requests", "limits", "cpu", "env", "ports", "name", "image", "command", "tolerations",
    "capabilities", "add", "seccompProfile", "sysctls", "lifecycle", "postStart", "httpGet", "volumeMounts",
]  # fmt: skip
odd_objects: st.SearchStrategy[Any] = st.recursive(
    json_values,
    lambda inner: st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4) | st.lists(inner, max_size=2),
    max_leaves=20,
)
quantities: st.SearchStrategy[Any] = st.sampled_from(["1", "500m", "1Gi", 2, 0, "0.5"])


def _role(name: str, count: int, least: int | None, resources: Json) -> Json:
    minimum = {} if least is None else {"minAvailable": min(least, count)}
    return {"name": name, "count": count, "resources": resources, **minimum}


roles: st.SearchStrategy[Any] = st.builds(
    _role,
    st.sampled_from(["a", "b", "c"]),
    st.integers(1, 8),
    st.none() | st.integers(0, 8),
    st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), quantities, max_size=3),
)
specs: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"kind": st.sampled_from([kind.value for kind in Kind]), "ranks": st.lists(roles, max_size=3)},
    optional={
        "minAvailable": st.integers(1, 20),
        "env": st.dictionaries(st.sampled_from(["A", "B"]), st.text(max_size=3), max_size=2),
        "template": st.fixed_dictionaries(
            {"spec": st.fixed_dictionaries({"containers": st.just([{"name": "x", "image": "i", "command": ["c"]}])})}
        ),
        "idleTimeout": st.sampled_from(["90s", "1h"]),
    },
)


@given(specs)
def test_resolving_is_idempotent(spec: Json) -> None:
    """A resolved spec resolves to itself with the same hash and verdict."""
    first = resolve(an_allocation(**spec), a_pool())
    again = resolve(Allocation(metadata=ObjectMeta(name="llm"), spec=first.spec), a_pool())
    if not first.errors:
        assert again == first


@given(specs)
def test_a_sound_spec_is_complete(spec: Json) -> None:
    """A valid spec has every field that the scheduler and the pod worker rely on."""
    result = resolve(an_allocation(**spec), a_pool())
    if result.errors:
        return
    assert result.spec.ranks
    minima = [role.min_available for role in result.spec.ranks]
    assert all(least is not None and least <= role.count for least, role in zip(minima, result.spec.ranks, strict=True))
    total = sum(role.count for role in result.spec.ranks)
    assert 1 <= (result.spec.min_available or 0) <= total
    for role in result.spec.ranks:
        template = template_of(result.spec, role)
        assert all(container["image"] for container in template["spec"]["containers"])
        role_requests(role, template)


@given(specs, st.integers(0, 1000), st.booleans())
def test_the_hash_ignores_what_may_change(spec: Json, priority: int, hold: bool) -> None:
    """Moving an allocation in its queue does not invalidate its admission."""
    allocation = an_allocation(**spec)
    moved = msgspec.structs.replace(
        allocation, spec=msgspec.structs.replace(allocation.spec, priority=priority, hold=hold, desired="Stopped")
    )
    assert resolve(moved, a_pool()).spec_hash == resolve(allocation, a_pool()).spec_hash


@given(st.dictionaries(st.sampled_from(FIELDS), odd_objects, max_size=3), st.booleans())
def test_any_template_gets_an_answer(template: Any, privileged: bool) -> None:
    """An applied object may contain anything: the result is errors, never a crash."""
    result = resolve(an_allocation(template=template), a_pool(privilegedTemplates=privileged))
    assert len(result.spec_hash) == 64
    assert all(error.pointer == "" or error.pointer.startswith("/") for error in result.errors)
    if not result.errors:
        role_requests(result.spec.ranks[0], result.spec.template)


@given(st.dictionaries(st.text(max_size=8), odd_objects, max_size=3))
def test_any_resources_get_an_answer(resources: Any) -> None:
    """The resources of a role give errors too; valid ones can be counted."""
    result = resolve(an_allocation(kind="notebook", ranks=[{"resources": resources}]), a_pool())
    if not result.errors:
        role_requests(result.spec.ranks[0], result.spec.template)
