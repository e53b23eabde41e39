"""The rules of the house, checked by a program: sizes, names, folders, settings, keys, generated files, links.

Rules that ruff, pyright or import-linter can check are in pyproject.toml, not here. A pinned exception may only shrink;
once it obeys the rule, its pin must be removed.
"""

import ast
import re
import sys
from collections.abc import Container, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from slipway.crd.schema import crd_files
from slipway.runtime.settings import SettingRow, all_settings, describe
from slipway.streams import keys
from tools import chart_schema
from tools.generate import reference_files, stale_files
from tools.reference import pod_rules

ROOT = Path(__file__).parent.parent
SOURCE_ROOTS = ("shared", "local", "services/api", "services/scheduler", "services/podworker", "services/watcher")
PRODUCT, ALL_CODE = ("shared", "local", "services"), ("shared", "local", "services", "tests", "tools", "bench", "image")
FUNCTION_LINES_MAX = 70
POSITIONAL_MAX = 5
ADR_LINES_MAX = 60
SENTENCE_WORDS_MIN = 4

POSITIONAL_PINNED = {
    "services/podworker/slipway/podworker/main.py:make_poller": 6,
    "shared/slipway/crd/resolve.py:_template": 6,
    "shared/slipway/kube/rest.py:_send": 6,
    "local/slipway/local/apiserver/answers.py:written": 6,
    "local/slipway/local/apiserver/structural.py:_count": 6,
}
EMPTY_NAMES = re.compile(r"(?:^|_)(?:utils?|helpers?|common|misc|managers?|handlers?|processors?|infos?)(?:_|$)")
SAME_IN_EACH_PART = {
    "Client": "the client of the API: the SDK's, and the one inside a pod, which needs the standard library only",
    "Kube": "the port of a part: the calls to Kubernetes that it makes",
    "Settings": "what an operator may set of one process",
}
"""{name of several public classes: why they share it}"""
EMPTY_CLASSES = re.compile(r"(?:Manager|Helpers?|Utils?|Info|Handler)$")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def _folder(folder: str) -> dict[str, ast.Module]:
    paths = sorted((ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8")) for path in paths}


def _modules(*folders: str) -> dict[str, ast.Module]:
    return {name: module for folder in folders for name, module in _folder(folder).items()}


@cache
def _nodes(folder: str) -> list[tuple[str, Function | ast.ClassDef | ast.Call]]:
    """The nodes that the rules look at, collected once, because walking a tree takes most of the time here."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Call)
    return [
        (name, node) for name, module in _folder(folder).items() for node in ast.walk(module) if isinstance(node, kinds)
    ]


@cache
def _texts() -> dict[str, str]:
    """`{path: text}` of every file that is kept in the repository."""
    folders = (*ALL_CODE, "docs", "helm", "requirements", ".ci")
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
    paths += [path for path in sorted(ROOT.iterdir()) if path.is_file()]
    texts: dict[str, str] = {}
    for path in paths:
        if "__pycache__" not in path.parts:
            texts[path.relative_to(ROOT).as_posix()] = path.read_text("utf-8", errors="replace")
    return texts


def _functions(*folders: str) -> Iterator[tuple[str, Function]]:
    for folder in folders:
        for name, node in _nodes(folder):
            if isinstance(node, Function):
                yield f"{name}:{node.name}", node


def _is_sleep(called: ast.expr) -> bool:
    return isinstance(called, ast.Attribute) and called.attr == "sleep" and ast.unparse(called) == "asyncio.sleep"


def _dotted(path: str) -> str:
    """The module's dotted name: its path below the source root."""
    return path[path.index("slipway/") :].removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported(importer: str, module: ast.Module, among: Container[str]) -> Iterator[str]:
    """The modules that run for the imports at the top of a module: those modules, and the packages that Python
    enters for them."""
    for node in module.body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        base = f"{node.module}." if isinstance(node, ast.ImportFrom) and node.module else ""
        for alias in node.names:
            parts = (base + alias.name).split(".")
            for name in (".".join(parts[:count]) for count in range(1, len(parts) + 1)):
                if name in among and not f"{importer}.".startswith(f"{name}."):
                    yield name


def _markdown() -> dict[str, str]:
    return {name: text for name, text in _texts().items() if name.endswith(".md")}


# --- size and shape ---------------------------------------------------------------------------------------------------


def test_functions_stay_small() -> None:
    """No function is longer than seventy lines, its docstring included."""
    lengths = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in _functions(*ALL_CODE)}
    assert {name: length for name, length in lengths.items() if length > FUNCTION_LINES_MAX} == {}


def test_positional_arguments_are_few() -> None:
    """A function has at most five positional arguments; more of them are keyword-only, or a struct."""
    found: dict[str, int] = {}
    for name, node in _functions(*PRODUCT):
        names = [one.arg for one in (*node.args.posonlyargs, *node.args.args) if one.arg not in ("self", "cls")]
        if len(names) > POSITIONAL_MAX:
            found[name] = len(names)
    assert found == POSITIONAL_PINNED


def test_every_module_says_what_it_owns() -> None:
    """A module begins with a docstring."""
    assert [name for name, module in _modules(*ALL_CODE).items() if not ast.get_docstring(module)] == []


def test_every_test_states_its_rule() -> None:
    """A test states its rule: in its docstring, or in a name that is a sentence."""
    tests = [(name, node) for name, node in _functions("tests") if node.name.startswith("test_")]
    bare = [(name, node) for name, node in tests if not ast.get_docstring(node)]
    assert [name for name, node in bare if len(node.name.split("_")) <= SENTENCE_WORDS_MIN] == []


def test_real_control_planes_start_only_on_request() -> None:
    """`make test` builds nothing from Go, because a build takes longer than any test may."""
    starts = re.compile(r"\b(?:running_cluster|a_referee|differ)\(")
    files = [name for name in _modules("tests/conformance") if Path(name).name.startswith(("test_", "conftest"))]
    starting = [name for name in files if starts.search(_texts()[name])]
    assert len(starting) >= 5
    assert [name for name in starting if "require_own_cluster()" not in _texts()[name]] == []


def test_names_are_descriptive() -> None:
    """No module is a catch-all, and no class has a name that would fit any class."""
    modules = [name for name in _modules(*PRODUCT) if EMPTY_NAMES.search(Path(name).stem)]
    classes = [
        f"{name}:{node.name}"
        for folder in PRODUCT
        for name, node in _nodes(folder)
        if isinstance(node, ast.ClassDef) and EMPTY_CLASSES.search(node.name)
    ]
    assert modules + classes == []


def test_a_public_class_has_a_name_of_its_own() -> None:
    """A public class name is unique in the product, except where a reason is listed; each listed reason is still
    needed."""
    where: dict[str, list[str]] = {}
    for folder in PRODUCT:
        for path, module in _modules(folder).items():
            for node in module.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    where.setdefault(node.name, []).append(path)
    assert {name: paths for name, paths in where.items() if len(paths) > 1 and name not in SAME_IN_EACH_PART} == {}
    assert [name for name in SAME_IN_EACH_PART if len(where.get(name, ())) < 2] == []


def test_the_package_is_a_namespace() -> None:
    """No source root has a `slipway/__init__.py`: it would hide the other portions of the package."""
    assert [root for root in SOURCE_ROOTS if (ROOT / root / "slipway" / "__init__.py").exists()] == []


# --- what may be used where (import contracts check the rest) -------------------------------------------------------


def test_imports_have_no_cycle() -> None:
    """Any module can be imported first: none needs, directly or indirectly, that another one is imported already."""
    modules = {_dotted(name): module for name, module in _modules(*PRODUCT).items()}
    graph = {name: set(_imported(name, module, modules)) for name, module in modules.items()}
    TopologicalSorter(graph).prepare()


def test_kubernetes_is_known_to_one_module() -> None:
    """Only `kube/client.py` names the library, which it loads by name, unseen by the import contracts."""
    pattern = re.compile(r"""^\s*(?:import|from) kubernetes\b|import_module\(\s*f?["']kubernetes""", re.MULTILINE)
    found = [name for name in _modules(*PRODUCT) if pattern.search(_texts()[name])]
    assert found == ["shared/slipway/kube/client.py"]


def test_services_wait_on_the_injected_clock() -> None:
    """`asyncio.sleep` may only yield to other tasks: a wait uses the injected clock, so that the simulation can run
    it."""
    allowed = (
        "shared/slipway/runtime/clock.py",
        "local/slipway/local/",
        "shared/slipway/cli/",
        "shared/slipway/inside/",
        "shared/slipway/sdk/",
        "shared/slipway/adapters/",
    )
    found = [
        f"{name}:{node.lineno}"
        for folder in PRODUCT
        for name, node in _nodes(folder)
        if isinstance(node, ast.Call) and not name.startswith(allowed) and _is_sleep(node.func)
        if ast.unparse(node) != "asyncio.sleep(0)"
    ]
    assert found == []


def test_groups_of_tasks_lose_no_cancellation() -> None:
    """The product uses `slipway.runtime.tasks.TaskGroup`: asyncio's loses a cancellation when a task fails."""
    allowed = ("shared/slipway/runtime/tasks.py", "shared/slipway/cli/", "services/watcher/slipway/watcher/podlogs.py")
    found = [
        f"{name}:{node.lineno}"
        for folder in PRODUCT
        for name, node in _nodes(folder)
        if isinstance(node, ast.Attribute) and not name.startswith(allowed)
        if ast.unparse(node) == "asyncio.TaskGroup"
    ]
    assert found == []


def test_what_runs_inside_a_pod_needs_no_library() -> None:
    """`slipway.inside` imports only the standard library and itself: a rank may copy the folder into any image."""
    found = [
        f"{name}: {imported}"
        for name, module in _modules("shared/slipway/inside").items()
        for node in ast.walk(module)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for imported in ([one.name for one in node.names] if isinstance(node, ast.Import) else [node.module or ""])
        if imported.split(".")[0] not in sys.stdlib_module_names and not imported.startswith("slipway.inside")
    ]
    assert found == []


def test_no_mocks() -> None:
    """Tests use our own fakes behind ports, and real servers."""
    pattern = re.compile(r"^\s*(?:from|import) (?:unittest\.)?mock\b|from unittest import mock", re.MULTILINE)
    here = Path(__file__).relative_to(ROOT).as_posix()
    assert [name for name in _modules("tests") if pattern.search(_texts()[name]) and name != here] == []


# --- settings, keys, generated files ---------------------------------------------------------------------------------


def _settings() -> list[tuple[str, SettingRow]]:
    return [(name, row) for name, struct in all_settings().items() for row in describe(struct)]


@pytest.mark.parametrize(("owner", "row"), _settings(), ids=lambda part: getattr(part, "variable", ""))
def test_settings_are_documented(owner: str, row: SettingRow) -> None:
    """A setting has a description; a number has bounds, a time has its unit in its name, and a secret has no
    default."""
    assert row.description, owner
    if row.type in ("int", "float"):
        assert row.bounds, owner
    if row.unit == "seconds":
        assert row.field.endswith("_s"), owner
    if row.secret:
        assert not row.default, owner


def test_every_key_is_bounded() -> None:
    """A family of Redis keys has a cap, a life time, or a group whose acknowledgements trim it, and a name with our
    prefix."""
    for family in keys.TABLE:
        assert family.length_max or family.ttl_s or (family.group and keys.WORK_BACKLOG_MAX), family.prefix
        assert family.prefix.startswith("slipway:")


def test_keys_are_named_in_one_place() -> None:
    """No other module spells a Redis key, except the demo, which reads one as any integration would."""
    pattern = re.compile("|".join(re.escape(f'"{family.prefix}') for family in keys.TABLE))
    found = [name for name in _modules(*PRODUCT) if pattern.search(_texts()[name]) and "/cli/demo/" not in name]
    assert found == ["shared/slipway/streams/keys.py"]


def test_generated_files_are_what_the_code_says() -> None:
    """`make generate` has been run: the CRDs and reference pages match this code."""
    stale = stale_files(ROOT / "helm" / "files" / "crds", crd_files()) + stale_files(
        ROOT / "docs" / "reference", reference_files()
    )
    if (ROOT / "helm" / "values.schema.json").read_text("utf-8") != chart_schema.text():
        stale.append("values.schema.json")
    for name, text in pod_rules.policy_files().items():
        path = ROOT / "helm" / "files" / "policies" / name
        if not path.exists() or path.read_text("utf-8") != text:
            stale.append(name)
    assert stale == [], "run make generate"


# --- dependencies -----------------------------------------------------------------------------------------------------


def test_no_file_names_a_package_registry() -> None:
    """The machine configures where packages come from, so that any mirror works."""
    hosts = (
        "pypi." + "org",
        "python" + "hosted",
        "npm" + "js.",
        "ghcr" + ".io",
        "quay" + ".io",
        "docker" + ".io",
        "gcr" + ".io",
    )
    pattern = re.compile("|".join(re.escape(host) for host in hosts))
    assert [name for name, text in _texts().items() if pattern.search(text)] == []


@pytest.mark.parametrize("name", ["bootstrap", "runtime", "dev"])
def test_requirements_are_locked(name: str) -> None:
    """Every requirement has one version and at least one hash."""
    text = re.sub(r"\\\n\s*", " ", _texts()[f"requirements/{name}.txt"])
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert lines
    assert [line[:60] for line in lines if not re.match(r"[\w.\-\[\]]+==\S+ .*--hash=sha256:[0-9a-f]{64}", line)] == []


# --- docs -------------------------------------------------------------------------------------------------------------


def test_links_between_pages_hold() -> None:
    """A relative link in a Markdown page leads to a file."""
    broken = [
        f"{name}: {target}"
        for name, text in _markdown().items()
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", re.sub(r"`[^`\n]*`", "", text))
        if not re.match(r"[a-z]+:", target) and not (ROOT / name).parent.joinpath(target).exists()
    ]
    assert broken == []


def test_paths_in_pages_exist() -> None:
    """A path of ours that a page names (`shared/...`, `services/...`, `tests/...`) exists."""
    pattern = re.compile(r"`((?:shared|local|services|tests|tools|helm|docs|bench|requirements)/[\w./-]+)`")
    pages = {name: text for name, text in _markdown().items() if not name.startswith("docs/adr/")}
    missing = [
        f"{name}: {path}"
        for name, text in pages.items()
        for path in pattern.findall(text)
        if not (ROOT / path).exists()
    ]
    assert missing == []


def test_every_package_is_on_the_code_map() -> None:
    """ARCHITECTURE.md names every folder that holds modules."""
    folders = {name.rpartition("/")[0] for name in _modules(*PRODUCT)} - {"shared/slipway"}
    text = _texts()["ARCHITECTURE.md"]
    assert sorted(folder for folder in folders if f"`{folder}" not in text) == []


def test_decisions_are_numbered_and_short() -> None:
    """An architecture decision is one page; the numbers have no gap; each has a context, a decision and
    consequences."""
    pages = sorted(name for name in _markdown() if re.match(r"docs/adr/\d{4}-", name))
    assert [int(name.split("/")[-1][:4]) for name in pages] == list(range(1, len(pages) + 1))
    for name in pages:
        text = _texts()[name]
        assert len(text.splitlines()) <= ADR_LINES_MAX, name
        assert re.findall(r"^## (\w+)", text, re.MULTILINE) == ["Context", "Decision", "Consequences"], name


def test_verbs_are_explained() -> None:
    """CONTRIBUTING.md names every verb of the Makefile."""
    verbs = re.findall(r"^([a-z-]+):.*## ", _texts()["Makefile"], re.MULTILINE)
    text = _texts()["CONTRIBUTING.md"]
    assert [verb for verb in verbs if f"`make {verb}" not in text] == []
