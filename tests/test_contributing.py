"""The lists of CONTRIBUTING.md, section "How to add", followed to the letter in a copy of the tree.

The page names the files; `tests/support/additions.py` has what a newcomer writes into them. All additions are made in
one copy, in which `make generate` runs, and then their tests and the checks of the house.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from tests.support.additions import ADDITIONS, HandEdit
from tests.support.checklists import LISTS, ROOT, Checklist

EDITS_MAX = 4
COPIED = (
    *("shared", "local", "services", "tests", "tools", "bench", "helm", "docs", "image", "requirements", ".ci"),
    *("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "SECURITY.md"),
    "pyproject.toml",
)
SOURCE_ROOTS = ("shared", "local", "services/api", "services/scheduler", "services/podworker", "services/watcher")
GENERATED: Mapping[str, tuple[tuple[str, str], ...]] = {
    "a route": (("docs/reference/rest.md", r"`GET /api/v1/clock` \| The time of the api"),),
    "an event or a transition": (
        ("docs/reference/asyncapi.json", r'"name": "dev\.slipway\.allocation\.waiting"'),
        ("docs/reference/lifecycle.md", r"Running --> Running: waiting \(watcher\)"),
        ("docs/reference/streams.md", r"dev\.slipway\.allocation\.waiting"),
    ),
    "a setting": (
        ("docs/reference/settings.md", "SLIPWAY_SEARCH_CHARACTERS_MAX"),
        ("docs/reference/values.md", r"api\.settings\.searchCharactersMax"),
        ("helm/values.schema.json", '"searchCharactersMax"'),
    ),
    "a field of a custom resource": (
        ("helm/files/crds/allocations.slipway.dev.yaml", r"\n +contact:\n"),
        ("docs/reference/resources.md", r"`spec\.contact`"),
    ),
    "a rule of the API server": (
        ("helm/files/crds/allocations.slipway.dev.yaml", "contact cannot be changed after creation"),
    ),
    "a metric": (
        ("docs/reference/metrics.md", "slipway_token_lists_total"),
        ("helm/files/dashboards/services.json", r"rate\(slipway_token_lists_total"),
    ),
    "a value of the chart": (
        ("docs/reference/values.md", r"`contact`"),
        ("helm/values.schema.json", '"Whom to ask about this installation'),
    ),
}
"""{list: (file that `make generate` writes, text that the file then contains)}"""
HOUSE_CHECKS = (
    "tests/test_house_rules.py",
    "tests/test_scheduling_page.py::test_every_filter_and_score_is_on_the_page",
    "tests/integration/helm/test_accounts.py",
    "tests/integration/helm/test_monitoring.py",
    "tests/integration/helm/test_values.py::test_mistakes_are_refused[a contact]",
    "tests/integration/helm/test_values.py::test_settings_of_a_service_are_values",
    "tests/unit/api/auth/test_access_matrix.py::test_every_route_has_its_row",
    "tests/unit/api/http/test_asyncapi.py",
    "tests/unit/api/http/test_openapi.py::test_every_property_says_what_it_means",
    "tests/unit/api/web/test_web_page.py",
    "tests/unit/ops/doctor/test_rights.py",
    "tests/unit/runtime/test_telemetry.py",
    "tests/unit/scheduler/plan/test_filters.py::test_names_are_unique_and_static_filters_come_first",
    "tests/unit/scheduler/plan/test_scores.py::test_scores_stay_within_0_and_100",
    "tests/unit/test_secret_inputs.py",
    "tests/unit/tools/test_docs_pictures.py",
)
TESTED = [title for title, edits in ADDITIONS.items() if edits[-1].path.startswith("tests/unit/")]
SERVED = "tests/unit/api/test_about_is_served.py"
SERVED_TEST = '''"""The new page, as the API serves it."""

from slipway.api.web import assets
from tests.support.api_world import ApiWorld


async def test_the_frame_and_the_module_are_served(world: ApiWorld) -> None:
    """The frame at the address of the page, the module among the files of the page."""
    answer = await world.http.get("/about")
    assert (answer.status_code, '<div id="app">' in answer.text) == (200, True)
    module = await world.http.get(f"/assets/pages/{assets.pages_digest()}/about.js")
    assert (module.status_code, "export function About" in module.text) == (200, True)
'''
PROGRAM = """
import runpy, sys
for line in sys.stdin.read().splitlines():
    name, *arguments = line.split()
    sys.argv = [name, *arguments]
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            sys.exit(f"{line}: {end.code}")
"""
"""Runs modules one after another in one process, because importing takes most of the time of each."""


class FollowedLists(msgspec.Struct, frozen=True):
    """The copy in which every list was followed, and `{test: what went wrong}` of the tests that ran there."""

    folder: Path
    outcomes: dict[str, str]

    def of(self, path: str) -> dict[str, str]:
        """The outcomes of the tests in one file or folder."""
        name = path.partition("::")[0].removesuffix(".py").replace("/", ".")
        return {test: said for test, said in self.outcomes.items() if f"{test}.".startswith(f"{name}.")}


def run_there(folder: Path, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python in the copy. The installed product is not importable there: all of it comes from the copy."""
    installed = str(Path(pytest.__file__).parents[1])
    roots = [str(folder / root) for root in SOURCE_ROOTS]
    # Variables that describe this run, or mark it as one of several workers, are not for the run that it starts.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHONSAFEPATH"))}
    env["PYTHONPATH"] = os.pathsep.join([*roots, str(folder), installed])
    argv = [sys.executable, "-S", *words]
    return subprocess.run(
        argv, cwd=folder, env=env, input=given, capture_output=True, text=True, timeout=300, check=False
    )


