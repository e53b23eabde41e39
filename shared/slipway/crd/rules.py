"""The validation rules of the CRDs: the API server itself enforces them, also against wrong or old writers.

The rules are one table. Each rule is a CEL expression for a real API server, with a Python twin for the local cluster.
A property test and a run of the API server's own evaluator check that both agree.

Facts the table rests on (Kubernetes 1.36):
- A rule that names `oldSelf` runs only when the value at its path exists before and after the write; so a rule at the
  root keeps `status` from being removed.
- The API server refuses a transition rule on an item of an atomic list, and a writer can avoid one on an item of a
  list-map by changing the key. So the rule for exit codes is at `status` and compares by index.
- CEL cannot read fields that the schema does not describe (`x-kubernetes-preserve-unknown-fields`: pod templates,
  affinity, resources); it can only compare them as a whole. The server's comparison does not notice when one
  undescribed key is replaced by another. So the admission also contains the hash of the resolved spec, and the pod
  worker compares it. Only the Python twins refuse such a replacement.
- The server estimates the cost of a rule from the bounds in the schema: every field that a rule reads is bounded there.
- Every write, also of a status, runs all rules. Each `self.field` makes the server copy the schema of all fields of
  `self`, which are thirty in a spec. At one time the rules were a quarter of the server's cost of a status write. So a
  rule is placed at its field when that field is always present. A rule first tests the fields that are mostly absent,
  and it names no field more often than needed.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from slipway.model import ids
from slipway.model.times import parse_time

Twin = Callable[[Any, Any], bool]
"""(new value, old value or None) -> whether the rule is satisfied. A transition rule is satisfied when there is no old
value."""

SPEC = ("spec",)
STATUS = ("status",)
WINDOW = ("spec", "windows", "*")
IMMUTABLE_ALWAYS_SET = ("kind", "pool", "preemptible", "maxRestarts")
"""fields that are required, or have a default in the schema"""
IMMUTABLE_OPTIONAL = (
    "job",
    "minAvailable",
    "preemptionGrace",
    "requestHash",
    "context",
    "failurePolicy",
    "successPolicy",
    "service",
    "restart",
    "topology",
)
IMMUTABLE_COLLECTIONS = ("files", "ports", "flavors", "secretVariables", "after")
"""fields for which absent means empty"""
REPLACEABLE = ("template", "ranks", "env")
"""fields that define the program: they may change while the allocation is held and not yet admitted"""


class ValidationRule(msgspec.Struct, frozen=True, kw_only=True):
    """One validation rule at `path` of a kind's schema (`*` steps into the items of a list)."""

    kind: str
    path: tuple[str, ...]
    rule: str
    message: str
    twin: Twin
    field: str = ""
    """the property that an error names, relative to `path`"""

    @property
    def is_transition(self) -> bool:
        """Whether the rule compares with the old value."""
        return "oldSelf" in self.rule

    def holds(self, now: Any, before: Any) -> bool:
        """Whether the write satisfies the rule. An expression that fails on a missing key refuses the write, as in
        CEL."""
        if self.is_transition and before is None:
            return True
        try:
            return self.twin(now, before)
        except (KeyError, IndexError, TypeError):
            return False


class RuleViolation(msgspec.Struct, frozen=True):
    """A rule that a write breaks; `pointer` is a JSON pointer into the object."""

    pointer: str
    message: str


def violations(kind: str, now: Mapping[str, Any], before: Mapping[str, Any] | None) -> list[RuleViolation]:
    """Return the rules of `kind` that the write `before` -> `now` violates; `before` is None for a create."""
    found: list[RuleViolation] = []
    for rule in RULES:
        if rule.kind != kind:
            continue
        for pointer, new, old in _at(rule.path, "", now, before):
            if not rule.holds(new, old):
                found.append(RuleViolation(pointer + rule.field.replace(".", "/"), rule.message))
    return found


