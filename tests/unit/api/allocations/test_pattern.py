"""Patterns of callers find what a regular expression finds, and no caller can make them take long."""

import re
import time

import pytest

from slipway.api.allocations.pattern import Pattern, PatternError

LINES = ["", "a", "ab", "aab", "abc abc", "epoch 12: loss=0.5", "ERROR: x", "error", "tab\there", "]-", "été", "\\"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a|b",
        "^a",
        "b$",
        "^$",
        "$^",
        ".",
        "(ab)+",
        "[^a]",
        "a{2,}b",
        r"loss=\d\.\d",
        r"\bloss\b",
        "(?i)error",
        "[é]t",
        "été",
    ],
)
def test_it_finds_what_the_library_finds(text: str) -> None:
    """A pattern and the library's expression match the same lines of a sample."""
    pattern, library = Pattern(text), re.compile(text)
    assert [line for line in LINES if pattern.is_in(line)] == [line for line in LINES if library.search(line)]


@pytest.mark.parametrize("text", ["(a+)+$", "(a|a)*$", "(a*)*b", ".*.*.*.*.*b", "(.*)(.*)(.*)x", "(a{0,20}){0,20}c"])
def test_no_pattern_takes_long(text: str) -> None:
    """Patterns that would keep the library's engine busy for ever take a moment."""
    pattern, started = Pattern(text), time.thread_time()
    assert pattern.is_in("a" * 16_384 + "!") is (text == "(a|a)*$")
    assert time.thread_time() - started < 1.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(a", "missing )"),
        ("[a", "missing ]"),
        ("*a", "no argument for repetition operator: *"),
        (r"(a)\1", r"invalid escape sequence: \1"),
        ("(?=a)", "invalid perl operator: (?="),
        ("a{100000}", "invalid repetition size"),
        ("((a{100}){100}){100}", "invalid repetition size"),
        ("\ud800", "not valid text"),
    ],
)
def test_what_is_not_supported_is_said(text: str, said: str) -> None:
    """The error is short, and has the place."""
    with pytest.raises(PatternError) as refused:
        Pattern(text)
    assert said in str(refused.value)
