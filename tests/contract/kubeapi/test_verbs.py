"""Every verb of the port, on every cluster behind it: what it does and how it refuses."""

import asyncio

import msgspec
import pytest

from slipway.crd.meta import Condition
from slipway.crd.v1alpha1 import AllocationStatus, Release
from slipway.errors import (
    AlreadyExistsError,
    BoundError,
    InvalidError,
    InvariantError,
    NotFoundError,
    QuotaExceededError,
    StaleError,
    TerminatingError,
    TooLargeError,
)
from slipway.kube.objects import ConfigMap, Lease, LeaseSpec
from slipway.kube.ports import PatchType
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, LEASES, NAMESPACES, NODES, POD_GROUPS, PODS, brief
from slipway.kube.statuses import put_status
from tests.contract.kubeapi.conftest import Cluster


async def test_create_get_round_trip(cluster: Cluster) -> None:
    """A created object is read back with server fields; apiVersion and kind are filled in."""
    made = await cluster.kube.create(
        CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"k": "v"}}, namespace=cluster.namespace
    )
    assert made.metadata.uid
    assert made.metadata.version > 0
    assert made.metadata.namespace == cluster.namespace
    assert await cluster.kube.get(CONFIG_MAPS, "a", namespace=cluster.namespace) == made


async def test_a_metadata_only_request_returns_metadata(cluster: Cluster) -> None:
    """Brief creates, reads and lists return names, uids and versions; each refusal has its usual error."""
    kube, namespace = cluster.kube, cluster.namespace
    made = await kube.create(brief(PODS), cluster.pod())
    whole = await kube.get(PODS, "p0", namespace=namespace)
    assert made.metadata == whole.metadata
    assert (await kube.get(brief(PODS), "p0", namespace=namespace)).metadata == whole.metadata
    assert [item.metadata for item in (await kube.list(brief(PODS), namespace=namespace)).items] == [whole.metadata]
    with pytest.raises(AlreadyExistsError):
        await kube.create(brief(PODS), cluster.pod())
    with pytest.raises(NotFoundError):
        await kube.get(brief(PODS), "p1", namespace=namespace)


async def test_served_resources_are_listed_by_version(cluster: Cluster) -> None:
    """`serves` is true for kinds of the core, of ours and of another group, and false for an unknown plural, version
    or group."""
    for resource in (PODS, ALLOCATIONS, LEASES):
        assert await cluster.kube.serves(resource)
    for change in ({"plural": "leaves"}, {"version": "v7"}, {"group": "nowhere.example.org"}):
        assert not await cluster.kube.serves(msgspec.structs.replace(LEASES, **change))


async def test_groups_of_pods_are_told_as_they_are_served(cluster: Cluster) -> None:
    """A local cluster serves groups of pods only after the option for them was set."""
    core = cluster.core
    assert not await cluster.kube.serves(POD_GROUPS)
    core.serve_pod_groups()
    assert await cluster.kube.serves(POD_GROUPS)


async def test_a_struct_is_a_body(cluster: Cluster) -> None:
    """Wire structs may be sent as they are."""
    body = msgspec.convert({"metadata": {"name": "b", "namespace": cluster.namespace}, "data": {"x": "1"}}, ConfigMap)
    made = await cluster.kube.create(CONFIG_MAPS, body)
    assert made.data == {"x": "1"}


async def test_dry_run_leaves_nothing(cluster: Cluster) -> None:
    """dryRun=All validates and answers, and nothing exists afterwards."""
    await cluster.kube.create(PODS, cluster.pod(), dry_run=True)
    with pytest.raises(NotFoundError):
        await cluster.kube.get(PODS, "p0", namespace=cluster.namespace)


async def test_create_twice_already_exists(cluster: Cluster) -> None:
    """A second create of a name raises another error than a conflict."""
    await cluster.kube.create(PODS, cluster.pod())
    with pytest.raises(AlreadyExistsError):
        await cluster.kube.create(PODS, cluster.pod())


async def test_missing_object_is_not_found(cluster: Cluster) -> None:
    """get, delete, patch and bind of a missing object raise NotFoundError."""
    kube, namespace = cluster.kube, cluster.namespace
    with pytest.raises(NotFoundError):
        await kube.get(PODS, "none", namespace=namespace)
    with pytest.raises(NotFoundError):
        await kube.delete(PODS, "none", namespace=namespace)
    with pytest.raises(NotFoundError):
        await kube.patch(PODS, "none", {"metadata": {"labels": {"a": "b"}}}, namespace=namespace)
    with pytest.raises(NotFoundError):
        await kube.bind(namespace, "none", "u", "n")
    with pytest.raises(NotFoundError):
        await kube.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace="no-such-namespace")


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a?b", "a%2fb", "", "ä"])
async def test_a_name_never_leaves_its_path(cluster: Cluster, name: str) -> None:
    """A name that no object can have is not found, whatever its effect in a URL would be."""
    with pytest.raises(NotFoundError):
        await cluster.kube.get(PODS, name, namespace=cluster.namespace)


