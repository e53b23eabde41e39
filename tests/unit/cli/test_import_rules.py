"""The rules of an import beyond copying fields: the meaning of `$`, ranks of several roles, and removed parts."""

import tracemalloc
from typing import Any

import pytest

from slipway.cli.importing.foreign import ForeignDocument, Verdict
from slipway.cli.importing.kinds import ImportedDocument, ImportOptions, convert
from slipway.cli.importing.vocabulary import duration, plain_name, size
from slipway.errors import InvalidError


def _imported(text: str, **options: Any) -> ImportedDocument:
    (document,) = convert(text, "file", ImportOptions(**options))
    return document


def _verdicts(document: ImportedDocument) -> dict[str, Verdict]:
    return {entry.path: entry.verdict for entry in document.entries}


def test_a_literal_dollar_stays_literal() -> None:
    """A value of SkyPilot is plain text, so it is escaped: Kubernetes must not expand `$(NAME)` in it."""
    (body,) = _imported("run: echo $A\nenvs: {A: 'x$(date)'}\n").bodies
    assert body["env"] == {"A": "x$$(date)"}
    assert body["command"] == ["bash", "-c", "echo $A"]


def test_a_reference_to_a_variable_of_the_container_keeps_its_meaning() -> None:
    """`$(NAME)` in a pod's command is a variable, so the command stays in the pod template."""
    pod = "{containers: [{name: a, image: b, env: [{name: N, value: x}], command: [echo, '$(N)', '$(other)']}]}"
    (body,) = _imported(f"apiVersion: batch/v1\nkind: Job\nspec: {{template: {{spec: {pod}}}}}").bodies
    assert "command" not in body
    assert body["template"]["spec"]["containers"][0]["command"] == ["echo", "$(N)", "$(other)"]


def test_the_index_of_a_job_is_set_in_each_container() -> None:
    """Kubernetes sets JOB_COMPLETION_INDEX in init containers too, so that they can fetch the part of their pod."""
    pod = "{initContainers: [{name: get, image: b}], containers: [{name: a, image: b}, {name: side, image: b}]}"
    spec = f"{{completionMode: Indexed, completions: 2, parallelism: 2, template: {{spec: {pod}}}}}"
    (body,) = _imported(f"apiVersion: batch/v1\nkind: Job\nspec: {spec}").bodies
    made = body["template"]["spec"]
    index = {"name": "JOB_COMPLETION_INDEX", "value": "$(RANK)"}
    assert body["env"] == {"JOB_COMPLETION_INDEX": "$(RANK)"}
    others = (*made["initContainers"], *(item for item in made["containers"] if item["name"] == "side"))
    assert [item["env"] for item in others] == [[index]] * 2


@pytest.mark.parametrize("indexes", ["0-9999999", "0-9999999:2", "1,0-9999999"])
def test_an_array_that_is_too_long_is_refused_before_its_indexes_are_made(indexes: str) -> None:
    """An array that is too long is refused before its list of indexes is made: ten million would need seconds and
    hundreds of megabytes."""
    tracemalloc.start()
    try:
        (document,) = convert(f"#!/bin/bash\n#SBATCH --array={indexes}\nhostname\n", "job.sh", ImportOptions())
        assert "more than 200 indexes" in document.error
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_indexes_that_are_named_twice_are_one_launch() -> None:
    """Slurm starts one task for each index, so an index that is listed twice is one launch."""
    (document,) = convert("#!/bin/bash\n#SBATCH --array=0-149,0-149\nhostname\n", "job.sh", ImportOptions())
    assert len(document.bodies) == 150


def test_what_refers_to_a_removed_part_is_removed_and_reported_too() -> None:
    """A mount of a removed volume is removed too, and both are reported with their paths in the file."""
    pod = (
        "{containers: [{name: a, image: b, volumeMounts: [{name: ok, mountPath: /a}, {name: bad, mountPath: /b}]}], "
        "volumes: [{name: bad, hostPath: {path: /x}}, {name: bad2, hostPath: {path: /y}}, {name: ok, emptyDir: {}}]}"
    )
    document = _imported(f"apiVersion: batch/v1\nkind: Job\nspec: {{template: {{spec: {pod}}}}}")
    spec = document.bodies[0]["template"]["spec"]
    assert [volume["name"] for volume in spec["volumes"]] == ["ok"]
    assert [mount["name"] for mount in spec["containers"][0]["volumeMounts"]] == ["ok"]
    lost = {path for path, verdict in _verdicts(document).items() if verdict is Verdict.LOST}
    at = "spec.template.spec"
    assert lost == {f"{at}.volumes[0]", f"{at}.volumes[1]", f"{at}.containers[0].volumeMounts[1]"}


