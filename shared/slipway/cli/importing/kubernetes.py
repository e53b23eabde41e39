"""Kubernetes' Job, and the JobSet of its special interest group.

A Job becomes one role, whose ranks start together. A JobSet becomes one role for each replicated job, and another
launch for the jobs that start when others are complete.

Source: Kubernetes API reference, JobSpec (batch/v1); JobSet, jobset_types.go (v1alpha2).
"""

from collections.abc import Mapping
from itertools import pairwise

from slipway.cli.importing.foreign import ForeignDocument, ForeignField, Json, Verdict, each, lose
from slipway.cli.importing.outcome import (
    ImportedLaunch,
    failing_of,
    job_success,
    pod_failures,
    set_failures,
    set_success,
)
from slipway.cli.importing.pods import frame, kind_by_size, role, set_variables
from slipway.cli.importing.vocabulary import for_seconds
from slipway.crd.roleresources import containers_of, main_container, object_of
from slipway.model.ids import NAME_LENGTH_MAX

JOB_LENGTH_MAX = 20
"""The most characters of a job's name in the name of its launch."""
RETRIES_OF_A_JOB = 6
"""backoffLimit of a Job that does not set it."""
_INDEX = "JOB_COMPLETION_INDEX"
_LOST_OF_JOB = {
    "backoffLimitPerIndex": ("retries of each index", "maxRestarts counts for all ranks; launch indexes separately"),
    "maxFailedIndexes": ("how many indexes may fail", "set minAvailable: so many ranks must go on"),
    "ttlSecondsAfterFinished": ("deletes the finished Job", "ended work is kept as long as the installation says"),
    "podReplacementPolicy": ("when a failed pod is replaced", "an attempt starts when all pods of the last have gone"),
}


def job(document: ForeignDocument) -> list[ImportedLaunch]:
    """Convert a Job of batch/v1."""
    root, launch = document.root, ImportedLaunch(document)
    frame(launch, root)
    job_role(launch, root.get("spec"), name="worker")
    if root.get("spec").get("suspend").truth():
        launch.put("hold", value=True, source=root.get("spec").get("suspend"))
    root.get("spec").get("suspend").carried("hold")
    limit = root.get("spec").get("activeDeadlineSeconds")
    if limit.is_set:
        launch.put("maxRuntime", for_seconds(limit), limit)
        limit.changed("seconds since the Job started", "maxRuntime: of each attempt, measured while it runs")
    retries = root.get("spec").get("backoffLimit")
    launch.put("maxRestarts", min(retries.whole(RETRIES_OF_A_JOB), 1000), retries)
    here = f"maxRestarts: {launch.body['maxRestarts']}"
    if launch.body["maxRestarts"] and sum(int(each_["count"]) for each_ in launch.roles()) > 1:
        # A Job restarts single pods while the others continue.
        launch.put("restart", "rank", retries)
        here += ", restart: rank"
        policy = root.get("spec").get("template").get("spec").get("restartPolicy")
        if policy.value == "OnFailure":
            policy.changed("a failed container starts again in its pod", "restart: rank; it starts again in a new pod")
    if retries.is_set:
        retries.carried(here)
    else:
        document.note(retries.steps, Verdict.CHANGED, f"absent: {RETRIES_OF_A_JOB} retries of single pods", here)
    kind_by_size(launch)
    return [launch]


