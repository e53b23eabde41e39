"""Every value that a page names exists in the chart: in options of a command, and in blocks of YAML."""

import itertools
import re
from typing import Any

import pytest
import yaml

from tests.conformance.system.helm_words import merged, values_of
from tests.support import chart
from tests.support.documented_blocks import blocks, commands

NAMES = set(yaml.safe_load((chart.CHART / "values.yaml").read_text("utf-8")))
ELSEWHERE = {"image": {"registry": "registry.example"}}
"""Values that a page leaves to its reader."""


def sets() -> list[tuple[str, list[str]]]:
    """(place, text of each `--set`) of each `helm install` and `helm upgrade`."""
    return [
        (block.place, [after for word, after in itertools.pairwise(words) if word == "--set"])
        for block in blocks("console", "sh", "")
        for words in commands(block)
        if words[0] == "helm" and words[1] in ("install", "upgrade") and "--set" in words
    ]


def files() -> list[tuple[str, dict[str, Any]]]:
    """(place, values) of each YAML block that is a file of values."""
    keys = {block: set(re.findall(r"^(\w+):", block.text, re.MULTILINE)) for block in blocks("yaml", "")}
    return [(block.place, yaml.safe_load(block.text)) for block, found in keys.items() if found and found <= NAMES]


@pytest.mark.parametrize(("place", "words"), sets(), ids=[place for place, _ in sets()])
def test_values_of_a_command_are_values_of_the_chart(place: str, words: list[str]) -> None:
    """Names in capitals are replaced; the chart accepts no unknown value, so a misspelt one is refused."""
    del place
    given = values_of([re.sub(r"\b[A-Z]{3,}\b", "example", word) for word in words])
    assert chart.render(merged(ELSEWHERE, given))


@pytest.mark.parametrize(("place", "values"), files(), ids=[place for place, _ in files()])
def test_a_file_of_values_is_one(place: str, values: dict[str, Any]) -> None:
    """Each block works as shown."""
    del place
    assert chart.render(merged(ELSEWHERE, values))
