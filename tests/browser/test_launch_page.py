"""Launching in a browser: the form and its YAML show the same launch, and the texts to copy launch the same
elsewhere."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipway.cli.http import Api
from tests.browser.chromium import Page
from tests.browser.test_pages import Visit
from tests.support.local_stack import RunningStack

Json = dict[str, Any]
BODIES: dict[str, Json] = {
    "plain": {"kind": "command", "image": "local", "command": ["sh", "-c", 'echo "it\'s $HOME"; exit 0']},
    "gang": {
        "kind": "training",
        "name": "copied-gang",
        "image": "local",
        "command": ["true"],
        "priority": 61,
        "maxRuntime": "1h",
        "hold": True,
        "env": {"LEVEL": "debug=1", "EMPTY": ""},
        "ranks": [{"name": "trainer", "count": 2, "resources": {"cpu": "100m", "nvidia.com/gpu": 1}}],
    },
    "prepared": {
        "kind": "command",
        "image": "local",
        "command": ["true"],
        "setup": "echo 'ready'\ntest -d \"$HOME\"",
        "maxRestarts": 2,
    },
    "several": {"kind": "command", "image": "local", "command": ["true"], "ranks": [{"name": "worker", "count": 2}]},
    "more": {
        "kind": "command",
        "image": "local",
        "command": ["true"],
        "hold": True,
        "labels": {"team": "a"},
        "maxRestarts": 2,
        "preemptible": True,
        "files": [{"path": "a.txt", "content": 'say "hi"\n'}],
        "ranks": [{"name": "chief", "count": 1}, {"name": "worker", "count": 2, "resources": {"memory": "64Mi"}}],
    },
}
"""{tested feature: the body of a launch}"""
ODD: dict[str, Json] = {
    "defaults": {"kind": "command", "home": False, "hold": False, "ranks": [{"name": "worker", "count": 1}]},
    "lines": {"kind": "command", "setup": "\ntrue\n", "env": {"LINES": "a\nb", "PLAIN": "c"}},
    "without a name": {"kind": "command", "ranks": [{"count": 2}]},
    "without a count": {"kind": "command", "ranks": [{"resources": {"memory": "64Mi"}}]},
    "two limits": {"kind": "command", "ranks": [{"count": 2, "resources": {"limits": {"cpu": "2"}}}]},
}
"""{tested feature: a body that the form shows only in part, or in another way}"""


@pytest.fixture
def visit(stack: RunningStack, page: Page) -> Visit:
    return Visit(stack, page)


def write_yaml(visit: Visit, text: str) -> None:
    """Replace the text of the field."""
    visit.page.wait_for("!!document.querySelector('[name=yaml]')?.value")
    visit.page.run("document.querySelector('[name=yaml]').select()")
    visit.put("[name=yaml]", text)


def written(visit: Visit) -> Any:
    return yaml.safe_load(str(visit.page.run("document.querySelector('[name=yaml]').value")))


def copied(visit: Visit, way: str) -> str:
    """The text to copy."""
    visit.page.wait_for("!!document.querySelector('.outcome .state')")
    visit.page.run(f"[...document.querySelectorAll('.same .choice button')].find(b => b.innerText === {way!r}).click()")
    visit.page.wait_for(
        f"[...document.querySelectorAll('.same .choice button')].find(b => b.innerText === {way!r})"
        ".getAttribute('aria-pressed') === 'true' && !!document.querySelector('.same pre')"
    )
    return str(visit.page.run("document.querySelector('.same pre').textContent"))


@pytest.mark.parametrize("name", [*BODIES, *ODD])
def test_the_form_loses_nothing_of_the_yaml(visit: Visit, name: str) -> None:
    """From YAML to the form and back the body stays the same, also for fields that the form does not have."""
    body = BODIES.get(name) or {"image": "local", "command": ["true"], **ODD[name]}
    visit.go("/launch?as=yaml")
    write_yaml(visit, yaml.safe_dump(body, sort_keys=False))
    visit.page.wait_for("!!document.querySelector('.outcome .state')")
    visit.press("Form")
    visit.page.wait_for("!!document.querySelector('[name=command]')")
    visit.press("YAML")
    visit.page.wait_for("!!document.querySelector('[name=yaml]')")
    assert written(visit) == body
    visit.is_clean()


def test_variables_of_the_form_join_those_of_the_yaml(visit: Visit) -> None:
    """The form cannot show a variable of several lines; adding one in the form does not remove it."""
    visit.go("/launch?as=yaml")
    write_yaml(
        visit, yaml.safe_dump({"kind": "command", "image": "local", "command": ["true"], "env": {"LINES": "a\nb"}})
    )
    visit.page.wait_for("!!document.querySelector('.outcome .state')")
    visit.press("Form")
    visit.page.wait_for("!!document.querySelector('[name=env]')")
    visit.put("[name=env]", "PLAIN=c")
    visit.press("YAML")
    visit.page.wait_for("!!document.querySelector('[name=yaml]')")
    assert written(visit)["env"] == {"LINES": "a\nb", "PLAIN": "c"}
    visit.is_clean()


@pytest.mark.parametrize("name", list(BODIES))
def test_launch_again_loses_nothing(stack: RunningStack, visit: Visit, name: str) -> None:
    """The second launch has the spec of the first: roles, files, restarts, labels."""
    id_ = stack.launch({**BODIES[name], "name": f"again-{name}", "hold": True})
    try:
        first = stack.view(id_)
        visit.go(f"/launch?from={id_}&as=yaml")
        visit.page.wait_for("!!document.querySelector('.outcome .state')")
        body = written(visit)
        foreseen = stack.ask(lambda api: api.post("/allocations", body, {"dryRun": "true"}))
        assert body.get("labels", {}) == BODIES[name].get("labels", {})
        for each in (first["spec"], foreseen["spec"]):
            for field in ("requestHash", "desired", "hold"):
                each.pop(field, None)
        assert foreseen["spec"] == first["spec"]
    finally:
        stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))
    visit.is_clean()


def test_what_the_form_changes_is_in_the_yaml(visit: Visit) -> None:
    """A name typed into the form is added to the YAML, and the rest of it stays."""
    visit.go("/launch?as=yaml")
    write_yaml(visit, yaml.safe_dump(BODIES["more"]))
    visit.page.wait_for("!!document.querySelector('.outcome .state')")
    visit.press("Form")
    visit.shows("the form does not show these fields")
    assert visit.page.run("document.querySelector('[name=ranks]').disabled") is True
    visit.put("[name=name]", "from-both")
    visit.press("YAML")
    assert written(visit) == {**BODIES["more"], "name": "from-both"}
    visit.is_clean()


def test_a_home_directory_that_cannot_be_says_why_at_its_box(visit: Visit) -> None:
    """The workspace has no template for home directories: the page shows what an administrator must do, and nothing
    can be launched."""
    visit.go("/launch")
    visit.put("[name=command]", "true")
    visit.put("[name=image]", "local")
    visit.page.wait_for("!!document.querySelector('.outcome .state')")
    visit.page.run("document.querySelector('[name=home]').click()")
    visit.page.wait_for("/slipway workspace set/.test(document.getElementById('about-home').innerText)")
    assert visit.page.run("document.querySelector('form .primary').disabled") is True
    visit.is_clean()


def test_yaml_that_is_wrong_says_where(visit: Visit) -> None:
    """An unreadable line is shown with its number, a wrong field with its path; neither can be launched."""
    visit.go("/launch?as=yaml")
    write_yaml(visit, "kind: command\nimage: [local\n")
    visit.page.wait_for("/^Line \\d: /.test(document.getElementById('about-yaml').innerText)")
    assert visit.page.run("document.querySelector('form .primary').disabled") is True
    write_yaml(visit, "kind: command\nimage: local\nranks:\n- gpus: 1\n")
    visit.page.wait_for("document.querySelector('.outcome .bad code')?.innerText === 'ranks.0.gpus'")
    assert visit.page.run("document.querySelector('form .primary').disabled") is True
    visit.page.run("document.querySelector('[name=yaml]').select()")
    visit.page.press("Backspace", 8)
    visit.shows("write names and values")
    visit.is_clean()


def _page(query: dict[str, str], api: Api) -> Any:
    return api.get("/allocations", query)


def ids(stack: RunningStack) -> set[str]:
    """The ids of all allocations."""
    known: set[str] = set()
    query = {"limit": "500"}
    while True:
        found = stack.ask(partial(_page, query))
        known |= {each["id"] for each in found["items"]}
        if not found["metadata"].get("continue"):
            return known
        query = {**query, "continue": found["metadata"]["continue"]}


@pytest.mark.parametrize("way", ["Command", "YAML", "curl", "Python", "kubectl"])
@pytest.mark.parametrize("name", list(BODIES))
def test_what_is_copied_launches_the_same(
    stack: RunningStack, visit: Visit, tmp_path: Path, name: str, way: str
) -> None:
    """A shell or Python runs each text unchanged; its launch has the spec that the page showed."""
    body = BODIES[name]
    if "name" in body:
        body = {**body, "name": f"copied-{way.lower()}"}
    visit.go("/launch?as=yaml")
    write_yaml(visit, json.dumps(body))
    text = copied(visit, way)
    env = {
        **stack.cli_environment(),
        "SLIPWAY_TOKEN": stack.stack.token,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    (tmp_path / "launch.yaml").write_text(copied(visit, "YAML"))
    before = ids(stack)
    if way == "kubectl":
        manifest = yaml.safe_load(text.partition("\n")[2].rpartition("EOF")[0])
        stack.kubernetes(
            "POST", f"/apis/slipway.dev/v1alpha1/namespaces/{manifest['metadata']['namespace']}/allocations", manifest
        )
    else:
        program = [sys.executable, "-c", text.replace("run.wait()", "")] if way == "Python" else ["sh", "-c", text]
        if way == "YAML":
            program = ["slipway", "apply", "-f", "launch.yaml"]
        if way == "Command" and text.startswith("slipway run"):
            program[2] = text.replace("slipway run", "slipway run --detach", 1)
        done = subprocess.run(program, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    (id_,) = ids(stack) - before
    stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))
    foreseen = stack.ask(lambda api: api.post("/allocations", body, {"dryRun": "true"}))["spec"]
    spec = stack.view(id_)["spec"]
    for name in ("desired", "requestHash"):
        spec.pop(name, None)
        foreseen.pop(name, None)
    assert spec == foreseen
