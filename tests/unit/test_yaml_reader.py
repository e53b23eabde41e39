"""The accepted YAML and JSON; everything else is refused at once, with a path."""

import time
from typing import Any

import pytest

from slipway import yaml_reader
from slipway.errors import InvalidError
from slipway.yaml_reader import MANIFEST, SCENARIO, TextLimits, YamlDocument

BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + level)}: &{chr(98 + level)} [{','.join([f'*{chr(97 + level)}'] * 10)}]\n" for level in range(10)
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: [1, 2.5, x, 'y', true, null, ~]", {"a": [1, 2.5, "x", "y", True, None, None]}),
        ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
        ("a: &x {b: 1, d: 2}\nc: {<<: *x, d: 3}", {"a": {"b": 1, "d": 2}, "c": {"b": 1, "d": 3}}),
        (
            "a: &x {b: 1}\ne: &y {b: 2, f: 3}\nc: {<<: [*x, *y]}",
            {"a": {"b": 1}, "e": {"b": 2, "f": 3}, "c": {"b": 1, "f": 3}},
        ),
        ("a: 2026-01-01", {"a": "2026-01-01"}),
        ("a: |\n  two\n  lines\n", {"a": "two\nlines\n"}),
        ("a: 0x10", {"a": 16}),
        ('{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
        ('\t{\n\t"a": 1}', {"a": 1}),
        ("", None),
        ("# nothing", None),
        ("a:", {"a": None}),
    ],
)
def test_plain_values(text: str, value: Any) -> None:
    """Plain values are read as in YAML 1.1, except that dates stay text."""
    assert yaml_reader.parse(text, SCENARIO) == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nodes: [{cpu: 1, cpu: 2}]", r"^nodes\[0\]\.cpu: is given twice \(first in line 1\); leave one out \(line 1"),
        ('{"nodes": [{"cpu": 1, "cpu": 2}]}', r"^nodes\[0\]\.cpu: is given twice"),
        ("a: &x [*x]", r"^a\[0\]: an anchor contains itself"),
        ("a: &x {b: *x}", r"^a\.b: an anchor contains itself"),
        ("a: *x", "^a: there is no anchor x"),
        (BOMB, "more than 2000000 values, including those that anchors repeat"),
        ("[" * 100_000, "nested deeper than 64 levels"),
        ("- " * 100_000, "nested deeper than 64 levels"),
        ('{"a":' * 100_000, "nested deeper than 64 levels"),
        ('{"a":' * 65 + "1" + "}" * 65, "nested deeper than 64 levels"),
        ("a: !!python/object/apply:os.system [x]", "^a: !!python/object/apply:os.system is not a plain value"),
        ("a: !secret x", "^a: !secret is not a plain value"),
        ("a: !!int x", "^a: x is no int"),
        ("a: !!set {x}", "^a: !!set is not a plain value"),
        ("1: x", "the key 1 is a int, not a word"),
        ("{[a]: 1}", "a key must be a word"),
        ("a: 1\n---\nb: 1", "^line 3: a second document"),
        ("a: {<<: 3}", "<< takes an object"),
        ("a: [", "^neither YAML nor JSON: line 1"),
        ("a:\n\t- b", "^neither YAML nor JSON: line 2: a character that cannot begin a value"),
        ("a: \x00", "^neither YAML nor JSON"),
        ("a: " + "9" * 5000, "is no int"),
    ],
)
def test_what_is_refused(text: str, says: str) -> None:
    """Invalid content is refused at once, with any size, and with the path."""
    began = time.thread_time()
    with pytest.raises(InvalidError, match=says) as found:
        yaml_reader.parse(text, SCENARIO)
    assert time.thread_time() - began < 5
    assert len(str(found.value)) < 1000


@pytest.mark.parametrize(
    "text", ['{"a": NaN}', "a: .inf", "a: [.nan]", "a: -.inf", '{"a": Infinity}', '{"a": [1e999]}']
)
def test_numbers_that_json_has_not_are_refused(text: str) -> None:
    """Numbers that JSON does not have are refused, so that a read value can be sent as JSON."""
    with pytest.raises(InvalidError, match="is not a JSON number"):
        yaml_reader.parse(text, MANIFEST)


@pytest.mark.parametrize("text", ['{"a": [1, 2, {"b": 3}]}', "a: [1, 2, {b: 3}]"])
def test_the_limit_of_values_is_the_same_in_json_and_yaml(text: str) -> None:
    """A text with as many values as the limit is read; one value more is refused, with the path."""
    assert yaml_reader.parse(text, TextLimits(1000, 6)) == {"a": [1, 2, {"b": 3}]}
    with pytest.raises(InvalidError, match=r"^a: more than 5 values"):
        yaml_reader.parse(text, TextLimits(1000, 5))


def test_documents_know_their_line() -> None:
    """Documents know their line, empty ones included; an anchor ends with its document."""
    text = "---\n# nothing\n---\na: &x 1\n---\n- b\n"
    assert yaml_reader.documents(text, MANIFEST) == [
        YamlDocument(None, 3),
        YamlDocument({"a": 1}, 4),
        YamlDocument(["b"], 6),
    ]
    with pytest.raises(InvalidError, match="there is no anchor x"):
        yaml_reader.documents("a: &x 1\n---\nb: *x\n", MANIFEST)


def test_a_large_file_is_refused_unread(tmp_path: Any) -> None:
    """A large file is refused unread by its size, also when it has no end."""
    path = tmp_path / "large.yaml"
    with path.open("wb") as file:
        file.truncate(200_000_000)
    for name in (str(path), "/dev/zero"):
        with pytest.raises(InvalidError, match="has more than 16777216 bytes"):
            yaml_reader.read_text(name, SCENARIO)


@pytest.mark.parametrize("name", ["/", "/nonexistent/x.yaml", "a\0b"])
def test_what_is_no_file_is_refused(name: str) -> None:
    """Folders, missing files and impossible file names are refused."""
    with pytest.raises(InvalidError, match="cannot be read"):
        yaml_reader.read_text(name, SCENARIO)
