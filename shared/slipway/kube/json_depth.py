"""JSON that is nested deeper than anybody means: cut, so that one object of somebody's cannot keep us from the others.

The API server takes thousands of levels where a schema leaves the fields open, as in a pod template; a decoder of ours
gives up after some hundred. Owns where the cut is made. Pure.

Invariant: what `cut` returns is JSON whenever its input is, of at most `LEVELS_MAX` levels; shallower parts are as
they were.
"""

import re

LEVELS_MAX = 128
"""Four times what a launch body may have, so that an object which was cut is refused for its depth."""
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)


def cut(body: bytes) -> bytes:
    """`body` with null for each object and list that lies deeper than `LEVELS_MAX`. Linear in its size."""
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
