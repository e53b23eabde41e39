"""`$(NAME)` in the command, the arguments and the environment of a container: how to write a text that means itself.

Kubernetes replaces `$(NAME)` by a variable and `$$` by `$`. A pod template keeps that meaning; what a user types as a
command is wrapped, so that the program gets it as it was typed. Pure.

Source: Kubernetes, "Define a Command and Arguments for a Container" (`$$(NAME)` is never expanded);
k8s.io/kubernetes third_party/forked/golang/expansion.
"""

import re

_SPECIAL = re.compile(r"\$[$(]")


def literal(text: str) -> str:
    """`text` written so that a kubelet makes `text` of it again."""
    return text.replace("$", "$$") if _SPECIAL.search(text) else text
