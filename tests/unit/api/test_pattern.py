"""Patterns find what the library's engine finds, and take no time that a caller could make long."""

import re
import string
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.api.pattern import Pattern, PatternError

LINES = [
    "",
    "a",
    "ab",
    "aab",
    "abc abc",
    "epoch 12: loss=0.5",
    "ERROR: x",
    "error",
    "tab\there",
    "]-",
    "été",
    "a{2}",
    "\\",
]


@pytest.mark.parametrize(
    "text",
    [
        "", "a", "ab", "a|b", "a*b", "a+b", "a?b", "^a", "b$", "^$", "^a|c$", ".", "a.c", "(ab)+", "(?:ab)?c",
        "[ab]+c", "[^a]", "[a-c]{2,3}", "a{2}", "a{2,}b", "a{0,1}b", r"\d+", r"loss=\d\.\d", r"\w+\s\w+", r"\W",
        r"\S+$", "[]-]+", r"[\d:]+", r"\\", r"\t", "(a|b)*c", "((a)(b))+", "x|", "a{", "a{x}", "epoch.*loss", "a*?b",
        "[é]t", r"[^\d\s]", "a$|^b", "(^a|b)c",
    ],
)  # fmt: skip
def test_it_finds_what_the_library_finds(text: str) -> None:
    """On every line of a sample."""
    pattern, library = Pattern(text), re.compile(text)
    assert [line for line in LINES if pattern.is_in(line)] == [line for line in LINES if library.search(line)]


@pytest.mark.parametrize("text", ["(?i)error", "(?i)E[r-s]+or", "(?i)ÉTÉ"])
def test_it_can_ignore_case(text: str) -> None:
    """With the mark at its start."""
    pattern, library = Pattern(text), re.compile(text)
    assert [line for line in LINES if pattern.is_in(line)] == [line for line in LINES if library.search(line)]


_ATOMS = st.sampled_from(["a", "b", "c", ".", "[ab]", "[^a]", r"\d", "^", "$"])
_PATTERNS = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        inner.map(lambda text: f"({text})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{1,2}"])).map(lambda pair: f"({pair[0]}){pair[1]}"),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(_PATTERNS, st.text(alphabet="abc1", max_size=8))
def test_it_agrees_with_the_library_on_anything(text: str, line: str) -> None:
    """Any pattern, any line."""
    assert Pattern(text).is_in(line) is (re.search(text, line) is not None)


@pytest.mark.parametrize("text", ["(a+)+$", "(a|a)*$", "(a*)*b", ".*.*.*.*.*b", "(.*)(.*)(.*)x", "(a{0,20}){0,20}c"])
def test_no_pattern_takes_long(text: str) -> None:
    """Those that would keep the library's engine busy for ever take a moment."""
    pattern, started = Pattern(text), time.perf_counter()
    assert pattern.is_in("a" * 16_384 + "!") is (text == "(a|a)*$")
    assert time.perf_counter() - started < 1.0


def test_memory_is_bounded() -> None:
    """However many different characters come by."""
    pattern = Pattern("[a-z]{3}(x|y).{40}z")
    for seed in range(300):
        line = "".join(string.ascii_lowercase[(seed * number * number + number) % 26] for number in range(200))
        assert pattern.is_in(line) is (re.search("[a-z]{3}(x|y).{40}z", line) is not None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(a", "a ( is not closed"),
        ("a)", "a ) too many"),
        ("[a", "a [ is not closed"),
        ("*a", "nothing that * could repeat"),
        ("a\\", "ends with a backslash"),
        (r"(a)\1", r"\1 is not supported (at character 5)"),
        (r"\bword", r"\b is not supported"),
        ("(?=a)", "begin with (?"),
        ("(?P<n>a)", "begin with (?"),
        ("[z-a]", "wrong way round"),
        ("a{3,2}", "the smaller number first"),
        ("a{1000}", "repeats go from 0 to 100"),
        ("((a{100}){100}){100}", "too large"),
        ("(" * 60 + "a" + ")" * 60, "nested too deep"),
        ("(?i)[a", "at character 6"),
    ],
)
def test_what_is_not_supported_is_said(text: str, said: str) -> None:
    """And where."""
    with pytest.raises(PatternError) as refused:
        Pattern(text)
    assert said in str(refused.value)
