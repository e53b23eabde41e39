"""Cuts JSON that is nested too deep, so that one such object cannot prevent the decoding of all others.

The API server accepts thousands of levels in fields without a schema, such as a pod template; our decoder fails after a
few hundred. Owns where the cut is made. Pure.

Invariant: if the input of `cut` is JSON, the result is JSON with at most `LEVELS_MAX` levels; less deep parts are
unchanged.
"""

import re

LEVELS_MAX = 128
"""Four times the limit of a launch body, so that an object that was cut is refused because of its depth."""
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)


def cut(body: bytes) -> bytes:
    """Return `body` with null in place of each object and list deeper than `LEVELS_MAX`. Takes linear time."""
    kept: list[bytes] = []
    levels = begun = 0
    for token in _TOKEN.finditer(body):
        match token[0]:
            case b"{" | b"[":
                levels += 1
                if levels == LEVELS_MAX + 1:
                    kept.append(body[begun : token.start()])
            case b"}" | b"]":
                if levels == LEVELS_MAX + 1:
                    kept.append(b"null")
                    begun = token.end()
                levels -= 1
            case _:
                pass
    if levels <= LEVELS_MAX:
        kept.append(body[begun:])
    return b"".join(kept)
