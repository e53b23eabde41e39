"""The checks of a release, without making one: the locks, licences, changelog, VEX statements, versions."""

import re
import tomllib
from importlib.metadata import version as installed
from pathlib import Path

import pytest
import yaml

from slipway.api.app import ENDPOINTS
from slipway.api.http.openapi import document
from slipway.runtime.service import version as served
from tools.release import licences, lockfile, sbom, vex
from tools.release import version as versions
from tools.release.__main__ import ReleaseError, changes

ROOT = Path(__file__).parents[3]
HASH = f"--hash=sha256:{'0' * 64}"
STATEMENT = '[[statement]]\nid = "CVE-1"\npackage = "httpx2"\nstate = "{state}"\ndetail = "{detail}"\n'
BILL = {
    "serialNumber": "urn:uuid:6f2d6b0e-6f0c-5a59-9d0e-3d7d3a0b8c11",
    "version": 1,
    "components": [{"name": "httpx2", "bom-ref": "pkg:pypi/httpx2@1"}],
}


def test_one_version_everywhere() -> None:
    """The package, the chart, the image, the OpenAPI document: all have the version of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    chart = yaml.safe_load((ROOT / "helm/Chart.yaml").read_text("utf-8"))
    default = re.search(r"^ARG VERSION=(\S+)$", (ROOT / "image/Dockerfile").read_text("utf-8"), re.M)
    assert default is not None
    said = {versions.version(), installed("slipway-ai"), chart["version"], chart["appVersion"], default[1], served()}
    assert said == {project}
    assert document(ENDPOINTS, served())["info"]["version"] == project


def test_a_version_is_written_where_a_file_must_have_it() -> None:
    """A version is written into both version fields of a chart and nowhere else; a file without such a field is
    refused."""
    text = 'version: 0.1.0\nappVersion: 0.1.0\nkubeVersion: ">=1.31.0-0"\n'
    pattern = versions.PLACES["helm/Chart.yaml"]
    assert versions.written(text, pattern, "2.0.0") == text.replace(": 0.1.0", ": 2.0.0")
    with pytest.raises(LookupError):
        versions.written("name: x\n", pattern, "2.0.0")


# --- locks ------------------------------------------------------------------------------------------------------------


def test_our_locks_keep_the_rules() -> None:
    """Our locks pass the checks of `make check`, licences included."""
    assert lockfile.main([]) == 0


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (f"a>=1 {HASH}", "not one version"),
        (f"a==1.* {HASH}", "not one version"),
        ("a==1", "no sha256 hash"),
        ("a==1 --hash=md5:00", "not one version"),
        (f"a @ https://host/a-1.whl {HASH}", "of the index"),
        (f"git+https://host/a {HASH}", "of the index"),
        ("--index-url https://host/simple", "sets an option"),
        ("-e .", "sets an option"),
        (f"a==1 {HASH}\nA==2 {HASH}", "named twice"),
    ],
)
def test_a_lock_names_packages_of_the_index_by_hash(line: str, word: str) -> None:
    """A lock names each package of the index by one version and its hashes, and no other source."""
    (problem,) = lockfile.problems("some.txt", line)
    assert problem.startswith("some.txt: ")
    assert word in problem


def test_a_lock_is_read_with_its_hashes_and_markers() -> None:
    """Comments and continued lines as uv writes them; two versions for two platforms are no conflict."""
    first_lines = f"# top\nA_b==1 ; sys_platform == 'x' \\\n    {HASH} \\\n    {HASH}\n    # via c\n"
    text = f"{first_lines}a-b==2 ; sys_platform != 'x' {HASH}"
    assert lockfile.problems("some.txt", text) == []
    first, second = lockfile.read(text)
    assert (first.name, first.version, len(first.hashes), first.marker) == ("a-b", "1", 2, "sys_platform == 'x'")
    assert (second.name, second.version) == ("a-b", "2")


def test_what_is_shipped_is_installed_as_it_is_locked() -> None:
    """Shipped packages are installed in their locked version, because another one could have another licence; a package
    for other platforms needs a licence in the table."""
    (problem,) = lockfile.problems("runtime.txt", f"msgspec==0.0.1 {HASH}", is_shipped=True)
    assert "0.0.1 is locked" in problem
    (problem,) = lockfile.problems("runtime.txt", f"not-there==1 ; sys_platform == 'beos' {HASH}", is_shipped=True)
    assert "ELSEWHERE" in problem


# --- licences ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "is_allowed"),
    [
        ("MIT", True),
        ("Apache-2.0 OR GPL-3.0-only", True),
        ("Apache-2.0 AND MIT", True),
        ("Apache-2.0 AND GPL-3.0-only", False),
        ("GPL-3.0-only", False),
        ("(MIT AND GPL-3.0-only) OR GPL-3.0-only", False),
        ("Proprietary", False),
    ],
)
def test_which_licences_may_be_shipped(expression: str, *, is_allowed: bool) -> None:
    """A licence may be shipped when all parts joined by AND, or one joined by OR, are allowed; an unreadable one is
    refused."""
    assert licences.is_allowed(expression) is is_allowed


def test_a_package_without_a_licence_is_refused_by_name() -> None:
    """A package without a licence, or with one outside of the list, is refused by name; licences of the system's
    libraries are not allowed for packages."""
    assert "a names no licence" in licences.problem("a", "")
    assert "a has the licence 'GPL-3.0-only'" in licences.problem("a", "GPL-3.0-only")
    assert licences.problem("libc6", licences.SYSTEM["libc6"], licences.ALLOWED_OF_SYSTEM) == ""
    assert licences.problem("a", licences.SYSTEM["libc6"])


# --- notes and statements ---------------------------------------------------------------------------------------------


def test_the_notes_have_the_section_of_the_version() -> None:
    """The notes are the section of the version, or of Unreleased while the version has none; without both the error
    names both."""
    text = "# Changelog\n\n## [Unreleased]\n\n- new\n\n## [0.1.0] - 2026-01-01\n\n- old\n"
    assert changes(text, "0.1.0") == "- old"
    assert changes(text, "0.2.0") == "- new"
    with pytest.raises(ReleaseError, match=r"\[0.2.0\] and no section \[Unreleased\]"):
        changes("# Changelog\n", "0.2.0")


def test_a_vex_statement_is_about_a_component_of_an_sbom() -> None:
    """A statement refers to the bill and a component in it; one about a package that is no longer shipped is
    refused."""
    (stated,) = vex.read(STATEMENT.format(state="in_triage", detail="We look."))
    made = vex.document([stated], [BILL], epoch_s=0)
    (said,) = made["vulnerabilities"]
    assert said["affects"] == [{"ref": "urn:cdx:6f2d6b0e-6f0c-5a59-9d0e-3d7d3a0b8c11/1#pkg%3Apypi%2Fhttpx2%401"}]
    assert said["analysis"] == {"state": "in_triage", "detail": "We look."}
    with pytest.raises(vex.VexError, match="no package 'httpx2'"):
        vex.document([stated], [{**BILL, "components": []}], epoch_s=0)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (STATEMENT.format(state="not_affected", detail="x"), "justification"),
        (STATEMENT.format(state="resolved", detail=" "), "must say why"),
        (STATEMENT.format(state="fine", detail="x"), "fine"),
        (STATEMENT.format(state="resolved", detail="x") + 'more = "x"\n', "more"),
        ("[[statement", "vex.toml"),
    ],
)
def test_an_incomplete_vex_statement_is_refused(text: str, word: str) -> None:
    """An incomplete statement is refused with the wrong field."""
    with pytest.raises(vex.VexError, match=word):
        vex.read(text)


def test_every_script_that_pages_load_is_in_the_sbom() -> None:
    """The bill contains every vendored script, from the tables beside the files, with an allowed licence; a scoped name
    is quoted in its URL."""
    found = {part.name: part for part in sbom.vendored(ROOT / "services/api/slipway/api")}
    assert {"preact", "htm", "uplot", "js-yaml", "@tanstack/virtual-core", "@xterm/xterm"} <= found.keys()
    assert found["@xterm/xterm"].purl == f"pkg:npm/%40xterm/xterm@{found['@xterm/xterm'].version}"
    assert {part.licence for part in found.values()} <= licences.ALLOWED


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("| `other-1.0.0.js` | `other 1.0.0` |", "does not name: some-1.0.0.js"),
        ("| `some-1.0.0.js` | `some 1.0.0` |", "the licence of some is not in"),
    ],
)
def test_a_script_that_nobody_has_read_is_not_released(tmp_path: Path, row: str, words: str) -> None:
    """A script in no table, or a package with an unknown licence, is not released."""
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "some-1.0.0.js").write_text("")
    (tmp_path / "vendor" / "README.md").write_text(f"{row}\n")
    with pytest.raises(sbom.UnknownPartError, match=words):
        sbom.vendored(tmp_path)