def test_values_of_secrets_are_not_copied() -> None:
    """The launch names keys of a Secret; the value is not in any output."""
    document = _imported("name: a\nrun: x\nsecrets: {TOKEN: the-value}\n")
    assert document.bodies[0]["secrets"] == {"TOKEN": "a-secrets/TOKEN"}
    assert "the-value" not in repr(document)


def test_slots_beyond_one_node_are_several_ranks() -> None:
    """Slots beyond one node become several ranks. The file of an experiment does not contain the number of GPUs per
    node; a number that does not divide is refused."""
    text = "name: a\nentrypoint: x\nsearcher: {name: single}\nenvironment: {image: i}\nresources: {slots_per_trial: 12}"
    (body,) = _imported(text, gpus_per_node=4).bodies
    assert body["ranks"] == [{"name": "worker", "count": 3, "resources": {"nvidia.com/gpu": 4}}]
    assert "no multiple of 8" in _imported(text).error


def test_a_file_without_an_image_gets_the_one_of_the_option() -> None:
    """Other systems have an image of their own; a launch of a command needs one, and the report says so."""
    text = "name: a\nentrypoint: ./x.sh\nsearcher: {name: single}\n"
    assert _imported(text, image="example/mine").bodies[0]["image"] == "example/mine"
    document = _imported(text)
    assert document.bodies[0]["image"] == "python:3.12-slim"
    assert _verdicts(document)["environment.image"] is Verdict.CHANGED


def test_roles_of_one_name_are_named_where_the_second_stands() -> None:
    """Two roles of one name are refused with the path of the second in the file, not in the launch."""
    task = "{name: a, template: {spec: {containers: [{name: c, image: i}]}}}"
    document = _imported(f"apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nspec: {{tasks: [{task}, {task}]}}")
    assert document.error.startswith("spec.tasks[1].name: a is listed twice")


def test_a_configuration_that_does_not_say_its_kind_is_asked_back() -> None:
    """A configuration without its kind is refused with the option that names the kind."""
    assert "--kind" in _imported("resources: {slots: 1}").error
    assert _imported("resources: {slots: 1}", kind="notebook").bodies[0]["kind"] == "notebook"


def test_every_part_of_a_document_has_a_verdict() -> None:
    """Every part of a document has a verdict. Unread parts are reported as their largest common part; a verdict on an
    object is for everything in it."""
    document = ForeignDocument({"a": {"b": 1, "c": {"d": 2}}, "e": [{"f": 3}], "g": None})
    document.root.get("a", "b").carried()
    document.root.get("e").unneeded()
    told = {entry.path: entry.verdict for entry in document.entries()}
    assert told == {"a.b": Verdict.CARRIED, "a.c": Verdict.LOST, "e": Verdict.UNNEEDED}


@pytest.mark.parametrize(
    ("text", "unit", "quantity"),
    [
        ("64GB", "G", "64Gi"), ("512 MiB", "G", "512Mi"), ("32", "G", "32Gi"), ("4000", "M", "4000Mi"),
        ("1.5G", "G", "1610612736"), ("1073741824", "", "1073741824"), ("10b", "G", "10"),
    ],
)  # fmt: skip
def test_sizes_of_other_systems(text: str, unit: str, quantity: str) -> None:
    """Units of sizes are powers of 1024, with or without B; a plain number has the default unit of the system."""
    assert size(ForeignDocument(text).root, text, unit) == quantity


@pytest.mark.parametrize(("text", "made"), [("2h", "2h"), ("90", "1m30s"), ("1d", "1d"), ("1w", "7d")])
def test_times_of_other_systems(text: str, made: str) -> None:
    """Times without a unit are seconds; days and weeks are read too."""
    assert duration(ForeignDocument(text).root) == made


