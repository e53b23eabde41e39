"""Defaults of kind and pool, and the validation of the result."""

from typing import Any

import msgspec
import pytest

from slipway.crd.kinds import KIND_DEFAULTS
from slipway.crd.meta import ObjectMeta
from slipway.crd.resolve import Resolved, resolve, role_requests, template_of
from slipway.crd.roleresources import containers_of, main_container
from slipway.crd.v1alpha1 import Allocation, KindDefaults, TolerationSpec
from slipway.model.lifecycle import Kind
from slipway.model.resources import Resources
from tests.support.allocations import Json, a_pool, a_template, an_allocation


def resolved(**spec: Any) -> Resolved:
    return resolve(an_allocation(**spec), a_pool())


def main_of(result: Resolved, role: int = 0) -> Json:
    template = template_of(result.spec, result.spec.ranks[role])
    return dict(containers_of(template)[main_container(template)])


def pointers(result: Resolved) -> list[str]:
    return [error.pointer for error in result.errors]


@pytest.mark.parametrize("kind", [Kind.NOTEBOOK, Kind.SHELL, Kind.TENSORBOARD])
def test_service_kinds_need_nothing_but_their_kind(kind: Kind) -> None:
    """Service kinds need nothing but their kind: `slipway notebook start` needs no argument."""
    result = resolved(kind=kind)
    defaults = KIND_DEFAULTS[kind]
    assert result.errors == ()
    assert [(role.name, role.count, role.min_available) for role in result.spec.ranks] == [("worker", 1, 1)]
    assert main_of(result)["name"] == "main"
    assert main_of(result)["image"] == defaults.image
    assert main_of(result)["command"] == defaults.command
    assert [port.port for port in result.spec.ports] == ([defaults.port] if defaults.port else [])
    assert role_requests(result.spec.ranks[0], result.spec.template) == Resources.parse(defaults.resources)
    assert result.spec.min_available == 1
    assert result.spec.preemption_grace == "1h"


def test_a_tensorboard_takes_no_slot() -> None:
    """A TensorBoard uses no slot: it has 0 GPUs by default."""
    result = resolved(kind="tensorboard")
    assert role_requests(result.spec.ranks[0], result.spec.template).gpus() == 0
    assert result.spec.env == {"TENSORBOARD_LOGDIR": "/tmp/tensorboard"}


def test_images_name_no_registry() -> None:
    """Default images name no registry, because the cluster chooses the registry."""
    for defaults in KIND_DEFAULTS.values():
        assert "." not in defaults.image.split("/")[0] or "/" not in defaults.image


@pytest.mark.parametrize("kind", ["command", "training"])
def test_a_missing_image_or_command_says_the_next_step(kind: str) -> None:
    """A missing image or command is refused with the next step, for kinds that run the user's program."""
    result = resolved(kind=kind)
    assert pointers(result) == ["/image", "/command"]
    assert f"defaults.{kind}.image" in result.errors[0].detail
    assert "entrypoint" in result.errors[1].detail


def test_an_image_may_bring_its_entrypoint() -> None:
    """A missing command is fine when the user names the image."""
    assert resolved(template=a_template({"name": "main", "image": "trainer"})).errors == ()


def test_a_missing_image_in_a_template_is_pointed_at() -> None:
    """A missing image in a template is refused with the path of its container, sidecars and init containers
    included."""
    template = a_template(
        {"name": "main", "command": ["x"]}, {"name": "side"}, initContainers=[{"name": "init", "command": ["x"]}]
    )
    assert pointers(resolved(template=template)) == [
        "/template/spec/containers/0/image",
        "/template/spec/containers/1/image",
        "/template/spec/initContainers/0/image",
    ]


def test_a_default_image_alone_has_nothing_to_run() -> None:
    """A default image alone is refused: the pool's image is a base, and without a command it runs nothing."""
    pool = a_pool(defaults={"command": {"image": "python:3.11"}})
    assert [error.pointer for error in resolve(an_allocation(kind="command"), pool).errors] == ["/command"]