def _at(path: tuple[str, ...], pointer: str, now: Any, before: Any) -> Iterator[tuple[str, Any, Any]]:
    if not path:
        yield pointer, now, before
    elif path[0] == "*":
        for index, item in enumerate(now):
            yield from _at(path[1:], f"{pointer}/{index}", item, None)
    elif path[0] in now:
        old = before.get(path[0]) if before is not None else None
        yield from _at(path[1:], f"{pointer}/{path[0]}", now[path[0]], old)


# --- twins; each has the meaning of the expression beside it in the table


def _is_allocation_name(now: Any, _: Any) -> bool:
    return ids.is_name(now["metadata"]["name"]) and not now["metadata"]["name"].endswith("\n")


def _is_label_name(now: Any, _: Any) -> bool:
    name = now["metadata"]["name"]
    return len(name) <= 63 and "." not in name


def _keeps_status(now: Any, before: Any) -> bool:
    return "status" not in before or "status" in now


def _releases_only_when_desired(now: Any, before: Any) -> bool:
    if now["spec"]["desired"] != "Stopped" or "release" not in now.get("status", {}):
        return True
    old = before.get("status", {})
    return "release" in old and now["status"]["release"] == old["release"]


def _keeps_queue_once_admitted(now: Any, before: Any) -> bool:
    return now["spec"]["queue"] == before["spec"]["queue"] or "admission" not in before.get("status", {})


def _delegates_to_somebody(now: Any, _: Any) -> bool:
    return now.get("schedulerName") != "slipway"


def _has_one_binder_at_most(now: Any, _: Any) -> bool:
    return sum(bool(each.get("bindVerb")) for each in now.get("extenders", [])) <= 1


def _is_for_queues_or_maintenance(now: Any, _: Any) -> bool:
    return bool(now.get("maintenance")) != bool(now.get("queues"))


def _counts_nodes_or_gpus(now: Any, _: Any) -> bool:
    return "nodes" not in now or "gpus" not in now


def _names_nodes_alone(now: Any, _: Any) -> bool:
    return not now.get("nodeNames") or not ("nodes" in now or "gpus" in now or now.get("nodeSelector"))


def _starts_some_day(now: Any, _: Any) -> bool:
    return _time(now["start"]) is not None


def _ends_after_its_start(now: Any, _: Any) -> bool:
    until = now.get("repeat", {}).get("until")
    start, end = _time(now["start"]), _time(until) if until is not None else None
    return until is None or (start is not None and end is not None and end >= start)


def _time(text: str) -> float | None:
    try:
        return parse_time(text)
    except ValueError:
        return None


def _stays_stopped(now: Any, before: Any) -> bool:
    return before != "Stopped" or now == "Stopped"


def _same(now: Any, before: Any) -> bool:
    return now == before


def _rises(now: Any, before: Any) -> bool:
    return now >= before


def _same_or_both_absent(field: str) -> Twin:
    def twin(now: Any, before: Any) -> bool:
        return (field in now) == (field in before) and (field not in now or now[field] == before[field])

    return twin


def _same_or_empty(field: str) -> Twin:
    def twin(now: Any, before: Any) -> bool:
        if field in now and field in before:
            return now[field] == before[field]
        return not now.get(field) and not before.get(field)

    return twin


def _or_held(twin: Twin) -> Twin:
    def or_held(now: Any, before: Any) -> bool:
        return twin(now, before) or bool(before.get("hold", False))

    return or_held


def _keeps_work_once_admitted(now: Any, before: Any) -> bool:
    if "admission" not in before.get("status", {}) or not before["spec"].get("hold", False):
        return True
    return all(_same_or_both_absent(field)(now["spec"], before["spec"]) for field in REPLACEABLE)


def _preempt_rises(now: Any, before: Any) -> bool:
    old = before.get("signals", {})
    if "preempt" not in old:
        return True
    new = now["signals"]
    return new["attempt"] > old["attempt"] or new["preempt"]["n"] >= old["preempt"]["n"]


