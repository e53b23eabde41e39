"""Which of the traffic through the proxy is use. Pure.

What passes is use, in both directions and while it flows; a connection that is open and silent is none. Nor is what a
page does by itself: as long as its tab can be seen, JupyterLab asks for kernels, sessions and terminals every few
seconds, stores its layout every ten, and is told so on a WebSocket of its own. So of a notebook's REST API what only
reads does not count, and neither does anything of its layout and its events. What its kernels and terminals do is told
by the notebook itself (`slipway.inside.beside`).
"""

from slipway.model.lifecycle import Kind

_READS = ("GET", "HEAD", "OPTIONS")
_POLLED = "/api/"
_OF_THE_PAGE = ("/lab/api/", "/api/events/")


def is_use(kind: Kind, method: str, path: str) -> bool:
    """Whether a request for `path`, below the workload's root, is use."""
    if kind is not Kind.NOTEBOOK:
        return True
    return not path.startswith(_OF_THE_PAGE) and not (method in _READS and path.startswith(_POLLED))
