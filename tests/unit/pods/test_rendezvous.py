"""The environment of a rank, read by the rules of the launchers that use it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipway.crd.v1alpha1 import RoleSpec
from slipway.pods.manifest import Manifests
from tests.support.allocations import a_pool, a_template
from tests.support.builders import NAMESPACE, an_allocation
from tests.support.manifests import container_of, environment_of, objects_of
from tests.support.torchrun import TorchrunOptions, torchrun_options

FIRST = f"run-0123abcd-1-0.run-0123abcd-1.{NAMESPACE}.svc"
GPU = "nvidia.com/gpu"


def a_gang(
    ranks: int,
    *,
    gpus: int = 0,
    minimum: int | None = None,
    launched: int | None = None,
    env: Mapping[str, str] | None = None,
    template_env: list[dict[str, Any]] | None = None,
) -> Manifests:
    """The objects of a gang, of which the first `launched` ranks were admitted."""
    resources = {GPU: gpus} if gpus else {"cpu": 1}
    main = {"name": "main", "image": "i", "command": ["c"], "env": template_env or []}
    role = {"name": "worker", "count": ranks, "resources": resources}
    role |= {} if minimum is None else {"minAvailable": minimum}
    story = an_allocation(template=a_template(main, {"name": "side", "image": "s"}), env=dict(env or {}))
    story = story.with_spec(ranks=msgspec.convert([role], list[RoleSpec]))
    return objects_of(story.assigned(*[f"n{index}" for index in range(launched or ranks)]).it, a_pool())


def read(manifests: Manifests, rank: int = 0, *arguments: str) -> TorchrunOptions:
    """The options that torchrun reads from the main container's environment and `arguments`."""
    return torchrun_options(environment_of(manifests, rank), arguments)


@pytest.mark.parametrize(("gpus", "processes"), [(0, 1), (1, 1), (8, 8)])
def test_torchrun_without_options_joins_the_gang(gpus: int, processes: int) -> None:
    """Every rank is a node of one job, with a process for each of its GPUs; all meet at rank 0."""
    gang = a_gang(4, gpus=gpus)
    for rank in range(4):
        options = read(gang, rank)
        assert (options.min_nodes, options.max_nodes) == (4, 4)
        assert (options.node_rank, options.nproc_per_node) == (rank, processes)
        assert (options.rdzv_backend, options.rdzv_endpoint) == ("static", f"{FIRST}:29500")


def test_torchrun_in_an_elastic_gang_meets_at_a_store_that_admits_fewer() -> None:
    """In an elastic gang torchrun gets the range from the minimum to the requested number of nodes: the gang may grow,
    and its agents admit new ranks."""
    gang = a_gang(4, minimum=2, launched=3)
    for rank in range(3):
        options = read(gang, rank)
        assert (options.min_nodes, options.max_nodes) == (2, 4)
        assert (options.rdzv_backend, options.rdzv_id) == ("c10d", "run-0123abcd-1")
        assert options.rdzv_endpoint == f"{FIRST}:29500"
        assert options.rdzv_conf == ("is_host=true" if rank == 0 else "is_host=false")


def test_an_elastic_gang_of_one_is_still_elastic() -> None:
    """An elastic gang with one of four ranks placed is still elastic: it trains alone, and three more may join."""
    options = read(a_gang(4, minimum=1, launched=1))
    assert (options.min_nodes, options.max_nodes, options.rdzv_backend) == (1, 4, "c10d")


@pytest.mark.parametrize(("gpus", "extra"), [(0, []), (1, []), (8, ["PET_NPROC_PER_NODE"])])
def test_a_rank_that_is_alone_is_told_only_what_is_not_the_default(gpus: int, extra: list[str]) -> None:
    """A single rank gets only variables that differ from the default, because each variable takes space in every
    pod."""
    told = environment_of(a_gang(1, gpus=gpus))
    assert [name for name in told if name.startswith("PET_")] == extra
    assert read(a_gang(1, gpus=gpus)).nproc_per_node == max(1, gpus)


@pytest.mark.parametrize(("gpus", "told"), [(0, "0"), (1, "0"), (8, None)])
def test_local_rank_is_there_where_one_process_is_meant(gpus: int, told: str | None) -> None:
    """LOCAL_RANK is set where one process is meant: without it Lightning starts the processes of a rank itself, and
    waits for them for ever."""
    env = environment_of(a_gang(2, gpus=gpus), 1)
    assert env.get("LOCAL_RANK") == told
    assert (env["RANK"], env["WORLD_SIZE"], env["NODE_RANK"]) == ("1", "2", "1")


def test_a_part_of_a_gpu_is_one_process() -> None:
    """A rank with a part of a GPU, and one without GPUs, has one process."""
    story = an_allocation(template=a_template())
    ranks = msgspec.convert([{"name": "w", "count": 2, "resources": {"slipway.dev/gpu-milli": 500}}], list[RoleSpec])
    env = environment_of(objects_of(story.with_spec(ranks=ranks).assigned("n0", "n1").it, a_pool()))
    assert (env["PET_NPROC_PER_NODE"], env["LOCAL_RANK"]) == ("1", "0")


