"""`slipway import` as a user runs it: the output of the launches, of the report, and the exit codes."""

import io
import json
import sys
from pathlib import Path

import pytest
import yaml

from slipway.cli import main
from slipway.cli.importing.kinds import KNOWN, OBJECTS
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser, run_here

JOB = """apiVersion: batch/v1
kind: Job
metadata: {name: hello}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      securityContext: {runAsUser: 1000}
      containers: [{name: a, image: busybox, command: [echo, hello]}]
"""
LOSSY = JOB.replace("  backoffLimit: 0\n", "  backoffLimit: 0\n  ttlSecondsAfterFinished: 60\n")


def _file(folder: Path, text: str, name: str = "job.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_launches_go_to_stdout_and_the_report_to_stderr(tmp_path: Path) -> None:
    """The launch can be piped into `slipway apply -f -`; the report fits 80 columns."""
    ran = run_here("import", _file(tmp_path, LOSSY))
    assert ran.code == main.OK
    body = yaml.safe_load(ran.out)
    assert (body["name"], body["command"], body["maxRestarts"]) == ("hello", ["echo", "hello"], 0)
    assert "spec.ttlSecondsAfterFinished" in ran.err
    path = str(tmp_path / "job.yaml")
    assert max(len(line) for line in ran.err.splitlines() if path not in line) <= 80


def test_standard_input_and_several_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` reads standard input; each document becomes a launch of its own."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{JOB}---\n{JOB.replace('hello}', 'again}')}"))
    ran = run_here("import", "-")
    assert [body["name"] for body in yaml.safe_load_all(ran.out)] == ["hello", "again"]


def test_a_list_of_kubernetes_is_read_item_by_item(tmp_path: Path) -> None:
    """`kubectl get jobs -o json` is a List; its items are documents."""
    items = [yaml.safe_load(JOB), yaml.safe_load(JOB)]
    ran = run_here("import", _file(tmp_path, json.dumps({"kind": "List", "apiVersion": "v1", "items": items})))
    assert (ran.code, len(list(yaml.safe_load_all(ran.out)))) == (main.OK, 2)


def test_the_report_as_json(tmp_path: Path) -> None:
    """The report as JSON has each field with its path and its verdict."""
    ran = run_here("import", "--report", "json", _file(tmp_path, LOSSY))
    (document,) = json.loads(ran.err)
    assert (document["system"], document["document"], document["made"]) == ("Kubernetes Job", 1, ["hello"])
    told = {field["path"]: field["verdict"] for field in document["fields"]}
    assert told["spec.ttlSecondsAfterFinished"] == "lost"
    assert told["metadata.name"] == "carried"


def test_strict_fails_when_anything_is_lost(tmp_path: Path) -> None:
    """With `--strict` the exit code is a failure when anything is lost; the launch is written in any case."""
    assert run_here("import", "--strict", _file(tmp_path, JOB)).code == main.OK
    ran = run_here("import", "--strict", _file(tmp_path, LOSSY))
    assert (ran.code, "name: hello" in ran.out) == (main.FAILED, True)


def test_a_folder_gets_a_file_for_each_launch(tmp_path: Path) -> None:
    """A file that exists is replaced with --force only."""
    source, target = _file(tmp_path, f"{JOB}---\n{JOB}"), tmp_path / "out"
    assert run_here("import", "--output", f"{target}/", source).code == main.OK
    assert sorted(path.name for path in target.iterdir()) == ["hello-2.yaml", "hello.yaml"]
    again = run_here("import", "--output", str(target), source)
    assert (again.code, "--force" in again.err) == (main.USAGE, True)
    assert run_here("import", "--output", str(target), "--force", source).code == main.OK
    one = tmp_path / "one.yaml"
    assert run_here("import", "--output", str(one), source).code == main.OK
    assert len(list(yaml.safe_load_all(one.read_text()))) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1,\nb: {", "line 2"),
        ("a: [1,\nb: {", "column"),
        ("frobnicate: 1", "it is of no known kind. Known kinds: Kubernetes Job"),
        ("- a", "a document must be an object"),
        ("resources: [a.yaml, b.yaml]\nnamespace: x", "it is of no known kind"),
        ("name: a\nsearcher: {name: single}\nentrypoint: model_def:Trial", "entrypoint: names a trial class"),
        ("", "it contains no document"),
        ("apiVersion: v1\nkind: ConfigMap", "kubectl apply it"),
        ("apiVersion: batch/v1\nkind: CronJob", "import its jobTemplate"),
        ("apiVersion: slipway.dev/v1alpha1\nkind: Allocation", "slipway apply -f"),
        (JOB.replace("backoffLimit: 0", "backoffLimit: no"), "spec.backoffLimit: must be a whole number; it is false"),
        (JOB.replace(", image: busybox", ""), "spec.template.spec.containers[0].image: no image"),
        (JOB.replace("image: busybox", "image: busybox, resources: {limits: {memory: 8}}"), "write the unit"),
    ],
)
def test_what_cannot_be_read_is_answered_with_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    """A file that cannot be read is a usage error with the reason, and no launch is printed."""
    ran = run_here("import", _file(tmp_path, text))
    assert (ran.code, ran.out) == (main.USAGE, "")
    assert said in " ".join(ran.err.split())


def test_one_good_document_is_enough(tmp_path: Path) -> None:
    """Documents that are no workload are named, and the others are imported. With `--strict` that is a failure."""
    path = _file(tmp_path, f"apiVersion: v1\nkind: Service\n---\n{JOB}")
    ran = run_here("import", path)
    assert (ran.code, "v1 Service is no workload" in " ".join(ran.err.split())) == (main.OK, True)
    assert run_here("import", "--strict", path).code == main.FAILED


def test_the_kinds_are_named_and_documented() -> None:
    """The answer to an unknown kind, and the pages, name every kind that is read."""
    docs = Path(__file__).parents[3] / "docs"
    pages = [docs / "workloads.md", *(docs / "tutorials").glob("from-*.md"), *(docs / "coming-from").glob("*.md")]
    text = " ".join(page.read_text("utf-8") for page in pages)
    for system, _, _ in OBJECTS.values():
        name = system.removeprefix("Kubernetes ")
        assert name in KNOWN, system
        assert name in text, system


def test_no_server_is_asked(tmp_path: Path) -> None:
    """No server is called, unless `--check` is given."""
    path = _file(tmp_path, JOB)
    assert run_here("import", path, "--server", "http://127.0.0.1:1").code == main.OK
    assert run_here("import", "--check", path, "--server", "http://127.0.0.1:1").code == main.FAILED


async def test_a_server_can_be_asked(world: ApiWorld, cli_user: CliUser, tmp_path: Path) -> None:
    """`--check` is a dry run of each launch: nothing is launched."""
    good = await cli_user.run("import", "--check", _file(tmp_path, JOB))
    assert (good.code, "hello: the server would launch it" in good.err) == (main.OK, True)
    bad = await cli_user.run(
        "import", "--check", _file(tmp_path, JOB.replace("{name: hello}", "{name: a, namespace: b}"))
    )
    assert (bad.code, "the server would refuse it" in bad.err) == (main.FAILED, True)
    assert await world.names() == []


async def test_what_is_imported_can_be_applied(world: ApiWorld, cli_user: CliUser, tmp_path: Path) -> None:
    """The output of an import can be applied, end to end."""
    launch = tmp_path / "launch.yaml"
    assert (await cli_user.run("import", "--output", str(launch), _file(tmp_path, JOB))).code == main.OK
    assert (await cli_user.run("apply", "-f", str(launch))).code == main.OK
    assert await world.names() == ["hello"]