def test_the_pool_overrides_the_kind_and_the_request_overrides_both() -> None:
    """The pool overrides the kind, and the request overrides both, field by field."""
    pool = a_pool(
        defaults={
            "notebook": {
                "image": "lab:2",
                "command": ["serve"],
                "resources": {"cpu": 2},
                "env": {"A": "pool", "B": "pool"},
                "port": 9000,
            }
        }
    )
    result = resolve(an_allocation(kind="notebook", env={"A": "own"}), pool)
    assert (main_of(result)["image"], main_of(result)["command"]) == ("lab:2", ["serve"])
    assert result.spec.env == {"A": "own", "B": "pool"}
    assert [port.port for port in result.spec.ports] == [9000]
    assert role_requests(result.spec.ranks[0], result.spec.template) == Resources.parse({"cpu": 2})
    own = an_allocation(
        kind="notebook",
        template=a_template({"name": "main", "image": "mine"}),
        ports=[{"name": "web", "port": 80}],
        ranks=[{"resources": {"memory": "1Mi"}}],
    )
    result = resolve(own, pool)
    assert (main_of(result)["image"], main_of(result)["command"]) == ("mine", ["serve"])
    assert [port.name for port in result.spec.ports] == ["web"]
    assert role_requests(result.spec.ranks[0], result.spec.template) == Resources.parse({"cpu": 2, "memory": "1Mi"})


def test_a_pool_may_take_the_port_away() -> None:
    """A pool may remove the port: port 0 means no port."""
    result = resolve(an_allocation(kind="notebook"), a_pool(defaults={"notebook": {"port": 0}}))
    assert result.spec.ports == []


def test_a_program_of_ones_own_is_not_mixed_with_the_default_one() -> None:
    """The user's arguments without a command are for the image's entrypoint, not for the kind's command."""
    result = resolved(kind="notebook", template=a_template({"name": "main", "image": "lab", "args": ["--x"]}))
    assert "command" not in main_of(result)
    assert main_of(result)["args"] == ["--x"]


def test_a_default_program_of_a_pool_belongs_to_its_image() -> None:
    """For commands and training another image means another program."""
    pool = a_pool(defaults={"training": {"image": "base", "command": ["python", "train.py"]}})
    assert main_of(resolve(an_allocation(), pool))["command"] == ["python", "train.py"]
    other = resolve(an_allocation(template=a_template({"name": "main", "image": "mine"})), pool)
    assert "command" not in main_of(other)


def test_the_templates_resources_count_as_said() -> None:
    """Resources of the template apply as written; defaults of the kind are used only when neither the role nor the
    template sets a value."""
    template = a_template({"name": "main", "image": "x", "command": ["x"], "resources": {"requests": {"cpu": "3"}}})
    result = resolved(template=template)
    assert role_requests(result.spec.ranks[0], result.spec.template) == Resources.parse({"cpu": 3})


def test_resources_come_out_as_requests_and_limits() -> None:
    """Resources are resolved to requests and limits, one form for the pod worker. Requests override the defaults of the
    kind one by one, so a rank has more than its GPU."""
    result = resolved(template=a_template(), ranks=[{"resources": {"cpu": 2, "nvidia.com/gpu": 1}}])
    assert result.spec.ranks[0].resources == {
        "requests": {"memory": "1Gi", "cpu": "2", "nvidia.com/gpu": "1"},
        "limits": {"nvidia.com/gpu": "1"},
    }


@pytest.mark.parametrize(
    ("minimum", "roles", "expected"),
    [
        (None, [(4, None)], (4, [4])),
        (2, [(4, None)], (2, [0])),
        (None, [(4, 3), (2, None)], (5, [3, 2])),
        (1, [(4, 3), (2, None)], (3, [3, 0])),
        (None, [(2, 0)], (1, [0])),
    ],
)
def test_minima_of_a_gang(
    minimum: int | None, roles: list[tuple[int, int | None]], expected: tuple[int, list[int]]
) -> None:
    """A role's absent minimum is 0 when the allocation sets one, else all its ranks; the gang's minimum is at least the
    sum of its roles'."""
    ranks = [
        {"name": f"r{index}", "count": count, **({} if least is None else {"minAvailable": least})}
        for index, (count, least) in enumerate(roles)
    ]
    spec = {"ranks": ranks, **({} if minimum is None else {"minAvailable": minimum})}
    result = resolved(template=a_template(), **spec)
    assert result.errors == ()
    assert (result.spec.min_available, [role.min_available for role in result.spec.ranks]) == expected


