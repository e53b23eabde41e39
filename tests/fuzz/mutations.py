"""Nearly valid bytes: the mutations of a fuzzer without coverage. Pure: an equal seed gives equal bytes."""

import random
from collections.abc import Iterator, Sequence

PIECES = (
    b"{", b"}", b"[", b"]", b'"', b":", b",", b"null", b"true", b"-1", b"0", b"1e999", b"NaN", b"99999999999999999999",
    b"\xff", b"\x00", b"\r\n", b"\\ud800", b"\xed\xa0\x80", b"%00", b"../", b"\x1d", "\u0660".encode(),
    "\u202e".encode(), "\u00b2".encode(), b"9" * 400, b"9" * 5000,
)  # fmt: skip
LEVELS = 100_000
ABYSSES = (
    b"[" * LEVELS,
    b'{"a":' * LEVELS,
    b"data\x1f" + b"[" * LEVELS,
    b'{"type":"ADDED","object":' + b'{"a":' * LEVELS,
    b"[" * LEVELS + b"]" * LEVELS,
)
"""Nested more deeply than any decoder accepts."""


def mutations(seeds: Sequence[bytes], number: int, seed: int) -> Iterator[bytes]:
    """The seeds themselves, then `number` mutations of them; random bytes when there are no seeds."""
    chance = random.Random(seed)
    yield from seeds
    for _ in range(number):
        data = bytearray(chance.choice(seeds) if seeds else chance.randbytes(chance.randrange(64)))
        for _ in range(chance.randint(1, 6)):
            _change(data, chance)
        yield bytes(data)


def _change(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data) + 1)
    match chance.randrange(5):
        case 0:
            data[at:at] = chance.choice(PIECES)
        case 1:
            data[at : at + chance.randint(1, 8)] = b""
        case 2:
            data[at:at] = chance.randbytes(1)
        case 3:
            other = chance.randrange(len(data) + 1)
            data[at:at] = data[other : other + chance.randint(1, 32)]
        case _:
            data[at:] = data[at : at + 1] and bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]
