"""Converts requests for capacity to objects of the API server, and back. Pure.

Owns names, bodies, and what the conditions of an autoscaler mean. One request consists of a PodTemplate for each pod
set, and of either one ProvisioningRequest that refers to them, or of placeholder pods made from them. The first
PodTemplate is the record: one annotation contains the request, another one its state once that is stored. All objects
are in the namespace of the services, so that no quota of a workspace counts them, and belong to the ResourcePool.

Invariants: the names follow from the allocation, its attempt, the shape and the number of the try, so a repeated
request creates nothing new. A request whose state is not stored and of which an object is missing is ignored: it is
made again, under the same names.

Source: kubernetes/autoscaler, autoscaling.x-k8s.io/v1 types.go; Kubernetes, "Pod Security Standards": restricted.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from slipway.crd.hashing import sha256_hex
from slipway.crd.meta import (
    ANNOTATION_CAPACITY_REQUEST,
    ANNOTATION_CAPACITY_STATE,
    GROUP_VERSION,
    LABEL_CAPACITY_REQUEST,
    LABEL_MANAGED_BY,
    LABEL_POOL,
    MANAGED_BY,
    Condition,
    ObjectMeta,
    RawObject,
    condition_of,
)
from slipway.kube.objects import Pod, PodTemplate, ProvisioningRequest
from slipway.model.facts import PLACEHOLDER_PODS, AutoscalingFact
from slipway.model.times import parse_time
from slipway.scheduler.plan.capacity.pod_sets import PodSet
from slipway.scheduler.plan.capacity.requests import CapacityAsk, CapacityRequest, RequestState

WORDS_MAX = 300
"""At most so many characters of the autoscaler's message are stored."""
USER = 65534
"""The user id of the account `nobody`."""


class PlaceholderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The image and the PriorityClass of placeholder pods."""

    image: str
    priority_class: str


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a request's record."""

    pool: str
    allocation: str
    uid: str
    attempt: int
    shape: str
    number: int
    ranks: int
    mode: str


class StoredState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a request in its annotation."""

    state: RequestState
    since: float
    words: str = ""


class RequestObjects(msgspec.Struct, frozen=True, kw_only=True):
    """All objects of a pool's requests, as last read."""

    templates: tuple[PodTemplate, ...] = ()
    requests: tuple[ProvisioningRequest, ...] = ()
    pods: tuple[Pod, ...] = ()

    def names(self) -> set[str]:
        """Return the names of the requests of which any object exists."""
        found = (*self.templates, *self.requests, *self.pods)
        return {each.metadata.labels.get(LABEL_CAPACITY_REQUEST, "") for each in found}

    def of(self, name: str) -> "RequestObjects":
        """Return the objects of one request."""
        return RequestObjects(
            templates=tuple(each for each in self.templates if _is_of(each.metadata, name)),
            requests=tuple(each for each in self.requests if _is_of(each.metadata, name)),
            pods=tuple(each for each in self.pods if _is_of(each.metadata, name)),
        )


def request_name(ask: CapacityAsk) -> str:
    """Return the name of a request: at most 62 characters, so that it can be a label."""
    digest = sha256_hex(f"{ask.uid}/{ask.attempt}/{ask.shape}".encode())[:8]
    name = ask.allocation.split("/", 1)[-1][:40].rstrip("-.")
    return f"slipway-{name}-{digest}-{ask.number}"


def selector_of(pool: str) -> str:
    """Return the label selector of all objects that were created for `pool`."""
    return f"{LABEL_POOL}={pool},{LABEL_CAPACITY_REQUEST}"


def template_name(request: str, number: int) -> str:
    """Return the name of the PodTemplate of pod set `number`; the first one is the record."""
    return f"{request}-{number}"


def templates(ask: CapacityAsk, owner: ObjectMeta, spec: AutoscalingFact, options: PlaceholderOptions) -> list[Any]:
    """Return the PodTemplates of a request, the record first."""
    name = request_name(ask)
    record = RequestRecord(
        pool=owner.name,
        allocation=ask.allocation,
        uid=ask.uid,
        attempt=ask.attempt,
        shape=ask.shape,
        number=ask.number,
        ranks=ask.ranks,
        mode=spec.mode,
    )
    made: list[Any] = []
    for number, each in enumerate(ask.pod_sets):
        metadata = _metadata(template_name(name, number), name, owner)
        if number == 0:
            metadata["annotations"] = {ANNOTATION_CAPACITY_REQUEST: msgspec.json.encode(record).decode()}
        template = {"metadata": {"labels": {**each.labels, **metadata["labels"]}}, "spec": _pod_spec(each, options)}
        made.append({"metadata": metadata, "template": template})
    return made


def provisioning_request(ask: CapacityAsk, owner: ObjectMeta, spec: AutoscalingFact) -> RawObject:
    """Return the ProvisioningRequest that refers to the templates of a request."""
    name = request_name(ask)
    body: RawObject = {
        "provisioningClassName": spec.class_name,
        "podSets": [
            {"podTemplateRef": {"name": template_name(name, number)}, "count": each.count}
            for number, each in enumerate(ask.pod_sets)
        ],
    }
    if spec.parameters:
        body["parameters"] = dict(spec.parameters)
    return {"metadata": _metadata(name, name, owner), "spec": body}