def _acks_rise(now: Any, before: Any) -> bool:
    old = before.get("signals", {})
    if "acks" not in old:
        return True
    new = now["signals"]
    if new["attempt"] > old["attempt"]:
        return True
    acks = new["acks"]
    return all(rank in acks and acks[rank] >= n for rank, n in old["acks"].items())


def _attempt_of_signals_rises(now: Any, before: Any) -> bool:
    return "signals" not in before or now["signals"]["attempt"] >= before["signals"]["attempt"]


def _has_distinct_roles(now: Any, _: Any) -> bool:
    names = [role["name"] for role in now]
    return len(set(names)) == len(names)


def _minimum_within_role(now: Any, _: Any) -> bool:
    return "minAvailable" not in now or now["minAvailable"] <= now["count"]


def _terminal_is_absorbing(now: Any, before: Any) -> bool:
    if before["phase"] != "Terminated" or now == before:
        return True
    same_end = now["phase"] == "Terminated" and now["attempt"] == before["attempt"]
    return same_end and ("result" not in before or now.get("result") == before["result"])


def _epoch_rises(now: Any, before: Any) -> bool:
    if "epoch" not in before.get("admission", {}):
        return True
    return now["admission"]["epoch"] >= before["admission"]["epoch"]


def _release_is_final(now: Any, before: Any) -> bool:
    return now["attempt"] > before["attempt"] or "release" not in before or now["release"] == before["release"]


def _exit_codes_are_final(now: Any, before: Any) -> bool:
    if now["attempt"] > before["attempt"] or "ranks" not in before:
        return True
    new, old = now["ranks"], before["ranks"]
    return len(new) == len(old) and all(
        "exitCode" not in was
        or ("exitCode" in rank and _end_of(rank) == _end_of(was))
        or (("growth" in now or "restartedRanks" in now) and bool(rank["podUID"]) and rank["podUID"] != was["podUID"])
        for rank, was in zip(new, old, strict=True)
    )


def _grows_only_when_desired(now: Any, before: Any) -> bool:
    uids = now.get("status", {}).get("growth", {}).get("podUIDs", [])
    if now["spec"]["desired"] != "Stopped" or not uids:
        return True
    return len(before.get("status", {}).get("growth", {}).get("podUIDs", [])) >= len(uids)


def _growth_rises(now: Any, before: Any) -> bool:
    if now["attempt"] > before["attempt"] or "growth" not in before:
        return True
    new, old = now.get("growth"), before["growth"]
    if new is None or new["n"] < old["n"]:
        return False
    known = old.get("podUIDs", [])
    return new["n"] > old["n"] or new.get("podUIDs", [])[: len(known)] == known


def _restarts_only_when_desired(now: Any, before: Any) -> bool:
    if now["spec"]["desired"] != "Stopped":
        return True
    new, old = (each.get("status", {}).get("restartedRanks", []) for each in (now, before))
    named = [each.get("podUID") for each in old]
    return all(
        "podUID" not in each or (index < len(named) and each["podUID"] == named[index])
        for index, each in enumerate(new)
    )


def _restarted_ranks_stay(now: Any, before: Any) -> bool:
    if now["attempt"] > before["attempt"] or "restartedRanks" not in before:
        return True
    new, old = now.get("restartedRanks", []), before["restartedRanks"]
    return len(new) >= len(old) and all(
        each["rank"] == was["rank"]
        and (
            each["n"] > was["n"]
            or (each["n"] == was["n"] and ("podUID" not in was or each.get("podUID") == was["podUID"]))
        )
        for each, was in zip(new, old, strict=False)
    )


def _end_of(rank: Mapping[str, Any]) -> tuple[int, str]:
    return rank["exitCode"], rank["podUID"]


def _leaving_ranks_stay(now: Any, before: Any) -> bool:
    if now["attempt"] > before["attempt"] or "shrink" not in before:
        return True
    if now.get("growth", {}).get("n", 0) > before.get("growth", {}).get("n", 0):
        return True
    return "shrink" in now and len(now["shrink"]["ranks"]) >= len(before["shrink"]["ranks"])