def make(edit: HandEdit, folder: Path) -> None:
    """Do one hand edit."""
    path = folder / edit.path
    if edit.text:
        assert not path.exists(), f"{edit.path} is there already"
        path.write_text(edit.text, encoding="utf-8")
        return
    text = path.read_text("utf-8")
    for before, after in edit.changes:
        assert text.count(before) == 1, f"{edit.path} has not exactly one {before!r}"
        text = text.replace(before, after)
    path.write_text(text, encoding="utf-8")


def generators() -> list[str]:
    """What `make generate` runs, as the Makefile has it: a module and its arguments each."""
    recipe = re.search(r"^generate:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert recipe is not None
    return re.findall(r"python -m (.+)$", recipe[1], re.MULTILINE)


def tried(folder: Path, paths: list[str]) -> dict[str, str]:
    """Run tests of the copy and return `{test: what went wrong, or nothing}`."""
    report = folder / "report.xml"
    options = ("-q", "-n0", "-p", "no:cacheprovider", f"--junit-xml={report}")
    done = run_there(folder, "-m", "pytest", *paths, *options)
    assert report.exists(), done.stdout + done.stderr
    outcomes: dict[str, str] = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        faults = [str(each.text) for each in case if each.tag in ("failure", "error")]
        outcomes[f"{case.get('classname')}.{case.get('name')}"] = "\n".join(faults)
    assert outcomes, done.stdout + done.stderr
    return outcomes


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> FollowedLists:
    """Follow every list, write the generated files and run the tests."""
    folder = tmp_path_factory.mktemp("newcomer") / "slipway"
    folder.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            # Copy compiled modules too: to compile them again would take longer than the rest. A file that another
            # process is just writing (`*.pyc.NUMBER`) may disappear in a moment.
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("*.pyc.*"))
        else:
            shutil.copy2(source, folder / name)
    edits = [edit for list_ in ADDITIONS.values() for edit in list_]
    for edit in edits:
        make(edit, folder)
    done = run_there(folder, "-c", PROGRAM, given="\n".join(generators()))
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / SERVED).write_text(SERVED_TEST, encoding="utf-8")
    own = [edit.path for edit in edits if edit.path.startswith("tests/unit/")]
    return FollowedLists(folder, tried(folder, [*own, SERVED, *HOUSE_CHECKS]))


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("list_", LISTS.values(), ids=lambda each: each.title)
def test_each_checklist_has_at_most_four_manual_edits(list_: Checklist) -> None:
    """The steps of a list are numbered from one, and each begins with the one file that it edits."""
    assert [step.number for step in list_.steps] == list(range(1, len(list_.steps) + 1))
    assert 1 <= len(list_.steps) <= EDITS_MAX
    assert all(step.path for step in list_.steps)