@pytest.mark.parametrize("text", ["", "soon", "0", "-1h"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """An invalid time is refused with the path of the field."""
    with pytest.raises(InvalidError, match="must be a time"):
        duration(ForeignDocument(text).root)


@pytest.mark.parametrize(
    ("text", "name"), [("My_Job 1", "my-job-1"), ("7b", "n-7b"), ("---", ""), ("a" * 70, "a" * 63)]
)
def test_names_are_made_plain(text: str, name: str) -> None:
    """Names are converted to lower case letters, digits and hyphens, with a letter first."""
    assert plain_name(text) == name


def test_claims_of_a_volcano_job_are_volumes_of_the_launch() -> None:
    """Existing claims of a Volcano Job become volumes of the launch; a claim that the Job creates is reported, and an
    invalid path or name refuses the Job."""
    text = (
        "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nspec:\n  volumes: [{mountPath: %s, volumeClaimName: %s}, "
        "{mountPath: /new, volumeClaim: {}}]\n  tasks: [{replicas: 2, template: {spec: {containers: [{name: a, "
        "image: b}]}}}]\n"
    )
    document = _imported(text % ("/data", "set"))
    assert document.bodies[0]["volumes"] == {"/data": "set"}
    assert _verdicts(document)["spec.volumes[1]"] is Verdict.LOST
    for path, claim, wrong in (
        ("data", "set", "must be an absolute path"),
        ("/data", "A_B", "the name of a volume claim"),
    ):
        assert wrong in str(_imported(text % (path, claim)).error)


def _a_job(rules: str, *, more: str = "") -> ImportedDocument:
    pod = "{spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}"
    policy = f"podFailurePolicy: {{rules: [{rules}]}}"
    return _imported(f"apiVersion: batch/v1\nkind: Job\nspec: {{{policy}, {more}template: {pod}}}")


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ("operator: In, values: [3, 1, 2, 9]", ["1-3", 9]),
        ("operator: In, values: [7, 8]", [7, 8]),
        ("operator: NotIn, values: [42]", ["1-41", "43-255"]),
        ("operator: NotIn, values: [1, 300]", ["2-255"]),
    ],
)
def test_exit_codes_are_written_as_ranges(codes: str, expected: list[int | str]) -> None:
    """Exit codes are written as ranges; `NotIn` becomes every other code that a container can have."""
    (body,) = _a_job(f"{{action: FailJob, onExitCodes: {{{codes}}}}}").bodies
    assert body["failurePolicy"] == {"rules": [{"action": "fail", "exitCodes": expected}]}


def test_a_rule_that_could_never_match_is_taken_out_and_reported() -> None:
    """A rule that can never match is removed and reported: a Job may have it, but a launch with it is refused."""
    every = "{action: FailJob, onExitCodes: {operator: NotIn, values: [300]}}"
    document = _a_job(f"{every}, {{action: Ignore, onExitCodes: {{operator: In, values: [3]}}}}")
    assert [rule["action"] for rule in document.bodies[0]["failurePolicy"]["rules"]] == ["fail"]
    assert _verdicts(document)["spec.podFailurePolicy.rules[1]"] is Verdict.LOST


def test_exit_codes_decide_for_the_replicas_that_say_so() -> None:
    """`restartPolicy: ExitCode` of one replica type applies to its role; a missing limit becomes a high one."""
    pod = "template: {spec: {containers: [{name: pytorch, image: i}]}}"
    types = f"{{Master: {{restartPolicy: Never, {pod}}}, Worker: {{replicas: 2, restartPolicy: ExitCode, {pod}}}}}"
    text = f"apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nspec: {{pytorchReplicaSpecs: {types}}}"
    (body,) = _imported(text).bodies
    assert body["failurePolicy"]["rules"] == [
        {"action": "fail", "roles": ["worker"], "exitCodes": ["1-127"]},
        {"action": "retry", "roles": ["worker"], "exitCodes": ["128-255"]},
        {"action": "fail", "roles": ["master"]},
    ]
    assert (body["maxRestarts"], body["restart"]) == (1000, "rank")


@pytest.mark.parametrize(
    ("kind", "policy", "more", "expected"),
    [
        ("pytorch", "OnFailure", "", (1000, "rank")),
        ("pytorch", "", "", (1000, "rank")),
        ("paddle", "", "", (1000, "rank")),
        ("jax", "", "", (None, None)),
        ("pytorch", "OnFailure", "runPolicy: {backoffLimit: 4}, ", (4, "rank")),
        ("pytorch", "OnFailure", "elasticPolicy: {minReplicas: 1}, ", (1000, None)),
        ("pytorch", "Never", "", (None, None)),
        ("tf", "", "", (None, None)),
    ],
)
def test_pods_that_kubeflow_starts_again_do_so_here(
    kind: str, policy: str, more: str, expected: tuple[int | None, str | None]
) -> None:
    """Pods that Kubeflow restarts one by one do so in Slipway too, except in elastic gangs. Kubeflow has no limit, so
    the limit is high. TFJobs set it themselves."""
    words = f"restartPolicy: {policy}, " if policy else ""
    worker = f"{{replicas: 2, {words}template: {{spec: {{containers: [{{name: c, image: i}}]}}}}}}"
    names = {"pytorch": "PyTorchJob", "tf": "TFJob", "paddle": "PaddleJob", "jax": "JAXJob"}
    text = f"apiVersion: kubeflow.org/v1\nkind: {names[kind]}\nspec: {{{more}{kind}ReplicaSpecs: {{Worker: {worker}}}}}"
    (body,) = _imported(text).bodies
    assert (body.get("maxRestarts"), body.get("restart")) == expected