def job_role(
    launch: ImportedLaunch,
    spec: ForeignField,
    *,
    name: str,
    times: int = 1,
    failing: str = "fail",
    of_set: bool = False,
) -> Json:
    """Add the ranks of a Job's spec, `times` over; the caller converts limits and retries.

    `failing` is the action when a rule fails the Job; `of_set` is whether the Job is part of a JobSet."""
    completions, parallelism = spec.get("completions"), spec.get("parallelism")
    at_once = parallelism.whole(1)
    if parallelism.is_set and not at_once:
        parallelism.refuse("0 starts no pod; write how many run at once, and suspend: true to start later")
    # Without completions, the pods share a queue of work and the success of one pod is enough.
    count = completions.whole(at_once, least=1)
    if completions.is_set and count != at_once:
        here = f"count: {count}, all at once; for fewer, launch smaller allocations with --job"
        parallelism.changed(f"at most {at_once} pods at once", here)
        if not parallelism.is_set:
            completions.changed("number of pods, one after the other", here)
    else:
        parallelism.carried("ranks[].count")
    if not completions.is_set and at_once > 1:
        parallelism.changed("the Job succeeds with its first pod", f"count: {at_once}; all ranks must succeed")
    elif completions.value == count and (parallelism.is_set or count == 1):
        completions.carried("ranks[].count")
    made = role(launch, spec.get("template"), name=name, count=count * times)
    mode = spec.get("completionMode")
    if mode.text() == "Indexed" and len(launch.roles()) == 1 and times == 1:
        set_variables(made, {_INDEX: "$(RANK)"})
        mode.changed(f"pods have an index, in {_INDEX}", f"ranks have one, in RANK; {_INDEX} is set to it")
    elif mode.text() == "Indexed":
        first = sum(int(each_["count"]) for each_ in launch.roles()[:-1])
        here = f"{_INDEX} is not set: it is (RANK - {first}) modulo {count}"
        mode.lost(f"pods have an index, in {_INDEX}", here)
    mode_is_plain = mode.text("NonIndexed") == "NonIndexed"
    if mode_is_plain:
        mode.carried()
    elif mode.text() != "Indexed":
        mode.refuse("must be Indexed or NonIndexed")
    each(spec, ("selector", "manualSelector", "managedBy"), lambda field: field.unneeded("a controller's own"))
    only = str(made["name"]) if of_set else ""
    pod = object_of(made["template"])
    main = str(containers_of(pod)[main_container(pod)].get("name"))
    pod_failures(launch, spec.get("podFailurePolicy"), main=main, role=only, failing=failing)
    if of_set:
        here = "write targets of successPolicy, by role"
        spec.get("successPolicy").lost("when one Job of the set has succeeded", here)
    else:
        job_success(launch, spec.get("successPolicy"))
    lose(spec, _LOST_OF_JOB)
    return made


_LOST_OF_SET = {
    "network": (
        "host names of the pods",
        "ranks find each other with MASTER_ADDR, and python -m slipway.inside hostfile",
    ),
    "coordinator": ("a label with the address of one pod", "MASTER_ADDR is the address of the first rank"),
    "ttlSecondsAfterFinished": ("deletes the finished JobSet", "ended work is kept as long as the installation says"),
    "volumeClaimPolicies": ("makes volume claims", "make the claims in the workspace, and name them in volumes"),
}


def job_set(document: ForeignDocument) -> list[ImportedLaunch]:
    """Convert a JobSet of jobset.x-k8s.io: one gang, and another for jobs that start when others are complete."""
    root = document.root
    spec = root.get("spec")
    replicated = spec.get("replicatedJobs")
    if not replicated.items():
        replicated.refuse("has no job; name at least one")
    launches: dict[tuple[str, ...], ImportedLaunch] = {}
    stage_of: dict[str, ImportedLaunch] = {}
    made: dict[str, Json] = {}
    several: list[str] = []
    for item in replicated.items():
        name = item.get("name").carried("ranks[].name").text("worker")
        awaited, ready = _awaited(item, stage_of)
        launch = launches.get(awaited) or _stage(
            document, name if launches else "", [stage_of[each] for each in awaited]
        )
        launches[awaited] = stage_of[name] = launch
        times = item.get("replicas").whole(1, least=1)
        item.get("replicas").carried("ranks[].count")
        if times > 1:
            item.get("replicas").changed("number of Jobs", "their pods are ranks of one role")
        template = item.get("template")
        template.get("metadata").unneeded("Slipway makes no Job")
        failing = failing_of(spec.get("failurePolicy"), name)
        made[name] = job_role(launch, template.get("spec"), name=name, times=times, failing=failing, of_set=True)
        if times > 1:
            several.append(str(made[name]["name"]))
        _start_order(made[name], [(field, job) for field, job in ready if stage_of[job] is launch])
        _of_one_job(launch, template.get("spec"))
        item.get("groupName").lost("groups replicated jobs", "the roles are one gang")
    names = {name: str(role_["name"]) for name, role_ in made.items()}
    if len(launches) > 1:
        spec.get("successPolicy").lost("which jobs decide the success", "each launch succeeds when all its ranks do")
    else:
        set_success(launches[()], spec.get("successPolicy"), names, replicated=several)
    order = spec.get("startupPolicy", "startupPolicyOrder")
    if order.text("AnyOrder") == "InOrder":
        for launch in launches.values():
            for before, after in pairwise(launch.roles()):
                after["dependsOn"] = [{"role": before["name"], "until": "ready"}]
        order.changed(
            "starts each job when the one before is ready",
            "ranks[].dependsOn: ranks wait in their places; the image needs python3",
        )
    if order.value == "AnyOrder":
        order.carried()
    for launch in launches.values():
        mine = {name: role_ for name, role_ in names.items() if stage_of[name] is launch}
        _failures(launch, spec.get("failurePolicy"), mine, is_part=len(launches) > 1)
        if spec.get("suspend").truth():
            launch.body["hold"] = True
        launch.body["kind"] = "training"
    spec.get("suspend").carried("hold")
    spec.get("managedBy").unneeded("a controller's own")
    lose(spec, _LOST_OF_SET)
    return list(launches.values())