def placeholder_pods(ask: CapacityAsk, owner: ObjectMeta, options: PlaceholderOptions) -> list[RawObject]:
    """Return a placeholder pod for each rank, which any other pod may preempt."""
    name, made = request_name(ask), list[RawObject]()
    for number, each in enumerate(ask.pod_sets):
        for index in range(each.count):
            metadata = _metadata(f"{template_name(name, number)}-{index}", name, owner)
            metadata["labels"] = {**each.labels, **metadata["labels"]}
            made.append(
                {
                    "metadata": metadata,
                    "spec": {**_pod_spec(each, options), "priorityClassName": options.priority_class},
                }
            )
    return made


def state_patch(request: CapacityRequest) -> RawObject:
    """Return the patch that stores the state of a request in its record."""
    stored = StoredState(state=request.state, since=request.since, words=request.words[:WORDS_MAX])
    return {"metadata": {"annotations": {ANNOTATION_CAPACITY_STATE: msgspec.json.encode(stored).decode()}}}


def read_requests(standing: RequestObjects) -> tuple[CapacityRequest, ...]:
    """Return the requests that are complete, sorted by name."""
    found = (_read(template, standing) for template in standing.templates)
    return tuple(sorted((each for each in found if each is not None), key=lambda each: each.name))


def _read(template: PodTemplate, standing: RequestObjects) -> CapacityRequest | None:
    """Return the request of a record; None if the template is no record, or if an object of the request is missing."""
    meta = template.metadata
    name = meta.labels.get(LABEL_CAPACITY_REQUEST, "")
    try:
        record = msgspec.json.decode(meta.annotations.get(ANNOTATION_CAPACITY_REQUEST, ""), type=RequestRecord)
        said = meta.annotations.get(ANNOTATION_CAPACITY_STATE)
        stored = msgspec.json.decode(said, type=StoredState) if said else None
    except msgspec.DecodeError:
        return None
    asked_at = _time(meta.creation_timestamp)
    request = CapacityRequest(
        name=name,
        uid=record.uid,
        attempt=record.attempt,
        shape=record.shape,
        number=record.number,
        ranks=record.ranks,
        since=asked_at,
        asked_at=asked_at,
    )
    own = standing.of(name)
    if stored is not None:
        is_settled = not (own.pods or (own.requests and stored.state is RequestState.FAILED))
        return msgspec.structs.replace(
            request, state=stored.state, since=stored.since, words=stored.words, is_settled=is_settled
        )
    if record.mode == PLACEHOLDER_PODS:
        return _of_pods(request, own.pods)
    return _of_conditions(request, own.requests[0].status.conditions) if own.requests else None


def _of_conditions(request: CapacityRequest, conditions: list[Condition]) -> CapacityRequest:
    """Return the request with the state that the Cluster Autoscaler's conditions show."""
    for type_, state in (
        ("Failed", RequestState.FAILED),
        ("CapacityRevoked", RequestState.FAILED),
        ("Provisioned", RequestState.PROVISIONED),
    ):
        told = condition_of(conditions, type_)
        if told is not None and told.status == "True":
            words = told.message or told.reason
            return msgspec.structs.replace(
                request, state=state, since=_time(told.last_transition_time), words=words[:WORDS_MAX], is_settled=False
            )
    told = condition_of(conditions, "Provisioned") or condition_of(conditions, "Accepted")
    return msgspec.structs.replace(request, words=told.message[:WORDS_MAX] if told is not None else "")


def _of_pods(request: CapacityRequest, pods: tuple[Pod, ...]) -> CapacityRequest | None:
    """Return the request with the state that its pods show: it is provisioned when each pod has a node."""
    if len(pods) < request.ranks:
        return None
    waiting = [pod for pod in pods if not pod.spec.node_name]
    if not waiting:
        since = max(_bound_at(pod) for pod in pods)
        return msgspec.structs.replace(request, state=RequestState.PROVISIONED, since=since, is_settled=False)
    told = [each for pod in waiting if (each := condition_of(pod.status.conditions, "PodScheduled")) is not None]
    return msgspec.structs.replace(request, words=told[0].message[:WORDS_MAX] if told else "")


def _bound_at(pod: Pod) -> float:
    told = condition_of(pod.status.conditions, "PodScheduled")
    return _time(told.last_transition_time if told is not None else pod.metadata.creation_timestamp)


def _is_of(meta: ObjectMeta, name: str) -> bool:
    return meta.labels.get(LABEL_CAPACITY_REQUEST) == name


def _time(text: str | None) -> float:
    return parse_time(text) if text else 0.0


def _metadata(name: str, request: str, owner: ObjectMeta) -> dict[str, Any]:
    return {
        "name": name,
        "labels": {LABEL_MANAGED_BY: MANAGED_BY, LABEL_POOL: owner.name, LABEL_CAPACITY_REQUEST: request},
        "ownerReferences": [
            {"apiVersion": GROUP_VERSION, "kind": "ResourcePool", "name": owner.name, "uid": owner.uid}
        ],
    }


def _pod_spec(pods: PodSet, options: PlaceholderOptions) -> dict[str, Any]:
    """Return the spec of a pod that requests the same resources as a rank, and does nothing."""
    resources: dict[str, Mapping[str, str]] = {"requests": pods.requests}
    if pods.limits:
        resources["limits"] = pods.limits
    spec: dict[str, Any] = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 1,  # not 0: the object would be gone before the node has freed its resources
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "placeholder",
                "image": options.image,
                "resources": resources,
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    }
    fields: Iterable[tuple[str, Any]] = (
        ("nodeSelector", pods.node_selector),
        ("tolerations", list(pods.tolerations)),
        ("affinity", pods.affinity),
    )
    return spec | {name: value for name, value in fields if value}
