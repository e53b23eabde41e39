"""For any input a decoder returns a value or raises a documented error: no other error, and no hang."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.errors import InvalidError
from tests.fuzz.decoders import BY_NAME, DECODERS, Decoder
from tests.fuzz.mutations import ABYSSES, mutations

RUNS = 5_000
HAS_ATHERIS = sys.platform == "linux" and platform.machine() == "x86_64" and sys.version_info < (3, 14)
REFUSED_SEEDS = {"decision record", "watch of pods", "protobuf envelope", "stream event"}
"""Decoders of which a seed is nearly valid, but is refused."""


def _name(decoder: Decoder) -> str:
    return decoder.name.replace(" ", "-").replace(":", "")


@pytest.mark.parametrize("decoder", DECODERS, ids=_name)
def test_mutated_valid_input(decoder: Decoder) -> None:
    """Mutations of valid input are decoded or refused."""
    for data in mutations(decoder.seeds, 400, seed=1):
        decoder(data)


@pytest.mark.parametrize("decoder", DECODERS, ids=_name)
def test_deeply_nested_input(decoder: Decoder) -> None:
    """A hundred thousand levels are refused like any other invalid input."""
    for data in ABYSSES:
        decoder(data)


@pytest.mark.parametrize(
    "decoder", [each for each in DECODERS if each.seeds and each.name not in REFUSED_SEEDS], ids=_name
)
def test_the_seeds_are_sound(decoder: Decoder) -> None:
    """Otherwise the fuzzers would never get past the first check."""
    for seed in decoder.seeds:
        decoder.call(seed)


def test_names_are_unique() -> None:
    """A finding names its decoder."""
    assert len(BY_NAME) == len(DECODERS) <= 256


@pytest.mark.skipif(not HAS_ATHERIS, reason="atheris has no wheel for this platform")
def test_led_by_coverage(tmp_path: Path) -> None:
    """All decoders run shortly under libFuzzer; `make fuzz` runs longer."""
    command = [sys.executable, "-m", "tests.fuzz.coverage", str(tmp_path), f"-runs={RUNS}", "-seed=1"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]


@pytest.mark.parametrize("text", [b'nodes: ["\\ud800"]', b'{"nodes": ["\\udfff"]}', b'{"\\ud800": 1}'])
def test_half_a_character_in_a_scenario(text: bytes) -> None:
    """An escape in YAML or JSON can contain half a character, which no file could; the error names the place."""
    with pytest.raises(InvalidError, match=r"line 1"):
        BY_NAME["scenario"].call(text)
