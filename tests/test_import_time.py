"""Tests may not store a value that depends on when they were collected: a clock, a port, a path, a random number.

A test may run many minutes after its module was imported, beside another worker that imported the same module. So
values that are read at import (constants, defaults, the cases of `parametrize`) are never the time, a free port, a
folder of this run or a random number; nor do they call a function that reads one."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
READS = frozenset({
    "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter", "SystemClock().now",
    "SystemClock().monotonic", "datetime.now", "datetime.utcnow", "datetime.datetime.now", "datetime.datetime.utcnow",
    "date.today", "datetime.date.today", "uuid4", "uuid.uuid4", "uuid.uuid1", "secrets.token_hex",
    "secrets.token_bytes", "secrets.token_urlsafe", "os.urandom", "random.random", "random.randint", "random.choice",
    "random.sample", "random.getrandbits", "free_port", "free_ports", "socket.socket", "socket.create_server",
    "os.getcwd", "Path.cwd", "tempfile.mkdtemp", "tempfile.mkstemp", "tempfile.mktemp", "tempfile.TemporaryDirectory",
    "tempfile.NamedTemporaryFile", "gzip.compress",
})  # fmt: skip
"""Calls that return another value later, or in another process."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Name = tuple[str, str]
"""The dotted name of a module, and a name in it."""


def _modules() -> dict[str, ast.Module]:
    paths = sorted((ROOT / "tests").rglob("*.py"))
    names = [path.relative_to(ROOT).as_posix().removesuffix(".py").replace("/", ".") for path in paths]
    return {name: ast.parse(path.read_text("utf-8")) for name, path in zip(names, paths, strict=True)}


def held(modules: Mapping[str, ast.Module]) -> list[str]:
    """Return `module:line call` for each call at import that reads a forbidden value."""
    imports = {name: _imported(name, module) for name, module in modules.items()}
    functions = {
        (name, node.name): node
        for name, module in modules.items()
        for node in module.body
        if isinstance(node, Function)
    }
    calls = {
        name: {call for inner in node.body for call in _calls(ast.walk(inner))} for name, node in functions.items()
    }
    reading = {name for name, called in calls.items() if called & READS}
    grew = True
    while grew:
        more = {name for name in calls if any(imports[name[0]].get(call) in reading for call in calls[name])} - reading
        grew = bool(more)
        reading |= more
    found: list[str] = []
    for name, module in modules.items():
        for node in _at_import(module):
            for call in _calls([node]):
                if call in READS or imports[name].get(call) in reading:
                    found.append(f"{name}:{getattr(node, 'lineno', 0)} {call}")
    return found


def _imported(name: str, module: ast.Module) -> dict[str, Name]:
    """What each name of a module refers to: its own functions, and the names that it imports from other test
    modules."""
    known: dict[str, Name] = {node.name: (name, node.name) for node in module.body if isinstance(node, Function)}
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                known[alias.asname or alias.name] = (node.module, alias.name)
    return known


def _calls(nodes: Iterator[ast.AST] | list[ast.AST]) -> set[str]:
    return {_words(node.func) for node in nodes if isinstance(node, ast.Call)}


def _words(node: ast.expr) -> str:
    """The dotted text of `a.b` or `A().b`; other expressions have no name."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{_words(value)}.{name}"
        case ast.Call(func=func):
            return f"{_words(func)}()"
        case _:
            return ""


def _at_import(node: ast.AST) -> Iterator[ast.AST]:
    """The code that runs when the module is imported: no function bodies, and no code that runs only as a program."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
        return
    yield node
    if isinstance(node, Function | ast.Lambda):
        given = [*node.args.defaults, *(default for default in node.args.kw_defaults if default is not None)]
        inner = given if isinstance(node, ast.Lambda) else [*node.decorator_list, *given]
    else:
        inner = list(ast.iter_child_nodes(node))
    for each in inner:
        yield from _at_import(each)


def test_no_test_holds_what_was_true_when_it_was_collected() -> None:
    """No constant, default or case of the tests reads a clock, a port, a folder of the run or a random number at
    import."""
    assert held(_modules()) == []


def test_the_rule_sees_through_functions_and_modules() -> None:
    """A clock that a helper of another module reads is found in a case; a clock read in the body of a test is
    allowed."""
    helper = "import time\n\ndef now():\n    return time.time()\n\ndef headers(age_s=0):\n    return now() - age_s\n"
    user = (
        "import pytest\nfrom tests.helper import headers as made\n\n"
        "@pytest.mark.parametrize('sent', [made(), made(600)])\ndef test_it(sent):\n    assert made() != sent\n"
    )
    modules = {"tests.helper": ast.parse(helper), "tests.test_user": ast.parse(user)}
    assert held(modules) == ["tests.test_user:4 made", "tests.test_user:4 made"]