@pytest.mark.parametrize("list_", LISTS.values(), ids=lambda each: each.title)
def test_each_step_leads_to_a_file_that_is_there(list_: Checklist) -> None:
    """Each step names a file that exists, or the folder in which the reader chooses the rest of the path."""
    assert [step.path for step in list_.steps if not (ROOT / step.fixed_part()).exists()] == []


@pytest.mark.parametrize("title", ADDITIONS)
def test_the_page_names_the_files_that_are_edited(title: str) -> None:
    """A list names the edited files in the order of its steps, one file for each step, and no other file."""
    edited = [edit.path for edit in ADDITIONS[title]]
    assert LISTS[title].is_followed_by(edited)
    assert not LISTS[title].is_followed_by([*edited, "README.md"])
    assert not LISTS[title].is_followed_by(edited[1:])


# --- the result -------------------------------------------------------------------------------------------------------


@pytest.mark.costly
@pytest.mark.parametrize("title", TESTED)
def test_what_was_added_does_what_its_test_says(followed: FollowedLists, title: str) -> None:
    """The last step of a list is a test: it passes, and it would not pass without the other steps."""
    found = followed.of(ADDITIONS[title][-1].path)
    assert found
    assert {test: fault for test, fault in found.items() if fault} == {}


@pytest.mark.costly
@pytest.mark.parametrize("title", GENERATED)
def test_generated_files_have_what_was_added(followed: FollowedLists, title: str) -> None:
    """`make generate` writes the addition where readers and the API server look for it; it is in none of these files
    before."""
    for path, pattern in GENERATED[title]:
        assert re.search(pattern, (followed.folder / path).read_text("utf-8")), path
        assert not re.search(pattern, (ROOT / path).read_text("utf-8")), path


@pytest.mark.costly
def test_the_page_is_served_and_in_the_navigation(followed: FollowedLists) -> None:
    """The API serves its frame and its module; the frame has a page and a link for the address."""
    assert list(followed.of(SERVED).values()) == [""]
    main = (followed.folder / "services/api/slipway/api/pages/main.js").read_text("utf-8")
    tables = dict(re.findall(r"^const (PAGES|OTHERS) = [\[{]\n(.*?)^[\]}];", main, re.DOTALL | re.MULTILINE))
    assert re.search(r'^  "/about": \[About,', tables["PAGES"], re.MULTILINE)
    assert re.search(r'^  \{ href: "/about", text: "About", key: "(\w)"', tables["OTHERS"], re.MULTILINE)
    assert len(set(re.findall(r'key: "(\w)"', main))) == main.count(' key: "'), "two pages have the same key"


@pytest.mark.costly
def test_the_chart_gives_the_setting_to_the_service(followed: FollowedLists) -> None:
    """The value becomes the variable that the service reads."""
    code = (
        "import json; from tests.support import chart; "
        "values = {'api': {'settings': {'searchCharactersMax': 7}}}; "
        "print(json.dumps(chart.service_environment(chart.render(values), 'api')))"
    )
    done = run_there(followed.folder, "-c", code)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["SLIPWAY_SEARCH_CHARACTERS_MAX"] == "7"


@pytest.mark.costly
@pytest.mark.parametrize("path", HOUSE_CHECKS)
def test_the_tests_that_know_every_entry_pass(followed: FollowedLists, path: str) -> None:
    """The rules of the house pass, and so do the tests that compare a registry with its page, its twin or its
    schema."""
    found = followed.of(path)
    assert found
    assert {test: fault for test, fault in found.items() if fault} == {}


@pytest.mark.costly
def test_the_import_contracts_hold(followed: FollowedLists) -> None:
    """No list leads to an import that a contract forbids."""
    done = run_there(
        followed.folder, "-c", "from importlinter.cli import lint_imports_command as run; run(['--no-cache'])"
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"Contracts: \d+ kept, 0 broken", done.stdout)


@pytest.mark.costly
def test_what_was_written_is_in_the_style_of_the_house(followed: FollowedLists) -> None:
    """Added files are formatted, and the linter has no finding."""
    paths = [edit.path for edits in ADDITIONS.values() for edit in edits if edit.path.endswith(".py")]
    for words in ("check --no-cache", "format --check --no-cache"):
        done = run_there(followed.folder, "-m", "ruff", *shlex.split(words), *dict.fromkeys(paths))
        assert done.returncode == 0, done.stdout + done.stderr