def _ledger_rises(now: Any, before: Any) -> bool:
    return now["epoch"] >= before["epoch"] and now["tick"] >= before["tick"]


def _is_not_its_own_parent(now: Any, _: Any) -> bool:
    return now.get("spec", {}).get("parent") != now["metadata"]["name"]


# --- the table


def _immutable(field: str, rule: str, twin: Twin) -> ValidationRule:
    return ValidationRule(
        kind="Allocation",
        path=SPEC,
        rule=rule.replace("FIELD", field),
        message=_UNCHANGED.format(field),
        twin=twin,
        field=f".{field}",
    )


def _replaceable(field: str, rule: str, twin: Twin) -> ValidationRule:
    held = _immutable(field, _OR_HELD.format(rule), _or_held(twin))
    return msgspec.structs.replace(held, message=f"{field} can only be changed while it is held and was not admitted")


def _constant(field: str) -> ValidationRule:
    return ValidationRule(
        kind="Allocation",
        path=(*SPEC, field),
        rule="self == oldSelf",
        message=_UNCHANGED.format(field),
        twin=_same,
    )


def _rising(field: str) -> ValidationRule:
    return ValidationRule(
        kind="Allocation",
        path=(*STATUS, field),
        rule="self >= oldSelf",
        message="seq and attempt never go down",
        twin=_rises,
    )


_UNCHANGED = "{} cannot be changed after creation; start another allocation"


_SAME_OR_BOTH_ABSENT = "has(self.FIELD) ? has(oldSelf.FIELD) && self.FIELD == oldSelf.FIELD : !has(oldSelf.FIELD)"
_SAME_OR_EMPTY = (
    "has(self.FIELD) ? (has(oldSelf.FIELD) ? self.FIELD == oldSelf.FIELD : size(self.FIELD) == 0)"
    " : (!has(oldSelf.FIELD) || size(oldSelf.FIELD) == 0)"
)
"""Optional types would be shorter, but the cost estimator treats their sizes as unbounded."""
_SAME_OR_BOTH_ABSENT_OF_SPEC = _SAME_OR_BOTH_ABSENT.replace("elf.", "elf.spec.")
_ALL_REPLACEABLE_SAME = " && ".join(
    f"({_SAME_OR_BOTH_ABSENT_OF_SPEC.replace('FIELD', field)})" for field in REPLACEABLE
)
_OR_HELD = "({}) || (has(oldSelf.hold) && oldSelf.hold)"


def _named(kind: str) -> ValidationRule:
    return ValidationRule(
        kind=kind,
        path=(),
        rule="size(self.metadata.name) <= 63 && !self.metadata.name.contains('.')",
        message="the name must have at most 63 characters and no dots",
        twin=_is_label_name,
    )