async def test_invalid_object_names_its_fields(cluster: Cluster) -> None:
    """422 carries JSON pointers to the offending fields."""
    with pytest.raises(InvalidError) as caught:
        await cluster.kube.create(ALLOCATIONS, cluster.allocation(ranks=[{"name": "w", "count": -1}]))
    assert "/spec/ranks/0/count" in [field.pointer for field in caught.value.fields]


async def test_puts_without_a_fence_are_refused_locally(cluster: Cluster) -> None:
    """A PUT without resourceVersion is a bug of ours, and is found before it is sent."""
    with pytest.raises(InvariantError):
        await cluster.kube.replace(CONFIG_MAPS, {"metadata": {"name": "a", "namespace": cluster.namespace}})
    with pytest.raises(InvariantError):
        await cluster.kube.replace_status(ALLOCATIONS, cluster.allocation())
    with pytest.raises(InvariantError):
        await cluster.kube.create(CONFIG_MAPS, {"metadata": {"name": "a"}})


async def test_stale_writes_are_refused(cluster: Cluster) -> None:
    """Of two writes from one read, the second raises StaleError, and the first one stays."""
    kube = cluster.kube
    read = await kube.create(CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"n": "0"}}, namespace=cluster.namespace)
    first = await kube.replace(CONFIG_MAPS, msgspec.structs.replace(read, data={"n": "1"}))
    assert first.metadata.version > read.metadata.version
    with pytest.raises(StaleError):
        await kube.replace(CONFIG_MAPS, msgspec.structs.replace(read, data={"n": "2"}))
    assert (await kube.get(CONFIG_MAPS, "a", namespace=cluster.namespace)).data == {"n": "1"}


async def test_replace_status_writes_only_the_status(cluster: Cluster) -> None:
    """replace_status changes the status only; create ignores a status; defaults appear."""
    kube = cluster.kube
    made = await kube.create(ALLOCATIONS, cluster.allocation())
    assert (made.status.phase, made.status.seq, made.status.attempt) == ("Pending", 0, 1)
    changed = msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, seq=3))
    assert (await kube.replace_status(ALLOCATIONS, changed)).status.seq == 3
    with pytest.raises(StaleError):
        await kube.replace_status(ALLOCATIONS, changed)


async def test_a_status_that_was_put_is_known_without_reading_it(cluster: Cluster) -> None:
    """The server returns the metadata; the rest is known from what was read and sent, and equals the server's
    object."""
    kube = cluster.kube
    made = await kube.create(ALLOCATIONS, cluster.allocation())
    release = Release(attempt=1, pod_uids=["u0", "u1"])
    condition = Condition(type="Stuck", status="False", reason="Recovered", last_transition_time="2026-01-01T00:00:00Z")
    status = msgspec.structs.replace(made.status, seq=3, release=release, conditions=[condition])
    written = await put_status(kube, made, status)
    assert written.metadata.version > made.metadata.version
    assert written == await kube.get(ALLOCATIONS, made.metadata.name, namespace=cluster.namespace)
    with pytest.raises(StaleError):
        await put_status(kube, made, status)


async def test_transition_rules_hold(cluster: Cluster) -> None:
    """The server itself refuses a status that goes backwards."""
    kube = cluster.kube
    made = await kube.create(ALLOCATIONS, cluster.allocation())
    ahead = await kube.replace_status(
        ALLOCATIONS, msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, seq=5))
    )
    back: AllocationStatus = msgspec.structs.replace(ahead.status, seq=4)
    with pytest.raises(InvalidError):
        await kube.replace_status(ALLOCATIONS, msgspec.structs.replace(ahead, status=back))


async def test_patches(cluster: Cluster) -> None:
    """Merge patches merge; JSON patches apply in order; a failed `test` raises StaleError."""
    kube, namespace = cluster.kube, cluster.namespace
    made = await kube.create(CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"x": "1"}}, namespace=namespace)
    merged = await kube.patch(CONFIG_MAPS, "a", {"data": {"y": "2"}}, namespace=namespace)
    assert merged.data == {"x": "1", "y": "2"}
    test_uid = {"op": "test", "path": "/metadata/uid", "value": made.metadata.uid}
    remove = {"op": "remove", "path": "/data/x"}
    patched = await kube.patch(CONFIG_MAPS, "a", [test_uid, remove], namespace=namespace, type_=PatchType.JSON)
    assert patched.data == {"y": "2"}
    with pytest.raises(StaleError):
        await kube.patch(CONFIG_MAPS, "a", [test_uid | {"value": "another"}], namespace=namespace, type_=PatchType.JSON)
    stale = {"metadata": {"resourceVersion": made.metadata.resource_version}, "data": {"z": "3"}}
    with pytest.raises(StaleError):
        await kube.patch(CONFIG_MAPS, "a", stale, namespace=namespace)


