"""`$(NAME)` in the command, arguments and environment of a container: how to escape text so that it is not expanded.

Kubernetes replaces `$(NAME)` by a variable and `$$` by `$`. This also applies to pod templates. A command that a user
types is escaped, so that the program gets it as typed. Pure.

Source: Kubernetes, "Define a Command and Arguments for a Container" (`$$(NAME)` is never expanded);
k8s.io/kubernetes third_party/forked/golang/expansion.
"""

import re

_SPECIAL = re.compile(r"\$[$(]")


def literal(text: str) -> str:
    """Return `text` escaped, so that the kubelet's expansion returns `text`."""
    return text.replace("$", "$$") if _SPECIAL.search(text) else text
