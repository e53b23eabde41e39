"""Which of the traffic through the proxy is use. Pure.

What passes is use, in both directions and while it flows; a connection that is open and silent is none. A page that
looks by itself whether there is news is no use either: JupyterLab asks for kernels, sessions and terminals every few
seconds, as long as its tab can be seen. So of a notebook's calls of its REST API those that only read do not count.
What its kernels and terminals do is told by the notebook itself (`slipway.inside.notebook`).
"""

from slipway.model.lifecycle import Kind

_READS = ("GET", "HEAD", "OPTIONS")
_POLLED = ("/api/", "/lab/api/")


def is_use(kind: Kind, method: str, path: str) -> bool:
    """Whether a request for `path`, below the workload's root, is use."""
    return kind is not Kind.NOTEBOOK or method not in _READS or not path.startswith(_POLLED)
