"""Checks each block of the pages: a reader can type it. The checks need no running system, so they are quick.

Other tests run the blocks: commands (tests/e2e/test_documented_commands.py), the tutorials
(tests/e2e/test_tutorials.py), docs/install.md (tests/node/test_install_page.py), docs/sdk.md (tests/test_sdk_page.py),
the settings of other programs (tests/unit/test_adapters_page.py, `test_documented_*`).
"""

import ast
import importlib
import importlib.util
import json
import re
from pathlib import Path

import pytest
import yaml

from slipway.cli import main
from slipway.cli.verb import long_options, parser_of
from slipway.errors import ControlPlaneError
from tests.support.documented_blocks import ROOT, DocumentedBlock, blocks, commands, inline_code, without_explanations

SHELL = ("console", "sh", "")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def of(*languages: str) -> list[DocumentedBlock]:
    """Return the blocks in these languages."""
    return blocks(*languages)


def names(found: list[DocumentedBlock]) -> list[str]:
    """The pytest ids of the blocks: where each block is."""
    return [block.place for block in found]


CALLS = [
    pytest.param(words, id=f"{block.place} {' '.join(words)[:60]}")
    for block in map(without_explanations, of(*SHELL))
    for words in commands(block)
    if words[0].endswith("slipway") and len(words) > 1 and words[1] != "..."
]


@pytest.mark.parametrize("words", CALLS)
def test_a_command_of_slipway_is_one(words: list[str]) -> None:
    """The verb exists and accepts these options and words; words after `--` belong to the user and are not checked."""
    name = main.ALIASES.get(words[1], words[1])
    verb = main.load(name)
    if verb.raw:
        return
    rest = words[2:]
    own = rest[: rest.index("--")] if verb.takes_command and "--" in rest else rest
    try:
        parser_of(name, verb).parse_args(own)
    except SystemExit as ended:
        pytest.fail(f"ended with {ended.code}: {words}")


def test_verbs_and_options_within_sentences_exist() -> None:
    """Every `slipway VERB --option` in a sentence exists; placeholders (ID, FILE) are not checked."""
    wrong: list[str] = []
    for page, text in inline_code():
        words = text.split()
        if words[0] != "slipway" or len(words) == 1 or not re.fullmatch(r"[a-z][a-z-]*", words[1]):
            continue
        name = main.ALIASES.get(words[1], words[1])
        try:
            verb = main.load(name)
        except ControlPlaneError:
            wrong.append(f"{page}: {text}")
            continue
        own = words[2 : words.index("--")] if "--" in words else words[2:]
        known = {*long_options(parser_of(name, verb))}
        given = {word.partition("=")[0] for word in own if word.startswith("--")}
        if not verb.raw and not given <= known:
            wrong.append(f"{page}: {text}: {', '.join(sorted(given - known))}")
    assert not wrong


def test_targets_and_modules_that_are_called_exist() -> None:
    """Each `make TARGET` exists, and each `python -m MODULE` of ours."""
    wrong: list[str] = []
    for block in map(without_explanations, of(*SHELL)):
        for tool, *words in commands(block):
            if tool == "make":
                wrong += [f"{block.place}: make {word}" for word in words if "=" not in word and word not in TARGETS]
            elif tool.endswith("python") and words[:1] == ["-m"] and words[1].split(".")[0] in ("slipway", "tests"):
                wrong += [] if importlib.util.find_spec(words[1]) else [f"{block.place}: python -m {words[1]}"]
    assert not wrong


@pytest.mark.parametrize("block", of("python"), ids=names(of("python")))
def test_python_compiles_and_what_it_imports_of_slipway_is_there(block: DocumentedBlock) -> None:
    """Blocks compile and their imports of slipway exist, so a renamed class is found whatever else the block needs
    to run."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(block.text, block.place, "exec", flags)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("slipway"):
            assert [alias.name for alias in node.names if not has(node.module or "", alias.name)] == []
        elif isinstance(node, ast.Import):
            for alias in node.names:
                assert not alias.name.startswith("slipway") or importlib.util.find_spec(alias.name)


def has(module: str, name: str) -> bool:
    """Whether the name can be imported from the module; if the adapter's host is missing, whether the source defines
    the name."""
    try:
        return hasattr(importlib.import_module(module), name) or bool(importlib.util.find_spec(f"{module}.{name}"))
    except ModuleNotFoundError as error:
        if (error.name or "slipway").startswith("slipway"):
            raise
    spec = importlib.util.find_spec(module)
    return bool(
        spec
        and spec.origin
        and re.search(rf"^(class|def) {name}\b", Path(spec.origin).read_text("utf-8"), re.MULTILINE)
    )


def test_data_can_be_read() -> None:
    """Blocks parse: JSON, and YAML of one or several documents."""
    for block in of("json"):
        for document in re.split(r"\n(?=\{)", block.text.strip()):
            json.loads(document)
    for block in of("yaml"):
        assert [document for document in yaml.safe_load_all(block.text) if document is not None], block.place