def test_each_role_has_the_processes_of_its_own_gpus() -> None:
    """Each role has one process per own GPU, also a role without GPUs beside one with them."""
    roles = [
        {"name": "chief", "count": 1, "resources": {"cpu": 1}},
        {"name": "worker", "count": 1, "resources": {GPU: 4}},
    ]
    story = an_allocation(template=a_template()).with_spec(ranks=msgspec.convert(roles, list[RoleSpec]))
    gang = objects_of(story.assigned("n0", "n1").it, a_pool())
    assert [read(gang, rank).nproc_per_node for rank in (0, 1)] == [1, 4]


def test_a_users_master_port_moves_the_whole_set() -> None:
    """A user's MASTER_PORT, from the launch or the template, changes the whole set of variables consistently."""
    for gang in (
        a_gang(2, minimum=1, env={"MASTER_PORT": "4444"}),
        a_gang(2, minimum=1, template_env=[{"name": "MASTER_PORT", "value": "4444"}]),
    ):
        env = environment_of(gang, 1)
        assert (env["MASTER_PORT"], env["PET_MASTER_PORT"]) == ("4444", "4444")
        assert env["PET_RDZV_ENDPOINT"] == f"{FIRST}:4444"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PET_NNODES", "1"),
        ("PET_NODE_RANK", "7"),
        ("PET_NPROC_PER_NODE", "auto"),
        ("PET_MASTER_ADDR", "10.0.0.9"),
        ("PET_MASTER_PORT", "1"),
        ("PET_RDZV_BACKEND", "static"),
        ("PET_RDZV_ENDPOINT", "etcd:2379"),
        ("PET_RDZV_ID", "mine"),
        ("PET_RDZV_CONF", "timeout=60"),
        ("LOCAL_RANK", "3"),
        ("WORLD_SIZE", "16"),
    ],
)
def test_a_users_own_value_of_one_variable_wins(name: str, value: str) -> None:
    """A user's value of one variable wins, and the others of the set stay; the name is not repeated, which the API
    server would refuse."""
    plain, changed = environment_of(a_gang(2, minimum=1)), environment_of(a_gang(2, minimum=1, env={name: value}))
    assert changed[name] == value
    assert {key: each for key, each in changed.items() if key != name} == {
        key: each for key, each in plain.items() if key != name
    }
    listed = [item["name"] for item in container_of(a_gang(2, minimum=1, env={name: value}), 0)["env"]]
    assert len(set(listed)) == len(listed)


def test_options_on_the_command_line_win_over_the_environment() -> None:
    """Options on the command line win over the environment, as in torchrun."""
    options = read(a_gang(4), 2, "--nnodes=2", "--nproc-per-node", "3", "--node_rank=1")
    assert (options.max_nodes, options.nproc_per_node, options.node_rank) == (2, 3, 1)


@pytest.mark.parametrize("minimum", [None, 2])
def test_accelerate_on_several_gpus_joins_the_gang(minimum: int | None) -> None:
    """Accelerate on several GPUs joins the gang: it calls torchrun's code with options of its own, and leaves the nodes
    to the environment.

    Source: accelerate/utils/launch.py (`prepare_multi_gpu_env`, `_filter_args`) and commands/launch.py, 1.15.
    """
    own = ("--nproc-per-node=8", "--master-port=29500", "--rdzv-backend=static")
    gang = a_gang(4, gpus=8, minimum=minimum)
    for rank in range(4):
        options = read(gang, rank, *own)
        assert (options.max_nodes, options.node_rank, options.nproc_per_node) == (4, rank, 8)
        assert (options.rdzv_backend, options.rdzv_endpoint) == ("static", f"{FIRST}:29500")


def test_the_page_on_launchers_names_what_a_rank_finds() -> None:
    """Each variable in the table is in the environment of a rank of one GPU of an elastic gang."""
    page = (Path(__file__).parents[3] / "docs/inside.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.partition("## Launchers")[2].partition("\n## ")[0].splitlines()]
    found = " ".join(cells[3] for cells in rows if len(cells) > 4).replace("HOROVOD_*", "")
    named = set(re.findall(r"`([A-Z][A-Z_]+)", found))
    assert {"PET_NNODES", "MASTER_ADDR", "LOCAL_RANK"} <= named
    told = {item["name"] for item in container_of(a_gang(2, gpus=1, minimum=1), 0)["env"]}
    assert named <= told


def test_only_the_main_container_starts_the_launcher() -> None:
    """Only the main container has the variables of the launcher; a sidecar knows its rank but does not join."""
    names = {item["name"] for item in container_of(a_gang(2), 0, 1)["env"]}
    assert "RANK" in names
    assert not any(name.startswith("PET_") for name in names)


def test_pods_of_another_set_are_not_adopted() -> None:
    """Pods with another set of variables are not adopted, because a gang with two sets would never meet."""
    assert a_gang(4).pods[0].spec_hash != a_gang(4, minimum=2).pods[0].spec_hash