async def test_delete_preconditions(cluster: Cluster) -> None:
    """A delete with another uid or an old version does nothing."""
    kube, namespace = cluster.kube, cluster.namespace
    made = await kube.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace=namespace)
    with pytest.raises(StaleError):
        await kube.delete(CONFIG_MAPS, "a", namespace=namespace, uid="6a1c0c0c-0000-0000-0000-000000000000")
    with pytest.raises(StaleError):
        await kube.delete(CONFIG_MAPS, "a", namespace=namespace, resource_version="1")
    await kube.delete(CONFIG_MAPS, "a", namespace=namespace, uid=made.metadata.uid)
    with pytest.raises(NotFoundError):
        await kube.get(CONFIG_MAPS, "a", namespace=namespace)


async def test_a_finalizer_holds_a_deleted_object(cluster: Cluster) -> None:
    """Deleting only marks an object that has finalizers; dropping the last one removes it."""
    kube, namespace = cluster.kube, cluster.namespace
    body = cluster.pod()
    body["metadata"]["finalizers"] = ["slipway.dev/tracking"]
    made = await kube.create(PODS, body)
    await kube.delete(PODS, "p0", namespace=namespace, uid=made.metadata.uid, grace_s=0)
    held = await kube.get(PODS, "p0", namespace=namespace)
    assert held.metadata.deletion_timestamp is not None
    await kube.patch(PODS, "p0", {"metadata": {"finalizers": None}}, namespace=namespace)
    with pytest.raises(NotFoundError):
        await kube.get(PODS, "p0", namespace=namespace)


async def test_binding(cluster: Cluster) -> None:
    """A pod is bound once, by uid; a second binding raises BoundError, another uid or a gated pod StaleError."""
    kube, namespace = cluster.kube, cluster.namespace
    node = f"node-{namespace}"
    await kube.create(NODES, {"metadata": {"name": node}})
    try:
        made = await kube.create(PODS, cluster.pod())
        with pytest.raises(StaleError):
            await kube.bind(namespace, "p0", "6a1c0c0c-0000-0000-0000-000000000000", node)
        await kube.bind(namespace, "p0", made.metadata.uid, node)
        assert (await kube.get(PODS, "p0", namespace=namespace)).spec.node_name == node
        with pytest.raises(BoundError):
            await kube.bind(namespace, "p0", made.metadata.uid, node)
        gated = await kube.create(PODS, cluster.pod("p1", schedulingGates=[{"name": "slipway.dev/launch"}]))
        with pytest.raises(StaleError):
            await kube.bind(namespace, "p1", gated.metadata.uid, node)
    finally:
        await kube.delete(NODES, node)


async def test_quota_is_transient(cluster: Cluster) -> None:
    """A refusal because of a quota raises QuotaExceededError, which is transient."""
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}}
    cluster.core.create("resourcequotas", cluster.namespace, quota)
    cluster.settle()
    with pytest.raises(QuotaExceededError):
        await cluster.kube.create(PODS, cluster.pod())


async def test_a_terminating_namespace_takes_nothing_new(cluster: Cluster) -> None:
    """A create in a terminating namespace raises TerminatingError."""
    kube, namespace = cluster.kube, cluster.namespace
    body = cluster.pod("held")
    body["metadata"]["finalizers"] = ["slipway.dev/tracking"]
    await kube.create(PODS, body)
    other = f"{namespace}-gone"
    await kube.create(NAMESPACES, {"metadata": {"name": other}})
    await kube.create(CONFIG_MAPS, {"metadata": {"name": "a", "finalizers": ["slipway.dev/test"]}}, namespace=other)
    await kube.delete(NAMESPACES, other)
    with pytest.raises(TerminatingError):
        await kube.create(CONFIG_MAPS, {"metadata": {"name": "b"}}, namespace=other)
    await kube.patch(CONFIG_MAPS, "a", {"metadata": {"finalizers": None}}, namespace=other)
    await kube.patch(PODS, "held", {"metadata": {"finalizers": None}}, namespace=namespace)


async def test_too_large(cluster: Cluster) -> None:
    """A body over the server's limit raises a permanent error."""
    with pytest.raises(TooLargeError):
        await cluster.kube.create(
            CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"x": "x" * 4_000_000}}, namespace=cluster.namespace
        )


async def test_may(cluster: Cluster) -> None:
    """`may` is true for what our account may do."""
    assert await cluster.kube.may("create", PODS, namespace=cluster.namespace, subresource="binding")


async def test_a_create_race_has_one_winner(cluster: Cluster) -> None:
    """Of many concurrent creates of one name exactly one wins."""

    async def attempt(number: int) -> int:
        body = {"metadata": {"name": "race"}, "data": {"n": str(number)}}
        try:
            await cluster.kube.create(CONFIG_MAPS, body, namespace=cluster.namespace)
        except AlreadyExistsError:
            return 0
        return 1

    assert sum(await asyncio.gather(*map(attempt, range(20)))) == 1


async def test_lease_times_survive(cluster: Cluster) -> None:
    """Micro times of a Lease are read back as they were sent."""
    spec = LeaseSpec(holder_identity="me", lease_duration_seconds=15, renew_time="2026-01-02T03:04:05.678901Z")
    made = await cluster.kube.create(LEASES, {"metadata": {"name": "l", "namespace": cluster.namespace}, "spec": spec})
    assert isinstance(made, Lease)
    assert made.spec == spec
