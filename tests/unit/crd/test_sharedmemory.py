"""The size of /dev/shm: where it is set, and what is refused."""

from typing import Any

import pytest

from slipway.crd.resolve import resolve
from slipway.crd.roleresources import size_of
from tests.support.allocations import a_pool, a_template, an_allocation

GI = 1 << 30
LIMITED = {"requests": {"memory": "16Gi"}, "limits": {"memory": "16Gi"}}
MAIN = {"name": "main", "image": "i", "command": ["c"]}


def verdict(resources: dict[str, Any], asked: str = "", template: dict[str, Any] | None = None) -> Any:
    """The verdict of `resolve` on one role."""
    ranks = [{"name": "worker", "resources": resources}]
    return resolve(an_allocation(ranks=ranks, shmSize=asked, template=template or a_template(MAIN)), a_pool())


def size(resources: dict[str, Any], asked: str = "", pool: str = "", template: dict[str, Any] | None = None) -> int:
    """The size that one role gets."""
    spec = verdict(resources, asked, template).spec
    return size_of(spec.shm_size, spec.ranks[0], spec.template, a_pool(shmSize=pool).spec)


@pytest.mark.parametrize(
    ("pool", "expected"),
    [("", 8 * GI), ("25%", 4 * GI), ("100%", 16 * GI), ("2Gi", 2 * GI), ("64Gi", 16 * GI), ("0", 0)],
)
def test_the_pool_gives_a_share_of_the_memory_limit_or_a_size(pool: str, expected: int) -> None:
    """The pool sets a share of the memory limit or a size; the default is half of the limit, and it is never more than
    the limit."""
    assert size(LIMITED, pool=pool) == expected


@pytest.mark.parametrize(("pool", "expected"), [("", 0), ("25%", 0), ("2Gi", 2 * GI)])
def test_without_a_memory_limit_there_is_no_share(pool: str, expected: int) -> None:
    """Without a memory limit there is no share: the runtime's 64 MB stay, unless the pool sets a size."""
    assert size({"memory": "16Gi"}, pool=pool) == expected


def test_the_built_in_default_makes_it_larger_only() -> None:
    """The built-in default only enlarges it: a small container keeps the 64 MB; a share that the pool sets applies
    exactly."""
    small = {"requests": {"memory": "64Mi"}, "limits": {"memory": "64Mi"}}
    assert size(small) == 0
    assert size(small, pool="25%") == 16 << 20


def test_what_the_launch_says_wins_over_the_pool() -> None:
    """The size in the launch wins over the pool, with a memory limit and without one."""
    assert size(LIMITED, "1Gi", pool="8Gi") == GI
    assert size({"memory": "16Gi"}, "1Gi", pool="25%") == GI


def test_a_template_with_a_volume_there_wins() -> None:
    """A volume at /dev/shm in the template wins; a size without effect is a warning."""
    container = {**MAIN, "volumeMounts": [{"name": "own", "mountPath": "/dev/shm/"}]}
    template = a_template(container, volumes=[{"name": "own", "emptyDir": {"medium": "Memory"}}])
    assert size(LIMITED, template=template) == size(LIMITED, "1Gi", template=template) == 0
    assert verdict(LIMITED, "64Gi", template).errors == ()
    [warning] = verdict(LIMITED, "64Gi", template).warnings
    assert "mounts /dev/shm itself" in warning


def test_a_pod_in_the_ipc_namespace_of_its_node_has_that_of_the_node() -> None:
    """A pod in the IPC namespace of its node has the node's shared memory, which a default would hide; a size in the
    launch applies."""
    template = a_template(MAIN, hostIPC=True)
    role = verdict(LIMITED).spec.ranks[0]
    assert size_of("", role, template, a_pool().spec) == 0
    assert size_of("1Gi", role, template, a_pool().spec) == GI


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("17Gi", "above the memory limit 16Gi of role worker"),
        ("lots", "is not a size; write a quantity of bytes such as 8Gi"),
        ("-1Gi", "is not a size"),
        ("8", "8 is 8 bytes; write a size of at least 1Mi"),
        ("0", "at least 1Mi"),
        ("50%", "is not a size"),
    ],
)
def test_a_size_that_cannot_be_is_refused_with_what_to_write(asked: str, words: str) -> None:
    """An invalid size is refused with its field, once, and what to write."""
    [error] = verdict(LIMITED, asked).errors
    assert error.pointer == "/shmSize"
    assert words in error.detail


def test_more_than_a_rank_requests_is_a_warning_without_a_limit() -> None:
    """Without a limit a size above the rank's request is a warning, because nothing reserves that memory."""
    [warning] = verdict({"memory": "4Gi"}, "8Gi").warnings
    assert "is above the memory that role worker requests" in warning
    assert verdict({"memory": "8Gi"}, "8Gi").warnings == ()


def test_the_spec_hash_of_what_does_not_name_it_stays() -> None:
    """The spec hash without the field does not change, so that earlier admissions stay valid: the pool's default is not
    part of the spec."""
    one, other = a_pool(), a_pool(shmSize="25%")
    assert resolve(an_allocation(template=a_template(MAIN)), one).spec_hash == (
        resolve(an_allocation(template=a_template(MAIN)), other).spec_hash
    )
