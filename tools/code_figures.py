"""`python -m tools.code_figures`: prints the size of the code base, and how much of it one launch runs.

Owns these figures: files and their lines, the code that one launch of one rank runs, the layers of the import graph,
and names that are used more than once. It judges nothing.
"""

import ast
import asyncio
import contextlib
import io
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import grimp
import httpx2
import msgspec

from slipway.model.lifecycle import Phase
from tests.support.kubelet import Script
from tests.support.world import Setup, World, run_world

ROOT = Path(__file__).parents[1]
SOURCES = ("shared", "local", "services")
WARM_S, TAIL_S, RUNS_S = 20.0, 10.0, 5.0
"""Seconds before the launch, after its end, and of its rank's run, in virtual time."""
SHOWN_MAX = 12
LAUNCH = {"kind": "command", "image": "python:3.11", "command": ["true"]}


class CodeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures. A file is a module with code; a module that contains only a docstring is not counted."""

    files: int
    lines: int
    median_lines: float
    p90_lines: float
    launch_files: int
    """files of which one launch of one rank runs a function, from its request until some seconds after its end"""
    launch_functions: int
    floors: Mapping[str, int]
    """{package: number of modules in its longest chain of imports}"""
    modules_twice: Mapping[str, int]
    """{module name: number of modules with that name}, for names with several modules"""
    classes_twice: Mapping[str, int]
    """{public class name: number of classes with that name}, for names with several classes"""


def measure() -> CodeFigures:
    """Measure this checkout."""
    files = {path: path.read_text("utf-8") for path in sources()}
    lengths = sorted(len(text.splitlines()) for text in files.values())
    ran = launched()
    return CodeFigures(
        files=len(files),
        lines=sum(lengths),
        median_lines=statistics.median(lengths),
        p90_lines=statistics.quantiles(lengths, n=10)[-1],
        launch_files=len({file for file, _, _ in ran}),
        launch_functions=len(ran),
        floors=floors(),
        modules_twice=_twice(path.stem for path in files if path.stem not in ("__init__", "__main__")),
        classes_twice=_twice(name for text in files.values() for name in public_classes(text)),
    )


def sources() -> list[Path]:
    """Return every module with code, sorted."""
    found = (path for source in SOURCES for path in (ROOT / source).rglob("*.py"))
    return sorted(path for path in found if _has_code(path.read_text("utf-8")))


def public_classes(text: str) -> Iterator[str]:
    """Yield the names of the public classes at the top level of a module."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def launched() -> list[tuple[str, str, int]]:
    """Return (file, function, first line) of our code that runs during one launch of one rank, until its end, in the
    order of the first call."""
    ran: dict[tuple[str, str, int], None] = {}
    prefixes = tuple(str(ROOT / source) for source in SOURCES)

    def seen(frame: FrameType, event: str, _arg: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(prefixes):
            ran[code.co_filename, code.co_qualname, code.co_firstlineno] = None

    async def play(world: World) -> None:
        world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
        await asyncio.sleep(WARM_S)
        sys.setprofile(seen)
        try:
            _, app = world.apps["api"]
            async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as client:
                answer = await client.post("/api/v1/allocations", json=LAUNCH)
                if answer.status_code != 201:
                    raise RuntimeError(f"the launch was refused: {answer.text}")
            await world.until(lambda: _has_ended(world))
            await asyncio.sleep(TAIL_S)
        finally:
            sys.setprofile(None)

    with contextlib.redirect_stderr(io.StringIO()):  # the api warns that it authenticates no caller
        run_world(play, Setup(nodes=2, cpus=64, replicas={"api": 1}), seed=1)
    local = str(ROOT / "local")
    return [item for item in ran if not item[0].startswith(local)]


async def _has_ended(world: World) -> bool:
    records = world.core.store.scan("allocations.slipway.dev")
    return {record.obj.get("status", {}).get("phase") for record in records} == {Phase.TERMINATED.value}


def floors() -> dict[str, int]:
    """Return {package below slipway: number of modules in its longest import chain}; a cycle counts as one module."""
    graph = grimp.build_graph("slipway", include_external_packages=False, cache_dir=None)
    packages: dict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        if module.count(".") > 1:
            packages[module.split(".")[1]].add(module)
    return {
        name: longest_chain({each: graph.find_modules_directly_imported_by(each) & modules for each in modules})
        for name, modules in sorted(packages.items())
    }


def longest_chain(below: Mapping[str, set[str]]) -> int:
    """Return the number of modules in the longest chain of imports; a cycle counts as one module.

    `below` is {module: the modules that it imports}.
    """
    reached = {module: _reach(below, module) for module in below}
    depth: dict[frozenset[str], int] = {}

    def of(module: str) -> int:
        circle = frozenset({module, *(other for other in reached[module] if module in reached[other])})
        if circle not in depth:
            depth[circle] = 1 + max((of(other) for each in circle for other in below[each] - circle), default=0)
        return depth[circle]

    return max(map(of, below))


def _reach(below: Mapping[str, set[str]], module: str) -> set[str]:
    """Return all modules that a module imports, directly or indirectly."""
    found: set[str] = set()
    todo = [module]
    while todo:
        fresh = below[todo.pop()] - found
        found |= fresh
        todo.extend(fresh)
    return found


def _has_code(text: str) -> bool:
    return any(
        not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in ast.parse(text).body
    )


def _twice(names: Iterable[str]) -> dict[str, int]:
    return {name: count for name, count in Counter(names).most_common() if count > 1}


def _listed(counts: Mapping[str, int]) -> str:
    shown = ", ".join(f"{name} {count}" for name, count in list(counts.items())[:SHOWN_MAX])
    return f"{len(counts)} names, {sum(counts.values())} in all: {shown}{', ...' if len(counts) > SHOWN_MAX else ''}"


def main() -> None:
    """Print the figures."""
    figures = measure()
    for line in (
        f"source files               {figures.files}, {figures.lines} lines",
        f"lines of a file            median {figures.median_lines:g}, p90 {figures.p90_lines:g}",
        f"one launch of one rank     {figures.launch_functions} functions in {figures.launch_files} files",
        f"floors of imports          {', '.join(f'{name} {count}' for name, count in figures.floors.items())}",
        f"module names used twice    {_listed(figures.modules_twice)}",
        f"class names used twice     {_listed(figures.classes_twice)}",
    ):
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
