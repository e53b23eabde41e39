"""The bodies of kube-scheduler's HTTP extender protocol. Pure.

Owns the encoding, and the strict checks of responses. Field names are those of Go without json tags: capitalised when
written, read in any case as Go does; a list or map may be null. A response that names something outside the request, or
has a form that the protocol does not allow, is a fault as a whole: no part of it is used.

Source: k8s.io/kube-scheduler/extender/v1 (types.go) and pkg/scheduler/extender.go of Kubernetes 1.37.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

import msgspec

from slipway.errors import TransientError
from slipway.model.facts import AllocationFact, NodeFact, RoleFact, Toleration
from slipway.model.resources import CPU, GPU_MILLI, MEMORY, Resources, format_quantity, scale_of

Json = dict[str, Any]
SCORE_MAX = 10
TEXT_MAX = 120
"""Maximum characters of a reason from an extender."""
_NATIVE = (CPU, MEMORY, "pods", "ephemeral-storage")


class ExtenderFault(TransientError):
    """The extender did not respond, or its response violates the protocol."""


class Filtered(msgspec.Struct, frozen=True, kw_only=True):
    """The response of a filter."""

    passed: frozenset[str]
    reasons: dict[str, str]
    final: frozenset[str]


def filter_args(pod: Json, nodes: Iterable[NodeFact], *, names_only: bool) -> bytes:
    """Return ExtenderArgs, the body for filter and prioritize."""
    if names_only:
        return _encode({"Pod": pod, "Nodes": None, "NodeNames": [node.name for node in nodes]})
    items = [node_object(node) for node in nodes]
    return _encode({"Pod": pod, "Nodes": {"metadata": {}, "items": items}, "NodeNames": None})


def preempt_args(pod: Json, victims: Mapping[str, list[Json]], *, uids_only: bool) -> bytes:
    """Return ExtenderPreemptionArgs. Disruption budgets are not known here, so none is reported as violated."""
    if uids_only:
        uids = {node: [{"UID": each["metadata"]["uid"]} for each in pods] for node, pods in victims.items()}
        return _encode({"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": _victims(uids)})
    return _encode({"Pod": pod, "NodeNameToVictims": _victims(victims), "NodeNameToMetaVictims": None})


def bind_args(*, namespace: str, pod: str, uid: str, node: str) -> bytes:
    """Return ExtenderBindingArgs."""
    return _encode({"PodName": pod, "PodNamespace": namespace, "PodUID": uid, "Node": node})


def read_filter(body: bytes, asked: Collection[str], *, names_only: bool) -> Filtered:
    """Decode ExtenderFilterResult. Raises ExtenderFault."""
    answer = _fields(_decode(body))
    _check_error(answer)
    names = _strings(answer.get("nodenames"), "NodeNames") if names_only else None
    if names is None:
        names = _names_of(answer.get("nodes"))
    passed = frozenset(names)
    unknown = passed.difference(asked)
    if unknown:
        raise ExtenderFault(f"it names node {_short(min(unknown))}, which it was not asked about")
    final = _reasons(answer.get("failedandunresolvablenodes"), "FailedAndUnresolvableNodes")
    failed = _reasons(answer.get("failednodes"), "FailedNodes")
    reasons = {name: text for name, text in (failed | final).items() if name in asked and name not in passed}
    return Filtered(passed=passed, reasons=reasons, final=frozenset(final.keys() & reasons.keys()))


def read_scores(body: bytes, asked: Collection[str]) -> dict[str, int]:
    """Decode HostPriorityList to {node: 0..10}, without nodes outside the request. Raises ExtenderFault."""
    answer = _decode(body)
    scores: dict[str, int] = {}
    for item in _list(answer, "the answer"):
        entry = _fields(item)
        host, score = entry.get("host", ""), entry.get("score", 0)
        if not isinstance(host, str) or not isinstance(score, int) or isinstance(score, bool):
            raise ExtenderFault("a score is not {Host: text, Score: integer}")
        if not 0 <= score <= SCORE_MAX:
            raise ExtenderFault(f"it scores {_short(host)} {_short(str(score))}; scores are 0 to {SCORE_MAX}")
        if host in scores:
            raise ExtenderFault(f"it scores {_short(host)} twice")
        if host in asked:
            scores[host] = score
    return scores


def read_preempt(body: bytes, offered: Mapping[str, Collection[str]]) -> frozenset[str]:
    """Decode ExtenderPreemptionResult to the nodes on which the extender accepts the preemption.

    `offered` is {node: uids of the victims}. Raises ExtenderFault.
    """
    answer = _fields(_decode(body))
    _check_error(answer)
    nodes = _map(answer.get("nodenametometavictims"), "NodeNameToMetaVictims")
    for node, said in nodes.items():
        if node not in offered:
            raise ExtenderFault(f"it names node {_short(node)}, which it was not asked about")
        victims = _fields(said)
        violations = victims.get("numpdbviolations", 0)
        if not isinstance(violations, int) or isinstance(violations, bool):
            raise ExtenderFault("NumPDBViolations is not a number")
        uids = [_fields(pod).get("uid") for pod in _list(victims.get("pods"), "Pods")]
        if not uids:
            raise ExtenderFault(f"it names node {_short(node)} without a victim")
        for uid in uids:
            if not isinstance(uid, str):
                raise ExtenderFault("a victim of its answer has no UID")
            if uid not in offered[node]:
                raise ExtenderFault(f"it names victim {_short(uid)}, which node {_short(node)} was not offered with")
    return frozenset(nodes)


def read_bound(body: bytes) -> None:
    """Check ExtenderBindingResult; without an error in it the pod is bound. Raises ExtenderFault."""
    _check_error(_fields(_decode(body)))


def pod_object(role: RoleFact, owner: AllocationFact | None) -> Json:
    """Return the pod of a rank of `role`, with only the fields that matter for placement. The pod does not exist
    yet."""
    name, uid = role.name, ""
    if owner is not None:
        name = f"{owner.name}-{owner.uid[:8]}-{owner.attempt}-{_first_rank(owner, role)}"
        uid = owner.uid
    requests = _quantities(role.requests)
    limits = {key: value for key, value in requests.items() if key not in _NATIVE}
    resources: Json = {"requests": requests} | ({"limits": limits} if limits else {})
    images = [image for image in role.images if image] or [""]
    containers = [{"name": "main", "image": images[0], "resources": resources}]
    spec: Json = {"containers": containers, "schedulerName": "slipway", "restartPolicy": "Never"}
    spec |= {"nodeSelector": role.node_selector} if role.node_selector else {}
    spec |= {"affinity": role.affinity} if role.affinity else {}
    spec |= {"tolerations": [_toleration(each) for each in role.tolerations]} if role.tolerations else {}
    spec |= {"topologySpreadConstraints": list(role.spread)} if role.spread else {}
    if owner is not None:
        spec["priority"] = owner.priority
    namespace = role.namespace or (owner.namespace if owner is not None else "")
    metadata: Json = {"name": name, "namespace": namespace, "uid": uid, "creationTimestamp": None}
    metadata |= {"labels": role.labels} if role.labels else {}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def victim_object(owner: AllocationFact, rank: int, uid: str, node: str) -> Json:
    """Return the pod of a rank that runs on `node`, with only the fields that placement knows."""
    role = owner.role_of(rank) or RoleFact(name="", count=1, minimum=1)
    pod = pod_object(role, owner)
    pod["metadata"] |= {"name": f"{owner.name}-{owner.uid[:8]}-{owner.attempt}-{rank}", "uid": uid}
    pod["spec"]["nodeName"] = node
    pod["status"] = {"phase": "Running"}
    return pod


def node_object(node: NodeFact) -> Json:
    """Return a node, with only the fields that placement knows."""
    amounts = _quantities(node.allocatable)
    spec: Json = {"unschedulable": True} if node.unschedulable else {}
    if node.taints:
        spec["taints"] = [{"key": each.key, "value": each.value, "effect": each.effect} for each in node.taints]
    ready = {"type": "Ready", "status": "True" if node.ready else "False"}
    images = [{"names": [name], "sizeBytes": size} for name, size in sorted(node.images.items())]
    status: Json = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    status |= {"images": images} if images else {}
    metadata = {"name": node.name, "uid": node.uid, "labels": node.labels, "creationTimestamp": None}
    return {"metadata": metadata, "spec": spec, "status": status}


def _victims(pods: Mapping[str, list[Json]]) -> Json:
    return {node: {"Pods": each, "NumPDBViolations": 0} for node, each in pods.items()}


def _first_rank(owner: AllocationFact, role: RoleFact) -> int:
    rank = 0
    for each in owner.roles:
        if each.name == role.name:
            return rank
        rank += each.count
    return 0


def _quantities(resources: Resources) -> dict[str, str]:
    return {
        name: format_quantity(amount, scale=scale_of(name))
        for name, amount in sorted(resources.amounts.items())
        if name != GPU_MILLI
    }


def _toleration(each: Toleration) -> Json:
    found: Json = {"operator": each.operator}
    found |= {key: value for key, value in (("key", each.key), ("value", each.value), ("effect", each.effect)) if value}
    return found


def _encode(args: Json) -> bytes:
    return msgspec.json.encode(args)


def _decode(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ExtenderFault("its answer is not JSON") from error


def _fields(value: Any) -> Json:
    """Return the fields of a struct as Go reads them: names in any case, the exact spelling first; null is an empty
    struct."""
    found = _map(value, "the answer")
    lowered: Json = {}
    for name in sorted(found, key=lambda each: (each[:1].isupper(), each)):
        lowered[name.lower()] = found[name]
    return lowered


def _map(value: Any, what: str) -> Json:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ExtenderFault(f"{what} is not an object")
    return cast("Json", value)


def _list(value: Any, what: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ExtenderFault(f"{what} is not a list")
    return cast("list[Any]", value)


def _strings(value: Any, what: str) -> list[str] | None:
    if value is None:
        return None
    items = _list(value, what)
    if not all(isinstance(item, str) for item in items):
        raise ExtenderFault(f"{what} is not a list of names")
    return items


def _names_of(nodes: Any) -> list[str]:
    names: list[str] = []
    for item in _list(_fields(nodes).get("items"), "Nodes.items"):
        name = _fields(_fields(item).get("metadata")).get("name")
        if not isinstance(name, str):
            raise ExtenderFault("a node of its answer has no name")
        names.append(name)
    return names


def _reasons(value: Any, what: str) -> dict[str, str]:
    found = _map(value, what)
    if not all(isinstance(text, str) for text in found.values()):
        raise ExtenderFault(f"{what} is not names and reasons")
    return {name: _short(text) for name, text in found.items()}


def _check_error(answer: Json) -> None:
    error = answer.get("error")
    if error is not None and not isinstance(error, str):
        raise ExtenderFault("Error is not text")
    if error:
        raise ExtenderFault(f"it says: {_short(error)}")


def _short(text: str) -> str:
    """Return the text as one printable line of at most `TEXT_MAX` characters."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * TEXT_MAX]).split())
    return line if len(line) <= TEXT_MAX else f"{line[: TEXT_MAX - 3]}..."