def _stage(document: ForeignDocument, job: str, awaited: list[ImportedLaunch]) -> ImportedLaunch:
    """Return a new launch of the set; `job` is its first job, empty for the first launch."""
    launch = ImportedLaunch(document)
    frame(launch, document.root)
    if job and "name" in launch.body:
        end = f"-{job[:JOB_LENGTH_MAX].rstrip('-')}"
        launch.body["name"] = str(launch.body["name"])[: NAME_LENGTH_MAX - len(end)] + end
    if awaited:
        names = dict.fromkeys(str(each_.body["name"]) for each_ in awaited)
        launch.body["after"] = [{"allocation": name} for name in names]
    return launch


def _start_order(made: Json, ready: list[tuple[ForeignField, str]]) -> None:
    """Set which jobs of the same launch must be ready before the ranks of this role start."""
    if ready:
        made["dependsOn"] = [{"role": job, "until": "ready"} for _, job in ready]
    for field, _ in ready:
        field.changed(
            "starts when another job is ready", "ranks[].dependsOn: ranks wait in their places; the image needs python3"
        )


def _awaited(
    item: ForeignField, above: Mapping[str, ImportedLaunch]
) -> tuple[tuple[str, ...], list[tuple[ForeignField, str]]]:
    """Return the jobs that must be complete before this one starts, and the jobs that must be ready."""
    found: list[str] = []
    ready: list[tuple[ForeignField, str]] = []
    for dependency in item.get("dependsOn").items():
        name = dependency.get("name").text()
        if name not in above:
            dependency.refuse("names no job above this one")
        if dependency.get("status").text() != "Complete":
            # Two launches have no such order, so the verdict is `lost`. Within one launch, `_start_order` replaces the
            # verdict.
            dependency.lost("starts when another job is ready", "it is another launch: let the program wait for it")
            ready.append((dependency, name))
            continue
        if "name" not in above[name].body:
            dependency.refuse("waits for a launch that has no name; give the set a name: metadata.name")
        dependency.changed("starts when another job is complete", "a launch of its own, which waits: after")
        found.append(name)
    return tuple(sorted(set(found))), ready


def _of_one_job(launch: ImportedLaunch, spec: ForeignField) -> None:
    limit = spec.get("activeDeadlineSeconds")
    if limit.is_set:
        launch.body.setdefault("maxRuntime", for_seconds(limit))
        limit.changed("seconds for this Job", "maxRuntime: one limit for all ranks; the first that is named")
    spec.get("backoffLimit").changed("retries of single pods", "maxRestarts: all ranks start again, as one")
    spec.get("suspend").unneeded("the JobSet sets it")


def _failures(launch: ImportedLaunch, policy: ForeignField, names: Mapping[str, str], *, is_part: bool) -> None:
    restarts = policy.get("maxRestarts")
    if restarts.is_set:
        launch.put("maxRestarts", restarts.whole(most=1000), restarts)
        restarts.carried("maxRestarts")
    set_failures(launch, policy, names, is_part=is_part)
    if policy.get("restartStrategy").text("Recreate") == "InPlaceRestart":
        policy.get("restartStrategy").changed("restarts containers in their pods", "each attempt has new pods")
    else:
        policy.get("restartStrategy").carried()
