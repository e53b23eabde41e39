"""Files that users write: ambiguous content is refused, with the file, the document and the line."""

from pathlib import Path

import pytest

from slipway.cli import main, yamlfile
from slipway.errors import InvalidError
from slipway.yaml_reader import MANIFEST
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it contains no document"),
        ("# only words\n---\n", "it contains no document"),
        ("- a\n- b\n", "line 1: a document must be an object (name: value), not a list"),
        ("just words\n", "line 1: a document must be an object (name: value), not a word"),
        ("42\n", "not a number"),
        ("a: 1\n---\n- b\n", "line 3: a document must be an object"),
        ("a: 1\nb: 2\na: 3\n", "a: is given twice (first in line 1); leave one out (line 3)"),
        ('{"a": 1, "a": 2}', "a: is given twice"),
        ("a:\n\tb: 1\n", "line 2: a character that cannot begin a value; indent lines with spaces only"),
        ("a: [1, 2\nb: 3\n", "line 2"),
        ("1: a\n", "the key 1 is a int, not a word; put it in quotes (line 1)"),
        ("on: a\n", "the key on is a bool, not a word"),
        ("[a]: b\n", "a key must be a word"),
        ("a: !!python/object:os.system {}\n", "is not a plain value"),
        ("a: !!binary aGk=\n", "!!binary is not a plain value"),
        ("a: !custom x\n", "!custom is not a plain value"),
        ("a: .inf\n", ".inf is not a JSON number"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ("a: *nothing\n", "line 1"),
        ("a: &a [*a]\n", "an anchor contains itself"),
        (BOMB, "more than 100000 values, including those that anchors repeat"),
        ("a: " + "[" * 100 + "]" * 100, "nested deeper than 64 levels"),
        ("a: " + "[" * 20_000, "nested"),
        ("a: \x07\n", "neither YAML nor JSON"),
        ("a: 1" + "0" * 5000 + "\n", "is no int"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    """Bad content is refused with the line and what to write instead."""
    with pytest.raises(InvalidError) as caught:
        yamlfile.documents(text, "launch.yaml")
    assert str(caught.value).startswith("--filename: launch.yaml")
    assert said in str(caught.value)


def test_what_is_taken() -> None:
    """Several documents, empty ones between them, small anchors, dates as text, and JSON with tabs are accepted."""
    text = "---\na: &x [1]\nb: *x\n---\n---\nday: 2026-01-02\nword: 'no'\n"
    assert yamlfile.documents(text) == [{"a": [1], "b": [1]}, {"day": "2026-01-02", "word": "no"}]
    assert yamlfile.documents('{\n\t"a": 1\n}') == [{"a": 1}]
    assert yamlfile.documents("base: &b {x: 1}\na:\n  <<: *b\n") == [{"base": {"x": 1}, "a": {"x": 1}}]


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    """A missing file, a folder, a file that is no text, and one that is too large are refused with the file's name."""
    (tmp_path / "latin").write_bytes(b"a: 1\nb: \xe4\n")
    (tmp_path / "large").write_bytes(b" " * (MANIFEST.bytes + 1))
    for name, said in (
        ("none", "No such file"),
        (".", "Is a directory"),
        ("latin", "line 2: is not UTF-8 text"),
        ("large", "has more than"),
    ):
        with pytest.raises(InvalidError, match=said):
            yamlfile.of_file(str(tmp_path / name))


async def test_the_document_of_a_refusal_is_named(world: ApiWorld, cli_user: CliUser, tmp_path: Path) -> None:
    """Of several documents the one that the API refuses is named; `render` says the same."""
    path = tmp_path / "two.yaml"
    path.write_text("kind: command\nimage: a\ncommand: [x]\n---\nkind: command\nimagee: a\n")
    for words in (("apply", "-f"), ("render", "-f")):
        ran = await cli_user.run(*words, str(path))
        assert ran.code == main.USAGE
        assert "imagee" in ran.err
        assert f"{path}, document 2 of 2" in ran.err


@pytest.mark.parametrize("part", ["metadata: words", "spec: [1]"])
async def test_a_manifest_of_odd_parts(cli_user: CliUser, tmp_path: Path, part: str) -> None:
    """A manifest whose metadata or spec is no object is refused."""
    path = tmp_path / "odd.yaml"
    path.write_text(f"apiVersion: slipway.dev/v1alpha1\nkind: Allocation\n{part}\n")
    ran = await cli_user.run("apply", "-f", str(path))
    assert (ran.code, "must be an object" in ran.err) == (main.USAGE, True)
