"""Whatever arrives, a decoder gives a value or refuses as it says: no other error, and no hang."""

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
"""Those of which a seed is near to what is sound, but is not."""


def _name(decoder: Decoder) -> str:
    return decoder.name.replace(" ", "-").replace(":", "")


@pytest.mark.parametrize("decoder", DECODERS, ids=_name)
def test_bytes_that_are_nearly_right(decoder: Decoder) -> None:
    """Mutations of sound input."""
    for data in mutations(decoder.seeds, 400, seed=1):
        decoder(data)


@pytest.mark.parametrize("decoder", DECODERS, ids=_name)
def test_an_abyss(decoder: Decoder) -> None:
    """A hundred thousand levels end in a refusal as any other nonsense."""
    for data in ABYSSES:
        decoder(data)


@pytest.mark.parametrize(
    "decoder", [each for each in DECODERS if each.seeds and each.name not in REFUSED_SEEDS], ids=_name
)
def test_the_seeds_are_sound(decoder: Decoder) -> None:
    """Otherwise the fuzzers would start at the door and never get in."""
    for seed in decoder.seeds:
        decoder.call(seed)


def test_names_are_unique() -> None:
    """A finding names its decoder."""
    assert len(BY_NAME) == len(DECODERS) <= 256


@pytest.mark.skipif(not HAS_ATHERIS, reason="atheris has no wheel for this platform")
def test_led_by_coverage(tmp_path: Path) -> None:
    """A short run of all decoders under libFuzzer; a long one is `make fuzz`."""
    command = [sys.executable, "-m", "tests.fuzz.coverage", str(tmp_path), f"-runs={RUNS}", "-seed=1"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]


@pytest.mark.parametrize("text", [b'nodes: ["\\ud800"]', b'{"nodes": ["\\udfff"]}', b'{"\\ud800": 1}'])
def test_half_a_character_in_a_scenario(text: bytes) -> None:
    """An escape of YAML or JSON can say one that no file could hold; the place is named."""
    with pytest.raises(InvalidError, match=r"line 1"):
        BY_NAME["scenario"].call(text)