_ALLOCATION_ROOT = (
    ValidationRule(
        kind="Allocation",
        path=(),
        rule="size(self.metadata.name) <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        message="the name must have at most 40 characters: a letter first, then lower case letters, digits and hyphens",
        twin=_is_allocation_name,
    ),
    ValidationRule(
        kind="Allocation",
        path=(),
        rule="!has(oldSelf.status) || has(self.status)",
        message="status cannot be removed",
        twin=_keeps_status,
    ),
    ValidationRule(
        kind="Allocation",
        path=(),
        rule="self.spec.desired != 'Stopped' || !has(self.status) || !has(self.status.release) || "
        "(has(oldSelf.status) && has(oldSelf.status.release) && self.status.release == oldSelf.status.release)",
        message="no release: the allocation is stopped",
        twin=_releases_only_when_desired,
    ),
    ValidationRule(
        kind="Allocation",
        path=(),
        rule="self.spec.desired != 'Stopped' || !has(self.status) || !has(self.status.growth) || "
        "!has(self.status.growth.podUIDs) || size(self.status.growth.podUIDs) == 0 || "
        "(has(oldSelf.status) && has(oldSelf.status.growth) && has(oldSelf.status.growth.podUIDs) && "
        "size(oldSelf.status.growth.podUIDs) >= size(self.status.growth.podUIDs))",
        message="no more ranks: the allocation is stopped",
        twin=_grows_only_when_desired,
    ),
    ValidationRule(
        kind="Allocation",
        path=(),
        rule="self.spec.desired != 'Stopped' || !has(self.status) || !has(self.status.restartedRanks) || "
        "self.status.restartedRanks.all(i, r, !has(r.podUID) || (has(oldSelf.status) && "
        "has(oldSelf.status.restartedRanks) && size(oldSelf.status.restartedRanks) > i && "
        "has(oldSelf.status.restartedRanks[i].podUID) && oldSelf.status.restartedRanks[i].podUID == r.podUID))",
        message="no rank starts again: the allocation is stopped",
        twin=_restarts_only_when_desired,
    ),
    ValidationRule(
        kind="Allocation",
        path=(),
        rule="self.spec.queue == oldSelf.spec.queue || !has(oldSelf.status) || !has(oldSelf.status.admission)",
        message="queue cannot be changed once the allocation was admitted",
        twin=_keeps_queue_once_admitted,
        field=".spec.queue",
    ),
    ValidationRule(
        kind="Allocation",
        path=(),
        rule="!has(oldSelf.status) || !has(oldSelf.status.admission) || !has(oldSelf.spec.hold) || !oldSelf.spec.hold"
        f" || ({_ALL_REPLACEABLE_SAME})",
        message="template, ranks and env cannot be changed once the allocation was admitted; start another allocation",
        twin=_keeps_work_once_admitted,
        field=".spec",
    ),
)

_ALLOCATION_SPEC = (
    ValidationRule(
        kind="Allocation",
        path=(*SPEC, "desired"),
        rule="oldSelf != 'Stopped' || self == 'Stopped'",
        message="a stopped allocation cannot be started again; start another one",
        twin=_stays_stopped,
    ),
    *(_constant(field) for field in IMMUTABLE_ALWAYS_SET),
    *(_immutable(field, _SAME_OR_BOTH_ABSENT, _same_or_both_absent(field)) for field in IMMUTABLE_OPTIONAL),
    *(_immutable(field, _SAME_OR_EMPTY, _same_or_empty(field)) for field in IMMUTABLE_COLLECTIONS),
    _replaceable("template", _SAME_OR_BOTH_ABSENT, _same_or_both_absent("template")),
    *(_replaceable(field, _SAME_OR_EMPTY, _same_or_empty(field)) for field in ("ranks", "env")),
    ValidationRule(
        kind="Allocation",
        path=SPEC,
        rule="!has(oldSelf.signals) || (has(self.signals) && self.signals.attempt >= oldSelf.signals.attempt)",
        message="signals cannot be removed, nor go back to an earlier attempt",
        twin=_attempt_of_signals_rises,
        field=".signals",
    ),
    ValidationRule(
        kind="Allocation",
        path=SPEC,
        rule="!has(oldSelf.signals) || !has(oldSelf.signals.preempt) || (has(self.signals) && "
        "(self.signals.attempt > oldSelf.signals.attempt || "
        "(has(self.signals.preempt) && self.signals.preempt.n >= oldSelf.signals.preempt.n)))",
        message="signals.preempt.n only rises within an attempt",
        twin=_preempt_rises,
        field=".signals",
    ),
    ValidationRule(
        kind="Allocation",
        path=SPEC,
        rule="!has(oldSelf.signals) || !has(oldSelf.signals.acks) || (has(self.signals) && "
        "(self.signals.attempt > oldSelf.signals.attempt || (has(self.signals.acks) && "
        "oldSelf.signals.acks.all(r, r in self.signals.acks && self.signals.acks[r] >= oldSelf.signals.acks[r]))))",
        message="an acknowledgement cannot be taken back within an attempt",
        twin=_acks_rise,
        field=".signals",
    ),
    ValidationRule(
        kind="Allocation",
        path=(*SPEC, "ranks"),
        rule="self.all(a, self.exists_one(b, b.name == a.name))",
        message="each role needs a name of its own",
        twin=_has_distinct_roles,
    ),
    ValidationRule(
        kind="Allocation",
        path=("spec", "ranks", "*"),
        rule="!has(self.minAvailable) || self.minAvailable <= self.count",
        message="minAvailable must not be above count",
        twin=_minimum_within_role,
    ),
)

