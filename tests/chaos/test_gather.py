"""Facts of writes in the API server's audit log: which account wrote which version, and with which precondition."""

from typing import Any

from slipway.model.times import format_time
from slipway.ops.audit.evidence import PODS, Version
from tests.chaos.gather import BINDER, requests_of, writers_of

LABELS = {"slipway.dev/allocation-uid": "u"}


def a_version(number: int, at: float, *, before: dict[str, Any] | None = None, **spec: Any) -> Version:
    """One version of a pod of ours."""
    obj = {"metadata": {"uid": "p", "labels": LABELS}, "spec": spec}
    return Version(
        number=number,
        at=at,
        writer="",
        resource=PODS,
        namespace="default",
        name="p",
        is_deletion=False,
        obj=obj,
        before=before,
    )


def an_entry(verb: str, account: str, *, asked_at: float, number: int = 0, **body: Any) -> dict[str, Any]:
    """A request of one of our accounts, as in the audit log."""
    return {
        "verb": verb,
        "user": {"username": f"system:serviceaccount:slipway-system:{account}"},
        "objectRef": {"resource": "pods", "name": "p"},
        "requestReceivedTimestamp": format_time(asked_at, "microseconds"),
        "requestObject": body or None,
        "responseObject": {"metadata": {"resourceVersion": str(number)}} if number else None,
        "responseStatus": {"code": 200 if number else 403},
    }


def test_the_writer_of_a_version_is_the_client_that_received_it() -> None:
    """The answer to a request that changed nothing has the version of another writer, which existed before."""
    versions = [a_version(7, at=100.0), a_version(9, at=105.0)]
    entries = [
        an_entry("patch", "slipway-watcher", asked_at=99.9, number=7),
        an_entry("patch", "slipway-podworker", asked_at=104.0, number=7),
        an_entry("delete", "slipway-podworker", asked_at=104.0, number=9),
    ]
    assert writers_of(entries, versions) == {7: "slipway-watcher"}


def test_a_binding_is_the_binders() -> None:
    """A binding is answered without a version, and belongs to the binder."""
    bound = a_version(8, at=101.0, before={"metadata": {}, "spec": {}}, nodeName="n0")
    assert writers_of([], [bound]) == {8: BINDER}


def test_a_request_carries_its_fences() -> None:
    """A request has the version of a replace, or the uid of a delete or a binding; a delete without a body has no
    precondition.

    Nothing is known of a request that was refused before its body was read.
    """
    entries = [
        an_entry("update", "slipway-watcher", asked_at=1.0, number=7, metadata={"resourceVersion": "6"}),
        an_entry("delete", "slipway-podworker", asked_at=1.0, number=7, preconditions={"uid": "p"}),
        an_entry("update", "slipway-watcher", asked_at=1.0),
        an_entry("delete", "slipway-podworker", asked_at=1.0),
        an_entry("delete", "slipway-watcher", asked_at=1.0, number=9),
    ]
    found = requests_of(entries)
    assert [(each.verb, each.resource_version, each.uid) for each in found] == [
        ("update", "6", ""),
        ("delete", "", "p"),
        ("delete", "", ""),
    ]
