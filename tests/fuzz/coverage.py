"""All decoders under a fuzzer that is led by coverage (libFuzzer, through atheris): one process, one corpus.

Run as a program: `python -m tests.fuzz.coverage FOLDER [libFuzzer's flags]`; it ends with 0 after `-runs` or
`-max_total_time`. Otherwise it ends with the traceback of the first finding, whose input it leaves in FOLDER. The first
byte of an input chooses the decoder.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

atheris: Any = import_module("atheris")  # has no types

with atheris.instrument_imports(include=["slipway"]):
    from tests.fuzz.decoders import DECODERS


def one_input(data: bytes) -> None:
    """Called by libFuzzer with one input."""
    if data:
        DECODERS[data[0] % len(DECODERS)](data[1:])


def plant(folder: Path) -> None:
    """Write the seeds as a corpus."""
    for number, decoder in enumerate(DECODERS):
        for index, seed in enumerate(decoder.seeds):
            (folder / f"seed-{number}-{index}").write_bytes(bytes([number]) + seed)


def main() -> None:
    """Run the fuzzer; does not return."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    plant(folder)
    limits = [f"-artifact_prefix={folder}/finding-", "-timeout=10", "-rss_limit_mb=2048"]
    atheris.Setup([sys.argv[0], str(folder), *limits, *sys.argv[2:]], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