_ALLOCATION_STATUS = (
    ValidationRule(
        kind="Allocation",
        path=STATUS,
        rule="oldSelf.phase != 'Terminated' || self == oldSelf || (self.phase == 'Terminated' && "
        "self.attempt == oldSelf.attempt && "
        "(!has(oldSelf.result) || (has(self.result) && self.result == oldSelf.result)))",
        message="the allocation has ended: phase, attempt and result are final",
        twin=_terminal_is_absorbing,
    ),
    _rising("seq"),
    _rising("attempt"),
    ValidationRule(
        kind="Allocation",
        path=STATUS,
        rule="!has(oldSelf.admission) || !has(oldSelf.admission.epoch) || (has(self.admission) && "
        "has(self.admission.epoch) && self.admission.epoch >= oldSelf.admission.epoch)",
        message="the epoch of the admission never goes down",
        twin=_epoch_rises,
    ),
    ValidationRule(
        kind="Allocation",
        path=STATUS,
        rule="!has(oldSelf.release) || (has(self.release) && self.release == oldSelf.release) || "
        "self.attempt > oldSelf.attempt",
        message="the release of an attempt is final",
        twin=_release_is_final,
    ),
    ValidationRule(
        kind="Allocation",
        path=STATUS,
        rule="!has(oldSelf.ranks) || self.attempt > oldSelf.attempt || (has(self.ranks) && "
        "size(self.ranks) == size(oldSelf.ranks) && oldSelf.ranks.all(i, o, !has(o.exitCode) || "
        "(has(self.ranks[i].exitCode) && self.ranks[i].exitCode == o.exitCode && self.ranks[i].podUID == o.podUID) || "
        "((has(self.growth) || has(self.restartedRanks)) && self.ranks[i].podUID != '' && "
        "self.ranks[i].podUID != o.podUID)))",
        message="the exit of a rank is written once",
        twin=_exit_codes_are_final,
    ),
    ValidationRule(
        kind="Allocation",
        path=STATUS,
        rule="!has(oldSelf.shrink) || self.attempt > oldSelf.attempt || (has(self.shrink) && "
        "size(self.shrink.ranks) >= size(oldSelf.shrink.ranks)) || "
        "(has(self.growth) && (!has(oldSelf.growth) || self.growth.n > oldSelf.growth.n))",
        message="ranks in shrink stay there until the gang grows again",
        twin=_leaving_ranks_stay,
    ),
    ValidationRule(
        kind="Allocation",
        path=STATUS,
        rule="!has(oldSelf.growth) || self.attempt > oldSelf.attempt || (has(self.growth) && "
        "(self.growth.n > oldSelf.growth.n || (self.growth.n == oldSelf.growth.n && (!has(oldSelf.growth.podUIDs) || "
        "(has(self.growth.podUIDs) && size(self.growth.podUIDs) >= size(oldSelf.growth.podUIDs) && "
        "oldSelf.growth.podUIDs.all(i, uid, self.growth.podUIDs[i] == uid))))))",
        message="the growth of an attempt stays: n never goes down, and within one n no pod is taken out",
        twin=_growth_rises,
    ),
    ValidationRule(
        kind="Allocation",
        path=STATUS,
        rule="!has(oldSelf.restartedRanks) || self.attempt > oldSelf.attempt || (has(self.restartedRanks) && "
        "size(self.restartedRanks) >= size(oldSelf.restartedRanks) && oldSelf.restartedRanks.all(i, o, "
        "self.restartedRanks[i].rank == o.rank && (self.restartedRanks[i].n > o.n || "
        "(self.restartedRanks[i].n == o.n && (!has(o.podUID) || "
        "(has(self.restartedRanks[i].podUID) && self.restartedRanks[i].podUID == o.podUID))))))",
        message="restarts of ranks stay for their attempt: n never goes down, and within one n the pod stays",
        twin=_restarted_ranks_stay,
    ),
)