def test_a_volcano_job_that_restarts_at_one_code_fails_at_the_others() -> None:
    """A Volcano Job that restarts at one exit code fails at the others. An elastic one continues, because a rule with
    `fail` would end a gang that can lose a rank."""
    task = "{name: a, replicas: 3, template: {spec: {containers: [{name: c, image: i}]}}}"
    head = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\n"
    policies = "policies: [{exitCode: 75, action: RestartJob}]"
    (whole,) = _imported(f"{head}spec: {{{policies}, tasks: [{task}]}}").bodies
    assert [rule["action"] for rule in whole["failurePolicy"]["rules"]] == ["retry", "fail"]
    (elastic,) = _imported(f"{head}spec: {{minAvailable: 2, {policies}, tasks: [{task}]}}").bodies
    assert [rule["action"] for rule in elastic["failurePolicy"]["rules"]] == ["retry"]
    assert (whole["maxRestarts"], elastic["maxRestarts"]) == (3, 3)


@pytest.mark.parametrize(
    ("value", "here"),
    [
        ("afterok:12:13", "launch with --after ID:ok, where ID is the allocation that the job became"),
        (
            "afterany:12,afternotok:13",
            "launch with --after ID:end --after ID:failed, where ID is the allocation that the job became",
        ),
        ("singleton", "singleton: launch it when it may start, or slipway run --hold"),
    ],
)
def test_a_dependency_of_slurm_says_which_option_stands_for_it(value: str, here: str) -> None:
    """A dependency of Slurm is reported with the option that replaces it: the job number of another system is no id
    here, so the launch does not wait."""
    document = _imported(f"#!/bin/bash\n#SBATCH --dependency={value}\ntrue\n", kind="slurm")
    (entry,) = [each for each in document.entries if "dependency" in each.path]
    assert (entry.verdict, entry.here) == (Verdict.LOST, here)
    assert "after" not in document.bodies[0]


JOBS = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: stages}
spec:
  replicatedJobs:
    - {name: a, template: {spec: {template: {spec: {containers: [{name: c, image: i}]}}}}}
    - name: b
      dependsOn: [{name: a, status: Complete}]
      template: {spec: {template: {spec: {containers: [{name: c, image: i}]}}}}
"""


def test_jobs_that_start_when_others_are_complete_are_a_launch_of_their_own() -> None:
    """Jobs that start when others are complete become separate launches, in the order in which they must be
    launched."""
    bodies = _imported(JOBS).bodies
    assert [(body["name"], body.get("after")) for body in bodies] == [
        ("stages", None),
        ("stages-b", [{"allocation": "stages"}]),
    ]


@pytest.mark.parametrize(
    ("given", "made", "why"),
    [
        ("metadata: {name: stages}", "metadata: {generateName: x-}", "give the set a name: metadata.name"),
        ("[{name: a, status", "[{name: gone, status", "names no job above this one"),
        ("[{name: a, status", "[{name: b, status", "names no job above this one"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(given: str, made: str, why: str) -> None:
    """A dependency that cannot be imported is refused, because a launch that does not wait would not do the same."""
    assert why in _imported(JOBS.replace(given, made)).error


def test_a_rule_on_failures_goes_with_the_launch_of_its_job() -> None:
    """When a set becomes two launches, each has the rules on failures of its own jobs."""
    rules = "[{name: x, action: FailJobSet, targetReplicatedJobs: [b]}]"
    first, second = _imported(f"{JOBS}  failurePolicy: {{maxRestarts: 2, rules: {rules}}}\n").bodies
    assert (first["maxRestarts"], second["maxRestarts"]) == (2, 2)
    assert "failurePolicy" not in first
    assert [rule["action"] for rule in second["failurePolicy"]["rules"]] == ["fail"]