def test_a_role_may_have_a_template_of_its_own() -> None:
    """A role's own template replaces the allocation's, which may then be incomplete."""
    roles = [
        {"name": "launcher", "template": a_template({"name": "main", "image": "launch", "command": ["l"]})},
        {"name": "worker", "count": 2, "template": a_template({"name": "main", "image": "work", "command": ["w"]})},
    ]
    result = resolved(ranks=roles)
    assert result.errors == ()
    assert [main_of(result, index)["image"] for index in (0, 1)] == ["launch", "work"]
    mixed = resolved(ranks=[roles[0], {"name": "worker"}])
    assert pointers(mixed) == ["/image", "/command"]


def test_errors_in_a_roles_template_point_into_it() -> None:
    """An error in a role's template has a pointer that contains the role."""
    result = resolved(ranks=[{"template": a_template(hostNetwork=True)}])
    assert pointers(result) == ["/ranks/0/template/spec/hostNetwork"]


def test_tolerations_of_role_template_and_pool_come_together() -> None:
    """Tolerations of role, template and pool are merged, each once; the planner and the pod have the same list."""
    toleration = {"key": "gpu", "operator": "Exists"}
    pool = a_pool(tolerations=[toleration, {"key": "pool", "value": "v"}])
    template = a_template(tolerations=[{"key": "t", "operator": "Exists"}, toleration])
    result = resolve(an_allocation(template=template, ranks=[{"tolerations": [toleration]}]), pool)
    assert result.spec.ranks[0].tolerations == [
        TolerationSpec(key="gpu", operator="Exists"),
        TolerationSpec(key="t", operator="Exists"),
        TolerationSpec(key="pool", value="v"),
    ]
    bad = resolved(template=a_template(tolerations=[{"key": "t", "operator": "Sometimes"}]))
    assert pointers(bad) == ["/template/spec/tolerations/0"]


def test_pods_are_ended_by_us_alone_and_carry_no_service_variables() -> None:
    """Pods have restartPolicy Never, no service links and no account token."""
    spec = resolved(kind="notebook").spec.template["spec"]
    assert (spec["restartPolicy"], spec["enableServiceLinks"], spec["automountServiceAccountToken"]) == (
        "Never",
        False,
        False,
    )


def test_a_bad_name_is_an_error_of_the_name() -> None:
    """A bad name is refused with the message of the API server's rule and the field of the body."""
    result = resolve(an_allocation(name="Not_A_Name", kind="notebook"), a_pool())
    assert pointers(result) == ["/name"]


def test_resolving_twice_changes_nothing() -> None:
    """A resolved spec resolves to itself, with the same hash."""
    first = resolved(kind="notebook", env={"A": "1"}, ranks=[{"resources": {"cpu": 1}}])
    again = resolve(Allocation(metadata=ObjectMeta(name="llm"), spec=first.spec), a_pool())
    assert again == first


def test_the_hash_knows_the_pools_defaults() -> None:
    """A pool that changes its image after the admission is noticed at the launch."""
    other = a_pool(defaults={"notebook": {"image": "lab:3"}})
    assert resolve(an_allocation(kind="notebook"), other).spec_hash != resolved(kind="notebook").spec_hash


def test_the_callers_objects_are_not_touched() -> None:
    """Resolving does not change the caller's objects, so the same allocation may be resolved in many pools."""
    template = a_template()
    before = msgspec.json.encode(template)
    resolved(template=template)
    assert msgspec.json.encode(template) == before


def test_defaults_of_a_pool_keep_a_program_whole() -> None:
    """Defaults of a pool replace a whole program: a pool that sets only arguments drops the kind's command."""
    pool = a_pool(defaults={"notebook": msgspec.to_builtins(KindDefaults(args=["serve"]))})
    main = main_of(resolve(an_allocation(kind="notebook"), pool))
    assert (main.get("command"), main["args"]) == (None, ["serve"])