_OTHERS = (
    _named("ResourcePool"),
    _named("Queue"),
    _named("Job"),
    _named("Template"),
    ValidationRule(
        kind="ResourcePool",
        path=(),
        rule="!has(oldSelf.status) || has(self.status)",
        message="the ledger cannot be removed",
        twin=_keeps_status,
    ),
    ValidationRule(
        kind="ResourcePool",
        path=STATUS,
        rule="self.epoch >= oldSelf.epoch && self.tick >= oldSelf.tick",
        message="epoch and tick of the ledger never go down",
        twin=_ledger_rises,
    ),
    ValidationRule(
        kind="ResourcePool",
        path=SPEC,
        rule="!has(self.schedulerName) || self.schedulerName != 'slipway'",
        message="slipway cannot be the delegate; name another scheduler that binds the pods, or leave it out",
        twin=_delegates_to_somebody,
        field=".schedulerName",
    ),
    ValidationRule(
        kind="ResourcePool",
        path=SPEC,
        rule="!has(self.extenders) || self.extenders.filter(e, has(e.bindVerb) && size(e.bindVerb) > 0).size() <= 1",
        message="at most one extender may bind",
        twin=_has_one_binder_at_most,
        field=".extenders",
    ),
    ValidationRule(
        kind="ResourcePool",
        path=WINDOW,
        rule="(has(self.maintenance) && self.maintenance) != (has(self.queues) && self.queues.size() > 0)",
        message="state either queues, whose work may use the nodes, or maintenance: true",
        twin=_is_for_queues_or_maintenance,
    ),
    ValidationRule(
        kind="ResourcePool",
        path=WINDOW,
        rule="!has(self.nodes) || !has(self.gpus)",
        message="state either nodes or gpus",
        twin=_counts_nodes_or_gpus,
        field=".gpus",
    ),
    ValidationRule(
        kind="ResourcePool",
        path=WINDOW,
        rule="!has(self.nodeNames) || self.nodeNames.size() == 0 || (!has(self.nodes) && !has(self.gpus) && "
        "(!has(self.nodeSelector) || self.nodeSelector.size() == 0))",
        message="nodeNames names the nodes; leave out nodeSelector, nodes and gpus",
        twin=_names_nodes_alone,
        field=".nodeNames",
    ),
    ValidationRule(
        kind="ResourcePool",
        path=WINDOW,
        rule="timestamp(self.start) < timestamp('3001-01-01T00:00:00Z')",
        message="start is not a valid date",
        twin=_starts_some_day,
        field=".start",
    ),
    ValidationRule(
        kind="ResourcePool",
        path=WINDOW,
        rule="!has(self.repeat) || !has(self.repeat.until) || timestamp(self.repeat.until) >= timestamp(self.start)",
        message="repeat.until is before start: the window would never occur",
        twin=_ends_after_its_start,
        field=".repeat.until",
    ),
    ValidationRule(
        kind="Queue",
        path=(),
        rule="!has(self.spec) || !has(self.spec.parent) || self.spec.parent != self.metadata.name",
        message="a queue cannot be its own parent",
        twin=_is_not_its_own_parent,
    ),
)

RULES: tuple[ValidationRule, ...] = (*_ALLOCATION_ROOT, *_ALLOCATION_SPEC, *_ALLOCATION_STATUS, *_OTHERS)

TWINS: Mapping[str, Twin] = {rule.rule: rule.holds for rule in RULES}
"""CEL expression -> its Python twin, for the local cluster's API server."""
